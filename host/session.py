"""One session: its sandbox, its calls, its end.

``Session.run`` is the whole life, in one task: leaving it leaves nothing behind. Whoever wants the session to end calls
``close`` with the reason, which cancels what the session lives by; the teardown and the removal that follow are shielded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled

from host import logs, tracing
from host.calls import Calls, KeptResults, Outcome, ToolCall
from host.engine import ContainerRef, Image
from host.episode import Episode
from host.errors import (
    EnvironmentFailed,
    Failure,
    HostError,
    Reason,
    SandboxFailed,
    SessionEnded,
    ShuttingDown,
    StillStarting,
)
from host.lifecycle import Clock, Event, State, expiry, move
from host.metrics import Start
from host.pool import Pool
from host.sandbox import Sandbox
from host.sandbox_host import SandboxHost
from host.timeline import Timeline
from sandbox_runtime.messages import Method

log = structlog.get_logger()

_MAX_TOOL_CHARS = 100
"""Of a tool's name, where it is told: a client may call it anything."""

_TOUCH_S = 5.0
"""How exactly the next host is told of the idle time, to save a file system call for each request."""


@dataclass(frozen=True)
class SessionSpec:
    """What a session is made from."""

    sid: str
    environment: str
    image: Image
    task_spec: Mapping[str, Any] = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)
    toolset_name: str | None = None
    task: str = ""
    """A few words that name the task, for whoever looks at the host; made from ``task_spec`` if there are none."""


@dataclass(frozen=True)
class Survivor:
    """What an earlier host left running: a session's container. Ages in seconds."""

    sid: str
    environment: str
    container: ContainerRef
    age_s: float
    idle_s: float


class Session:
    """One session. Made, or adopted, then run in a task of its own; asked by the routes meanwhile."""

    def __init__(
        self,
        origin: SessionSpec | Survivor,
        *,
        host: SandboxHost,
        pool: Pool,
        results: KeptResults,
        clock: Callable[[], float],
        timeline: Timeline,
    ) -> None:
        self.sid = origin.sid
        self.timeline = timeline
        self.environment = origin.environment
        self.failure: Failure | None = None
        self._origin: SessionSpec | Survivor | None = origin  # may hold secrets: let go of once they are passed on
        self._host = host
        self._settings = host.settings
        self._pool = pool
        self._clock = clock
        self._state = State.STARTING
        self._error: HostError | None = None
        self._sandbox: Sandbox | None = None
        self._episode: Episode | None = None
        self._calls = Calls(
            max_in_flight=self._settings.max_calls,
            linger_s=self._settings.result_linger_s,
            results=results,
        )
        self._tasks: TaskGroup | None = None
        self._alive = anyio.CancelScope()
        self._created = anyio.Event()
        self._settled = anyio.Event()  # set-up is over, one way or the other
        self._closed = anyio.Event()
        self._created_at = self._last_request_ended_at = clock()
        if isinstance(origin, Survivor):
            self._created_at -= origin.age_s
            self._last_request_ended_at -= origin.idle_s
        self._requests_in_flight = 0
        self._left_to_next = False

    @property
    def state(self) -> State:
        """Where it is in its life."""
        return self._state

    # --- Its life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live, from the wait for a place to the removal of the container. Never raises, unless cancelled."""
        structlog.contextvars.bind_contextvars(session=self.sid, environment=self.environment)
        try:
            async with AsyncExitStack() as stack:
                with self._alive:
                    await self._live(stack)
                await self._tear_down()
        except HostError as exc:
            self._error = exc
            if isinstance(self._origin, Survivor) and isinstance(exc, SandboxFailed):
                self.failure = self.failure or exc.failure  # it was there: whoever asks is told what became of it
        except Exception as exc:
            log.exception("session_crashed")
            self._error = HostError(f"internal error: {type(exc).__name__}")
        finally:
            self._end()

    async def _live(self, stack: AsyncExitStack) -> None:
        asked_at, trace = self._clock(), tracing.current()
        tracing.leave()
        with tracing.span("session.create", within=trace, session__id=self.sid):
            match self._origin:
                case SessionSpec() as spec:
                    sandbox, episode = await self._make(stack, spec)
                case Survivor() as survivor:
                    sandbox, episode = await self._adopt(stack, survivor)
                case None:
                    raise AssertionError("a session lives once")
            await checkpoint_if_cancelled()  # a close while the answer was on its way
        self._sandbox, self._episode = sandbox, episode
        logs.belongs(sandbox.name, self.sid)
        self._state = move(self._state, Event.CONSTRUCTED)
        self._created.set()
        start: Start = "adopted" if isinstance(self._origin, Survivor) else "warm" if sandbox.waited else "cold"
        seconds = self._clock() - asked_at
        self._host.metrics.session_created(self.environment, start, seconds)
        log.info("session_created", container=sandbox.name, start=start, seconds=round(seconds, 3))
        task_spec = self._origin.task_spec if isinstance(self._origin, SessionSpec) else None
        self.timeline.created(sandbox.name, start, seconds, task_spec)
        self._origin = None
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._set_up, episode, trace)
            self._tasks.start_soon(self._expire)
            self._adopt_calls(sandbox, self._tasks)
            self.close(await sandbox.wait_failed())

    async def _make(self, stack: AsyncExitStack, spec: SessionSpec) -> tuple[Sandbox, Episode]:
        sandbox = await stack.enter_async_context(self._pool.sandbox(spec.image))
        sandbox.assign(self.sid, spec.environment)
        episode = Episode(sandbox, self._settings, end=self.close)
        secrets = sandbox.rules.with_secrets(spec.secrets)
        await episode.construct(
            spec.environment, task_spec=spec.task_spec, secrets=secrets, toolset_name=spec.toolset_name
        )
        return sandbox, episode

    async def _adopt(self, stack: AsyncExitStack, survivor: Survivor) -> tuple[Sandbox, Episode]:
        stack.enter_context(self._pool.capacity.occupied())
        sandbox = await stack.enter_async_context(Sandbox.adopt(self._host, survivor.container))
        if sandbox.episode is None:
            raise SandboxFailed(Failure(Reason.START_FAILED, "its environment was not constructed when the host died"))
        return sandbox, Episode(sandbox, self._settings, end=self.close)

    def _adopt_calls(self, sandbox: Sandbox, tasks: TaskGroup) -> None:
        if (episode := sandbox.episode) is None:
            return
        for call_id in episode.forgotten_calls:
            self._calls.remember(call_id)
        for call_id in (*episode.finished_calls, *episode.running_calls):
            self.timeline.call_began(call_id, Method.CALL, {})
            tasks.start_soon(self._run_call, self._calls.adopt(call_id), Method.RESULT, {"call_id": call_id})

    async def _set_up(self, episode: Episode, trace: tracing.Trace | None) -> None:
        try:
            with tracing.span("session.setup", within=trace, session__id=self.sid):
                await episode.set_up()
        except SandboxFailed as exc:
            self.close(exc.failure)
        else:
            if self._state is State.SETTING_UP:  # not closed while the answer was on its way
                self._state = move(self._state, Event.SET_UP)
                self.timeline.set_up()
                self._settled.set()

    async def _expire(self) -> None:
        while True:
            in_flight = self._requests_in_flight + self._calls.in_flight
            clock = Clock(self._created_at, self._last_request_ended_at, in_flight)
            verdict = expiry(
                clock,
                now := self._clock(),
                idle_timeout_s=self._settings.idle_timeout_s,
                max_age_s=self._settings.max_age_s,
            )
            if isinstance(verdict, Failure):
                self.close(verdict)
                return
            await anyio.sleep(verdict - now)

    async def _tear_down(self) -> None:
        if self._episode is None or self._sandbox is None or self._sandbox.failed or self._left_to_next:
            return
        with self._host.patience.effort(self._settings.teardown_timeout_s + 1, vital=False):
            await self._episode.tear_down()

    def _end(self) -> None:
        if self.failure is None and self._error is None:
            self.failure = Failure(Reason.HOST_SHUTDOWN, "the server is shutting down")
        self._state = move(move(self._state, Event.CLOSE), Event.REMOVED)
        self._origin = None
        if self._sandbox is not None:
            logs.forget(self._sandbox.name)
        self._calls.close(self._last_words())
        for event in (self._created, self._settled, self._closed):
            event.set()
        self.timeline.ended(self.failure or self._error, left_to_next=self._left_to_next)
        reason = self.failure.reason if self.failure else getattr(self._error, "reason", "internal")
        if not self._left_to_next:
            self._host.metrics.session_ended(reason)
        log.info(
            "session_left_to_next_host" if self._left_to_next else "session_ended",
            reason=reason,
            calls=self._calls.started,
            seconds=round(self._clock() - self._created_at, 3),
        )

    # --- Ending it --------------------------------------------------------------------------------------------------

    def close(self, failure: Failure) -> None:
        """Let the session end for this reason; the first reason given holds. Does not wait."""
        if self.failure is None:
            self.failure = failure
        self._state = move(self._state, Event.CLOSE)
        self._settled.set()
        self._alive.cancel()

    def leave_to_next(self, failure: Failure) -> None:
        """Let the session end here and go on in the next host: its container lives on, and so do its calls.

        One that is still being made ends as by ``close``.
        """
        if self._sandbox is not None and self._state in (State.SETTING_UP, State.READY):
            self._left_to_next = True
            self._sandbox.leave_running()
        self.close(failure)

    async def wait_closed(self) -> None:
        """Wait until nothing of the session is left."""
        await self._closed.wait()

    # --- Asking it --------------------------------------------------------------------------------------------------

    async def wait_created(self) -> None:
        """Wait until the environment is constructed.

        Raises:
            HostError: it could not be; nothing of the session is left.
        """
        await self._created.wait()
        if self._state is State.CLOSED:
            if self.failure is not None:
                raise SessionEnded(self.failure)
            assert self._error is not None
            raise self._error

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Count as a request for the length of the block: the session is not idle."""
        self._requests_in_flight += 1
        try:
            yield
        finally:
            self._requests_in_flight -= 1
            self._touch()

    async def prompt(self) -> bytes:
        """Return the task's prompt (JSON of ``Blocks``), waiting for set-up if need be. Asks the environment exactly once.

        Raises:
            StillStarting: set-up is not done yet.
            SessionEnded: the session ended, before or meanwhile.
            EnvironmentFailed: the environment raised, or returned no blocks.
        """
        await self._wait_settled()
        asked_at = self._clock()
        prompt = await self._ask(Method.PROMPT)
        self.timeline.prompted(prompt, self._clock() - asked_at)
        return prompt

    async def messages(self) -> bytes:
        """Return the prompt as a conversation (JSON of a list of ``Message``); waits as ``prompt``.

        Raises:
            StillStarting, SessionEnded, EnvironmentFailed: as ``prompt``.
            NotFound: the environment has none.
        """
        await self._wait_settled()
        return await self._ask(Method.MESSAGES)

    async def task_tools(self) -> bytes:
        """Return the tools of this task (JSON of ``ListToolsOutput``), shared ones first.

        Waits for set-up only if the environment can't tell before.

        Raises:
            StillStarting, SessionEnded, EnvironmentFailed: as ``prompt``.
        """
        await self._created.wait()
        settled = self._settled.is_set()
        try:
            return await self._ask(Method.TASK_TOOLS)
        except EnvironmentFailed:
            if settled:
                raise
        await self._wait_settled()
        return await self._ask(Method.TASK_TOOLS)

    async def _wait_settled(self) -> None:
        with anyio.move_on_after(self._settings.prompt_wait_s):
            await self._settled.wait()
        if self._state in (State.STARTING, State.SETTING_UP):
            raise StillStarting

    async def _ask(self, method: Method) -> bytes:
        if self._episode is None or self._state not in (State.SETTING_UP, State.READY):
            raise self._ended()
        try:
            return await self._episode.ask(method)
        except SandboxFailed as exc:
            self.close(exc.failure)
            raise self._ended() from exc

    # --- Its calls --------------------------------------------------------------------------------------------------

    def call(self, name: str, tool_input: Mapping[str, Any], call_id: str | None) -> ToolCall:
        """Return the call of that id, or start one; it runs on whether or not anybody waits for it.

        Raises:
            UnknownCall: the id belongs to a call whose result is gone.
            TooManyCalls: the session has as many in flight as it may.
            StillStarting: the session is not created yet; nothing was run.
            SessionEnded: the session ended.
        """
        return self._call(Method.CALL, {"name": name, "input": tool_input}, call_id)

    def score_group(self, candidates: Sequence[Mapping[str, Any]], call_id: str | None) -> ToolCall:
        """Have rollouts of this task scored against each other: a call like any other, and raises as ``call``."""
        return self._call(Method.SCORE_GROUP, {"candidates": candidates}, call_id)

    def _call(self, method: Method, params: Mapping[str, Any], call_id: str | None) -> ToolCall:
        if self._state is State.STARTING:
            raise StillStarting
        if self._tasks is None or self._state not in (State.SETTING_UP, State.READY):
            raise self._ended()
        if call_id is not None and (known := self._calls.find(call_id)):
            return known
        call = self._calls.start(call_id)
        self.timeline.call_began(call.id, method, params)
        self._tasks.start_soon(self._run_call, call, method, {"call_id": call.id, **params})
        return call

    async def _run_call(self, call: ToolCall, method: Method, params: Mapping[str, Any]) -> None:
        structlog.contextvars.bind_contextvars(session=self.sid, environment=self.environment, call=call.id)
        asked_at = self._clock()
        outcome: Outcome | None = None
        try:
            await self._settled.wait()
            await checkpoint_if_cancelled()  # settled by an end: nothing may run in an environment that is not set up
            outcome = await self._call_outcome(method, params)
        finally:
            if outcome is None:  # cancelled, because the session is closing
                outcome = self._last_words()
            self._calls.finish(call, outcome)
            self.timeline.call_ended(call.id, outcome)
            self._host.metrics.call_ended(self.environment, outcome.event, self._clock() - asked_at)
            self._touch()

    async def _call_outcome(self, method: Method, params: Mapping[str, Any]) -> Outcome:
        assert self._episode is not None
        tool = str(params.get("name", method))[:_MAX_TOOL_CHARS]
        span = tracing.span(
            f"execute_tool {tool}",
            gen_ai__operation__name="execute_tool",
            gen_ai__tool__name=tool,
            gen_ai__tool__call__id=params["call_id"],
            session__id=self.sid,
        )
        try:
            with span:
                outcome = await self._episode.call(method, params)
                if outcome.event == "error":
                    span.fail("tool_error")
                return outcome
        except SandboxFailed as exc:
            if self._left_to_next:
                return self._last_words()
            self.close(exc.failure)  # before anybody hears of it, and finds the session alive
            return Outcome("error", str(exc.failure))

    # --- Common -----------------------------------------------------------------------------------------------------

    def _touch(self) -> None:
        now = self._clock()
        if self._sandbox is not None and now - self._last_request_ended_at >= _TOUCH_S and not self._sandbox.failed:
            self._sandbox.touch()
        self._last_request_ended_at = now

    def _last_words(self) -> Outcome:
        """What a call is told that ends because the session does."""
        if self._left_to_next:
            return Outcome("cut")
        return Outcome("error", str(self.failure or self._error or "the call was cancelled"))

    def _ended(self) -> HostError:
        if self._left_to_next:
            return ShuttingDown()
        return SessionEnded(self.failure or Failure(Reason.DELETED, "the session ended"))
