"""One episode: an instance of the author's class, from its construction to its teardown."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from . import discovery, results
from .environment import Environment
from .faults import call_author, exception_text
from .gate import Gate
from .messages import Block, ListToolsOutput, RunToolError, RunToolSuccess, describe
from .output import shorten
from .tools import ToolMethod, tool_methods

_MAX_NAME_CHARS = 200


class _InvalidInput(Exception):
    """The tool's model refused the input."""


class Episode:
    """Calls the methods of one environment, and keeps the order among its tools."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.name = type(env).__name__
        self._methods = tool_methods(type(env))
        self._owners: dict[type, Any] = {type(env): env}
        self._owners_lock = asyncio.Lock()
        self._gate = Gate()
        self._finished = False

    @classmethod
    async def create(cls, env: type[Environment], task_spec: Mapping[str, Any], secrets: Mapping[str, str]) -> Episode:
        """Construct the environment."""
        return cls(await call_author(_construct, env, dict(task_spec), dict(secrets)))

    async def setup(self) -> None:
        """Have the environment prepare itself."""
        await call_author(self._env.setup)

    async def prompt(self) -> list[Block]:
        """Return the prompt; each time it is asked for, the environment is asked, exactly once."""
        return results.blocks(await call_author(self._env.get_prompt), f"{self.name}.get_prompt")

    async def task_tools(self) -> ListToolsOutput:
        """Return all tools of this task. Where a task's own description of a tool differs from the shared one, it counts."""
        shared = await discovery.list_tools(type(self._env))
        own = results.tools(await call_author(self._env.list_task_tools), f"{self.name}.list_task_tools")
        by_name = {spec.name: spec for spec in (*shared.tools, *own.tools)}
        return ListToolsOutput(tools=list(by_name.values()))

    async def call(self, name: str, tool_input: Mapping[str, Any]) -> RunToolSuccess | RunToolError:
        """Call a tool; what it refuses to run for is a ``RunToolError``, what goes wrong in it a ``RequestFault``."""
        method = self._methods.get(name)
        if method is None:
            return RunToolError(error=f"{shorten(name, _MAX_NAME_CHARS)!r} is not a valid tool", reason="not_found")
        if self._finished:
            return _episode_finished(name)
        async with self._gate.entered(name, method.options):
            if self._finished:  # by a call that this one has waited for
                return _episode_finished(name)
            try:
                returned = await self._run(method, tool_input)
            except _InvalidInput as exc:
                return RunToolError(error=f"Tool input validation error: {exc}", reason="input_validation")
            output = results.tool_output(returned, f"{method.owner.__name__}.{name}")
            if self._finished:  # by a call that overlapped: the first end of an episode is the one that counts
                return _episode_finished(name)
            self._finished = output.finished
            return RunToolSuccess(output=output)

    async def teardown(self) -> None:
        """Have the environment give back what it took."""
        await call_author(self._env.teardown)

    async def _run(self, method: ToolMethod, tool_input: Mapping[str, Any]) -> Any:
        async with self._owners_lock:  # of calls that overlap, one makes the toolset
            if method.owner not in self._owners:
                self._owners[method.owner] = await call_author(method.owner, self._env)
        function = getattr(self._owners[method.owner], method.name)
        # Clients show the message to the model, or match it: the tool's own words, nothing around them.
        return await call_author(
            _with_input(function, method.model, tool_input), passing=(_InvalidInput,), describe=exception_text
        )


def _construct(env: type[Environment], task_spec: dict[str, Any], secrets: dict[str, str]) -> Environment:
    given: dict[str, Any] = {"task_spec": task_spec, "secrets": secrets}
    signature = inspect.signature(env)
    for arguments in (given, {"task_spec": task_spec}):
        try:
            signature.bind(**arguments)
        except TypeError:
            continue
        instance = env(**arguments)
        break
    else:
        # Other names for the same two things.
        instance = env(*list(given.values())[: len(signature.parameters)])
    for name, value in given.items():  # a constructor of its own need not call ours
        instance.__dict__.setdefault(name, value)
    return instance


def _with_input(
    function: Callable[..., Any], model: type[BaseModel] | None, tool_input: Mapping[str, Any]
) -> Callable[[], Any]:
    """Return the call as a function without parameters, async if ``function`` is; a model may run code of the author's."""
    if model is None:
        return function

    def parameters() -> BaseModel:
        try:
            return model.model_validate(tool_input)
        except ValidationError as exc:
            raise _InvalidInput(shorten(describe(exc))) from exc

    if inspect.iscoroutinefunction(function):

        async def run() -> Any:
            return await function(parameters())

        return run
    return lambda: function(parameters())


def _episode_finished(name: str) -> RunToolError:
    return RunToolError(
        error=f"{name!r} was not run: the episode has finished, and takes no more tool calls", reason="episode_finished"
    )
