"""Environments written for PyPI ``ors-sdk`` (``from ors import …``), and what ``openreward``'s have in common with them.

The SDK is never imported here: an author's class has brought it along, and its marks on methods and its base class say all
that is needed. A class answers as it does in the SDK's own server, so its own ``list_tools`` and the like are asked, and a
tool is looked up on the instance at each call, as the SDK does.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MethodType
from typing import Any, get_type_hints

from pydantic import BaseModel, ValidationError

from . import results
from .faults import call_author, exception_text, log_exception
from .messages import ListToolsOutput, RunToolError
from .output import shorten
from .results import Types
from .served import BoundTool, InvalidInput, ServedClass, ServedEnvironment, construct, not_found
from .tools import ToolOptions

_MAX_INPUT_ERROR_CHARS = 16 * 1024
"""The errors of an input repeat the input, which may be as large as a request."""


class OrsClass(ServedClass):
    """A subclass of the SDK's ``Environment`` (``base``)."""

    def __init__(self, cls: type[Any], base: type[Any]) -> None:
        super().__init__(cls)
        self.base = base
        self.name = str(cls.name())  # the SDK serves it under this
        sdk = sys.modules[base.__module__]
        # Its server takes whatever has the form of blocks.
        self.types = Types(sdk.ToolOutput, sdk.ListToolsOutput, sdk.Split, (BaseModel, Mapping))

    async def check(self) -> None:
        tools = await self.list_tools()
        if not tools.tools and tools.terminal_tool is None:
            raise ValueError("it has no tools that every task has: decorate at least one method with @tool")

    # The SDK's own defaults list all tasks for each question, and on the event loop.

    async def num_tasks(self, split: str) -> int:
        if self._overrides("num_tasks"):
            return await super().num_tasks(split)
        return len(await self._tasks(split))

    async def get_task(self, split: str, index: int) -> Any:
        if self._overrides("get_task"):
            return await super().get_task(split, index)
        return results.task((await self._tasks(split))[index], f"{self.cls.__name__}.list_tasks")

    async def get_task_range(self, split: str, start: int | None, stop: int | None) -> list[Any]:
        if self._overrides("get_task_range"):
            return await super().get_task_range(split, start, stop)
        indices = range(*slice(start, stop).indices(await self.num_tasks(split)))
        return [await self.get_task(split, index) for index in indices]

    async def create(
        self, task_spec: Mapping[str, Any], secrets: Mapping[str, str], toolset_name: str | None
    ) -> ServedEnvironment:
        self._refuse_toolset(toolset_name)
        return OrsEnvironment(self, await call_author(construct, self.cls, dict(task_spec), dict(secrets)))

    async def _tasks(self, split: str) -> Any:
        return await call_author(self._cached_tasks, split)  # NotImplementedError means nothing to these questions

    def _overrides(self, method: str) -> bool:
        mine, theirs = getattr(self.cls, method), getattr(self.base, method)
        return getattr(mine, "__func__", mine) is not theirs.__func__


class OrsEnvironment(ServedEnvironment):
    """An instance of such a class."""

    _served: OrsClass

    def __init__(self, served: OrsClass, env: Any) -> None:
        self._served = served
        self._env = env
        self._looking_up = asyncio.Lock()
        # Where the SDK's own methods, should the author's code call them, look for toolsets; not every constructor makes it.
        self._toolsets: dict[type, Any] = env.__dict__.setdefault("_toolset_instances", {})

    async def task_tools(self) -> ListToolsOutput:
        shared = results.tools(await call_author(self._env.list_tools), self._source("list_tools"), self.types)
        own = results.tools(await call_author(self._env.list_task_tools), self._source("list_task_tools"), self.types)
        return ListToolsOutput(tools=[*shared.tools, *own.tools])

    async def tool(self, name: str) -> BoundTool | RunToolError:
        async with self._looking_up:  # of calls that overlap, one makes the toolset; and they keep their order
            own = await self._look_up(self._env, name)
            theirs, toolset = None, None
            for toolset in self._served.cls.toolsets or ():
                if (theirs := await self._look_up(await self._toolset(toolset), name)) is not None:
                    break
        if own is not None and theirs is not None:
            assert toolset is not None
            where = f"{self._served.cls.__name__} and its toolset {toolset.__name__}"
            return RunToolError(error=f"the tool name {name!r} is taken twice: in {where}", reason="name_collision")
        function = theirs if own is None else own
        return not_found(name) if function is None else function

    async def _look_up(self, owner: Any, name: str) -> BoundTool | None:
        async def look_up() -> (
            BoundTool | None
        ):  # on the event loop, as it takes no time; but it may run the author's code
            function = getattr(owner, name, None)
            if function is None or not self._served.cls._is_tool(function):
                return None
            return _bound(name, function)

        found: BoundTool | None = await call_author(look_up, describe=exception_text)
        return found

    async def _toolset(self, toolset: type) -> Any:
        if toolset not in self._toolsets:
            instance = await call_author(_make_toolset, toolset, self._env, describe=exception_text)
            if instance is None:
                return None
            self._toolsets[toolset] = instance
        return self._toolsets[toolset]


def _make_toolset(toolset: type, env: Any) -> Any:
    """Return an instance, for one episode or for none in particular; None if neither can be had."""
    try:
        return toolset(env)
    except TypeError:
        pass  # it takes no environment, perhaps
    try:
        return toolset()
    except Exception as exc:
        log_exception(exc)
        return None


def _bound(name: str, function: Callable[..., Any]) -> BoundTool:
    parse = _method_parser(function) if isinstance(function, MethodType) else _find_parser(function)
    exclusive = bool(getattr(function, "_env_tool_exclusive", False) or getattr(function, "_env_tool_terminal", False))
    options = ToolOptions(
        shared=bool(getattr(function, "_env_tool_shared", True)),
        concurrent=bool(getattr(function, "_env_tool_concurrent", False)) and not exclusive,
        exclusive=exclusive,
    )
    return BoundTool(function, parse, options, repr(name))


def _find_parser(function: Callable[..., Any]) -> Callable[[Mapping[str, Any]], BaseModel] | None:
    """Return what makes a tool's parameter of a call's input, or None if it takes none."""
    real = inspect.unwrap(function)
    parameters = [parameter for parameter in inspect.signature(real).parameters if parameter != "self"]
    return _parser(get_type_hints(real, include_extras=True)[parameters[0]]) if parameters else None


_method_parser = lru_cache(maxsize=256)(_find_parser)
"""For methods, of which a class has tens: to look through a signature takes longer than the rest of a small call."""


def _parser(model: type[BaseModel]) -> Callable[[Mapping[str, Any]], BaseModel]:
    def parse(tool_input: Mapping[str, Any]) -> BaseModel:
        try:
            return model(**tool_input)
        except ValidationError as exc:
            raise InvalidInput(shorten(str(exc.errors()), _MAX_INPUT_ERROR_CHARS)) from exc

    return parse
