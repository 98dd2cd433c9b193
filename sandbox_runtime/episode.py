"""One episode: an environment from its construction to its teardown, with the order among its tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from . import results
from .faults import call_author, exception_text
from .gate import Gate
from .messages import RunToolError, RunToolSuccess
from .served import BoundTool, InvalidInput, ServedClass, ServedEnvironment


class Episode:
    """Calls the tools of one environment; what else it is asked for, ``env`` is asked."""

    def __init__(self, name: str, env: ServedEnvironment) -> None:
        self.name = name
        self.env = env
        self._gate = Gate()
        self._finished = False

    @classmethod
    async def create(
        cls, env: ServedClass, task_spec: Mapping[str, Any], secrets: Mapping[str, str], toolset_name: str | None
    ) -> Episode:
        """Construct the environment."""
        return cls(env.name, await env.create(task_spec, secrets, toolset_name))

    async def call(self, name: str, tool_input: Mapping[str, Any]) -> RunToolSuccess | RunToolError:
        """Call a tool; what it refuses to run for is a ``RunToolError``, what goes wrong in it a ``RequestFault``."""
        tool = await self.env.tool(name)
        if isinstance(tool, RunToolError):
            return tool
        if self._finished:
            return _episode_finished(name)
        async with self._gate.entered(name, tool.options):
            if self._finished:  # by a call that this one has waited for
                return _episode_finished(name)
            try:
                returned = await _run(tool, tool_input)
            except InvalidInput as exc:
                return RunToolError(error=f"Tool input validation error: {exc}", reason="input_validation")
            output = results.tool_output(returned, tool.source, self.env.types)
            if self._finished:  # by a call that overlapped: the first end of an episode is the one that counts
                return _episode_finished(name)
            self._finished = output.finished
            return RunToolSuccess(output=output)


async def _run(tool: BoundTool, tool_input: Mapping[str, Any]) -> Any:
    # Clients show the message to the model, or match it: the tool's own words, nothing around them.
    return await call_author(_with_input(tool, tool_input), passing=(InvalidInput,), describe=exception_text)


def _with_input(tool: BoundTool, tool_input: Mapping[str, Any]) -> Callable[[], Any]:
    """Return the call as a function without parameters, async if the tool is; its model may run code of the author's."""
    function, parse = tool.function, tool.parse
    if parse is None:
        return function
    if inspect.iscoroutinefunction(function):

        async def run() -> Any:
            return await function(parse(tool_input))

        return run
    return lambda: function(parse(tool_input))


def _episode_finished(name: str) -> RunToolError:
    return RunToolError(
        error=f"{name!r} was not run: the episode has finished, and takes no more tool calls", reason="episode_finished"
    )
