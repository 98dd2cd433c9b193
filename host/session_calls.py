"""The tool calls of one session, from the request for one to its outcome: each has one, whatever becomes of the session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import structlog

from host import tracing
from host.calls import Calls, KeptResults, Outcome, ToolCall
from host.ending import Ending
from host.episode import Episode
from host.errors import Failure, SandboxFailed
from host.metrics import Metrics
from host.timeline import Timeline
from sandbox_runtime.messages import EpisodeState, Method

_MAX_TOOL_CHARS = 100
"""Of a tool's name, where it is told: a client may call it anything."""

_MAX_ADOPTED = 1000
"""A runtime has 256 that run at the most, and those that have ended within a minute."""


class SessionCalls:
    """Runs a session's calls in its task group, once it has one.

    Args:
        max_in_flight: how many may be in flight.
        linger_s: how long an outcome is kept for a client that reconnects.
        results: the memory for outcomes that are kept.
        settled: set when set-up is over, one way or the other; no call is run before.
        ending: what a call is told that the session's end cuts off.
        close: told to end the session, when a call finds that its sandbox is dead.
        on_end: told when a call has ended.
    """

    def __init__(
        self,
        *,
        max_in_flight: int,
        linger_s: float,
        results: KeptResults,
        settled: anyio.Event,
        ending: Ending,
        close: Callable[[Failure], None],
        on_end: Callable[[], None],
        timeline: Timeline,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._calls = Calls(max_in_flight=max_in_flight, linger_s=linger_s, results=results)
        self._settled = settled
        self._ending = ending
        self._close = close
        self._on_end = on_end
        self._timeline = timeline
        self._metrics = metrics
        self._clock = clock
        self._tasks: asyncio.TaskGroup | None = None
        self._episode: Episode | None = None

    @property
    def started(self) -> int:
        """How many there were."""
        return self._calls.started

    @property
    def in_flight(self) -> int:
        """How many have no outcome yet."""
        return self._calls.in_flight

    def open(self, tasks: asyncio.TaskGroup, episode: Episode) -> None:
        """Run calls from now on, in a group of tasks that cost little to start."""
        self._tasks, self._episode = tasks, episode

    def adopt(self, left: EpisodeState) -> None:
        """Take over the calls of an episode that an earlier host left: wait for their outcomes.

        Which there are the runtime says, and may make up: each is taken once, and of too many the last.
        """
        known = list(dict.fromkeys((*left.finished_calls, *left.running_calls)))
        for call_id in (*left.forgotten_calls, *known[:-_MAX_ADOPTED]):
            self._calls.remember(call_id)
        for call_id in known[-_MAX_ADOPTED:]:
            self._timeline.call_began(call_id, Method.CALL, {})
            self._run_soon(self._calls.adopt(call_id), Method.RESULT, {"call_id": call_id})

    def call(self, method: Method, params: Mapping[str, Any], call_id: str | None) -> ToolCall:
        """Return the call of that id, or start one.

        Raises:
            UnknownCall: the id belongs to a call whose result is gone.
            TooManyCalls: as many are in flight as may be.
        """
        if call_id is not None and (known := self._calls.find(call_id)):
            return known
        call = self._calls.start(call_id)
        self._run_soon(call, method, {"call_id": call.id, **params})
        asyncio.get_running_loop().call_soon(self._timeline.call_began, call.id, method, params)  # once it is sent
        return call

    def close(self) -> None:
        """End whatever is in flight, and forget everything."""
        self._calls.close(self._ending.last_words())

    def _run_soon(self, call: ToolCall, method: Method, params: Mapping[str, Any]) -> None:
        assert self._tasks is not None and self._episode is not None, "a call before the session is created"
        self._tasks.create_task(self._run(self._episode, call, method, params))

    async def _run(self, episode: Episode, call: ToolCall, method: Method, params: Mapping[str, Any]) -> None:
        sid, environment = self._timeline.sid, self._timeline.environment
        structlog.contextvars.bind_contextvars(session=sid, environment=environment, call=call.id)
        asked_at = self._clock()
        outcome: Outcome | None = None
        try:
            if not self._settled.is_set():  # to wait for what is set costs a turn of the event loop
                await self._settled.wait()
            # Settled by an end, it is not set up, and nothing may run in it.
            if self._ending.failure is None:
                outcome = await self._outcome(episode, method, params)
        finally:
            if outcome is None:  # not begun, or cancelled, because the session is closing
                outcome = self._ending.last_words()
            call.finish(outcome)
            # Right after the answer to whoever waits for it, and before anything more is read from anybody.
            asyncio.get_running_loop().call_soon(self._ended, call, outcome, self._clock() - asked_at)

    def _ended(self, call: ToolCall, outcome: Outcome, seconds: float) -> None:
        self._calls.finish(call, outcome)
        self._timeline.call_ended(call.id, outcome)
        self._metrics.call_ended(self._timeline.environment, outcome.event, seconds)
        self._on_end()

    async def _outcome(self, episode: Episode, method: Method, params: Mapping[str, Any]) -> Outcome:
        tool = str(params.get("name", method))[:_MAX_TOOL_CHARS]
        span = tracing.span(
            f"execute_tool {tool}",
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name=tool,
            gen_ai__tool__call__id=params["call_id"],
            session__id=self._timeline.sid,
        )
        try:
            with span:
                outcome = await episode.call(method, params)
                if outcome.event == "error":
                    span.fail("tool_error")
                return outcome
        except SandboxFailed as exc:
            if self._ending.left_to_next:
                return self._ending.last_words()
            self._close(exc.failure)  # before anybody hears of it, and finds the session alive
            return Outcome("error", str(exc.failure))
