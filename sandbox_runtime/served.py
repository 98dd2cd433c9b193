"""An author's class and its instance, as the rest of the runtime sees them: one interface, whichever SDK they are written for.

The classes here are for environments of this package; ``ors_sdk`` and ``openreward_sdk`` say what is different there, and
``dialects`` chooses. What the author's code returns is checked and comes out in our own types. Which calls may run together,
the end of an episode, threads and limits are the same for all, and not decided here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ValidationError

from . import results
from .environment import cached_tasks
from .faults import RequestFault, call_author
from .messages import Block, Fault, ListToolsOutput, RunToolError, Split, describe
from .output import shorten
from .results import OURS, Types
from .tools import ToolMethod, ToolOptions, tool_methods

if TYPE_CHECKING:
    from .messages import Message, ScoreGroupOutput

MAX_NAME_CHARS = 200
"""For names that a client gave and that a message repeats."""


class InvalidInput(Exception):
    """A tool's model refused the input; the text is for the model that called it."""


class BoundTool(NamedTuple):
    """A tool of one episode. ``parse`` makes its parameter of a call's input, and is None for a tool without one."""

    function: Callable[..., Any]
    parse: Callable[[Mapping[str, Any]], BaseModel] | None
    options: ToolOptions
    source: str
    """How messages about its result name it."""


class ServedClass:
    """An author's class: the questions that need no episode, and the construction of one."""

    types: Types = OURS

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        self.name = cls.__name__

    async def check(self) -> None:
        """See that it can be served.

        Raises:
            TypeError, ValueError, RequestFault: it can't; the text says why, as a sentence about it.
        """
        if not tool_methods(self.cls):
            raise ValueError("it has no tools: decorate at least one method with @tool")

    async def list_tools(self) -> ListToolsOutput:
        """Return the tools that every task has."""
        return results.tools(await call_author(self.cls.list_tools), f"{self.cls.__name__}.list_tools", self.types)

    async def list_splits(self) -> list[Split]:
        """Return the splits."""
        return results.splits(await call_author(self.cls.list_splits), f"{self.cls.__name__}.list_splits", self.types)

    async def list_tasks(self, split: str) -> list[Any]:
        """Return all tasks of a split.

        Raises:
            NotImplementedError: it does not list its tasks.
        """
        return results.tasks(await self._cached_tasks(split), f"{self.cls.__name__}.list_tasks")

    async def num_tasks(self, split: str) -> int:
        """Return how many tasks a split has."""
        return results.count(await call_author(self.cls.num_tasks, split), f"{self.cls.__name__}.num_tasks")

    async def get_task(self, split: str, index: int) -> Any:
        """Return the task at ``index``; -1 is the last.

        Raises:
            IndexError: there is none.
        """
        found = await call_author(self.cls.get_task, split, index, passing=(IndexError,))
        return results.task(found, f"{self.cls.__name__}.get_task")

    async def get_task_range(self, split: str, start: int | None, stop: int | None) -> list[Any]:
        """Return the tasks of a slice.

        Raises:
            IndexError: there is no such task, for an environment that minds.
        """
        found = await call_author(self.cls.get_task_range, split, start, stop, passing=(IndexError,))
        return results.tasks(found, f"{self.cls.__name__}.get_task_range")

    async def create(
        self, task_spec: Mapping[str, Any], secrets: Mapping[str, str], toolset_name: str | None
    ) -> ServedEnvironment:
        """Construct the environment of one episode."""
        self._refuse_toolset(toolset_name)
        return ServedEnvironment(self, await call_author(self._construct, dict(task_spec), dict(secrets)))

    async def _cached_tasks(self, split: str) -> Sequence[Any]:
        found: Sequence[Any] = await call_author(cached_tasks, self.cls, split, passing=(NotImplementedError,))
        return found

    def _refuse_toolset(self, name: str | None) -> None:
        if name is not None:
            raise RequestFault(
                Fault.INVALID_TOOLSET,
                f"no toolset {shorten(name, MAX_NAME_CHARS)!r}: {self.name} takes no toolset per session",
            )

    def _construct(self, task_spec: dict[str, Any], secrets: dict[str, str]) -> Any:
        instance = construct(self.cls, task_spec, secrets)
        for name, value in (("task_spec", task_spec), ("secrets", secrets)):
            instance.__dict__.setdefault(name, value)  # a constructor of its own need not call ours
        return instance


class ServedEnvironment:
    """The environment of one episode."""

    def __init__(self, served: ServedClass, env: Any) -> None:
        self._served = served
        self._env = env
        self._methods = tool_methods(type(env))
        self._owners: dict[type, Any] = {type(env): env}
        self._owners_lock = asyncio.Lock()

    @property
    def types(self) -> Types:
        """The classes that its code returns."""
        return self._served.types

    async def setup(self) -> None:
        """Have it prepare itself."""
        await call_author(self._env.setup)

    async def prompt(self) -> list[Block]:
        """Return the prompt; each time it is asked for, the author's code is asked, exactly once."""
        return results.blocks(await call_author(self._env.get_prompt), self._source("get_prompt"), self.types)

    async def messages(self) -> list[Message]:
        """Return the prompt as a conversation.

        Raises:
            RequestFault: ``not_supported``: its SDK has no conversations.
        """
        raise RequestFault(Fault.NOT_SUPPORTED, f"{self._served.name} has no messages; it has a prompt")

    async def task_tools(self) -> ListToolsOutput:
        """Return all tools of this task. Where a task's own description of a tool differs from the shared one, it counts."""
        shared = await self._served.list_tools()
        own = results.tools(await call_author(self._env.list_task_tools), self._source("list_task_tools"), self.types)
        by_name = {spec.name: spec for spec in (*shared.tools, *own.tools)}
        return ListToolsOutput(tools=list(by_name.values()))

    async def tool(self, name: str) -> BoundTool | RunToolError:
        """Return the tool of that name, or why there is none."""
        method = self._methods.get(name)
        if method is None:
            return not_found(name)
        async with self._owners_lock:  # of calls that overlap, one makes the toolset
            if method.owner not in self._owners:
                self._owners[method.owner] = await call_author(method.owner, self._env)
        function = getattr(self._owners[method.owner], method.name)
        return BoundTool(function, _parser(method), method.options, f"{method.owner.__name__}.{name}")

    async def score_group(self, candidates: Sequence[Mapping[str, Any]]) -> ScoreGroupOutput:
        """Return a score for each of several rollouts of this task.

        Raises:
            RequestFault: ``not_supported``: it does not score groups.
        """
        raise RequestFault(Fault.NOT_SUPPORTED, f"{self._served.name} does not implement score_group")

    async def teardown(self) -> None:
        """Have it give back what it took."""
        await call_author(self._env.teardown)

    def _source(self, method: str) -> str:
        return f"{type(self._env).__name__}.{method}"


def construct(cls: type[Any], task_spec: dict[str, Any], secrets: dict[str, str]) -> Any:
    """Return an instance, made with what its constructor takes: both, or the task alone, or both by other names."""
    given: dict[str, Any] = {"task_spec": task_spec, "secrets": secrets}
    signature = inspect.signature(cls)
    for arguments in (given, {"task_spec": task_spec}):
        try:
            signature.bind(**arguments)
        except TypeError:
            continue
        return cls(**arguments)
    return cls(*list(given.values())[: len(signature.parameters)])


def not_found(name: str) -> RunToolError:
    """Return the answer to a call of a tool that is not there."""
    return RunToolError(error=f"{shorten(name, MAX_NAME_CHARS)!r} is not a valid tool", reason="not_found")


def _parser(method: ToolMethod) -> Callable[[Mapping[str, Any]], BaseModel] | None:
    if (model := method.model) is None:
        return None

    def parse(tool_input: Mapping[str, Any]) -> BaseModel:
        try:
            return model.model_validate(tool_input)
        except ValidationError as exc:
            raise InvalidInput(shorten(describe(exc))) from exc

    return parse
