"""One session: its sandbox, its calls, its end.

``Session.run`` is the whole life, in one task: leaving it leaves nothing behind. Whoever wants the session to end calls
``close`` with the reason, which cancels what the session lives by; the teardown and the removal that follow are shielded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Any

import anyio
import structlog
from anyio.lowlevel import checkpoint_if_cancelled

from host import logs, tracing
from host.attendance import Attendance
from host.calls import KeptResults, ToolCall
from host.ending import Ending
from host.episode import Episode
from host.errors import EnvironmentFailed, Failure, HostError, Reason, SandboxFailed, StillStarting
from host.lifecycle import Event, State, move
from host.metrics import Start
from host.origin import SessionSpec, Survivor
from host.pool import Pool
from host.sandbox import Sandbox
from host.sandbox_host import SandboxHost
from host.session_calls import SessionCalls
from host.timeline import Timeline
from sandbox_runtime.messages import Method

log = structlog.get_logger()


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
        self._origin: SessionSpec | Survivor | None = origin  # may hold secrets: let go of once they are passed on
        self._host = host
        self._settings = host.settings
        self._pool = pool
        self._clock = clock
        self._state = State.STARTING
        self._ending = Ending()
        self._sandbox: Sandbox | None = None
        self._episode: Episode | None = None
        self._alive = anyio.CancelScope()
        self._created = anyio.Event()
        self._settled = anyio.Event()  # set-up is over, one way or the other
        self._closed = anyio.Event()
        age_s, idle_s = (origin.age_s, origin.idle_s) if isinstance(origin, Survivor) else (0.0, 0.0)
        self._attendance = Attendance(clock, age_s=age_s, idle_s=idle_s, on_use=self._tell_next_host)
        self._calls = SessionCalls(
            max_in_flight=self._settings.max_calls,
            linger_s=self._settings.result_linger_s,
            results=results,
            settled=self._settled,
            ending=self._ending,
            close=self.close,
            on_end=self._attendance.used,
            timeline=timeline,
            metrics=host.metrics,
            clock=clock,
        )

    @property
    def state(self) -> State:
        """Where it is in its life."""
        return self._state

    @property
    def failure(self) -> Failure | None:
        """Why it ends, if it does."""
        return self._ending.failure

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
            self._ending.error = exc
            if isinstance(self._origin, Survivor) and isinstance(exc, SandboxFailed):
                self._ending.because(exc.failure)  # it was there: whoever asks is told what became of it
        except Exception as exc:
            log.exception("session_crashed")
            self._ending.error = HostError(f"internal error: {type(exc).__name__}")
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
        async with anyio.create_task_group() as tasks, asyncio.TaskGroup() as calls:
            tasks.start_soon(self._set_up, episode, trace)
            tasks.start_soon(self._expire)
            self._calls.open(calls, episode)
            if sandbox.episode is not None:
                self._calls.adopt(sandbox.episode)
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
        settings = self._settings
        over = await self._attendance.wait_over(
            lambda: self._calls.in_flight, idle_timeout_s=settings.idle_timeout_s, max_age_s=settings.max_age_s
        )
        self.close(over)

    def _tell_next_host(self) -> None:
        if self._sandbox is not None and not self._sandbox.failed:
            self._sandbox.touch()

    async def _tear_down(self) -> None:
        if self._episode is None or self._sandbox is None or self._sandbox.failed or self._ending.left_to_next:
            return
        with self._host.patience.effort(self._settings.teardown_timeout_s + 1, vital=False):
            await self._episode.tear_down()

    def _end(self) -> None:
        ending = self._ending
        if ending.error is None:
            ending.because(Failure(Reason.HOST_SHUTDOWN, "the server is shutting down"))
        self._state = move(move(self._state, Event.CLOSE), Event.REMOVED)
        self._origin = None
        if self._sandbox is not None:
            logs.forget(self._sandbox.name)
        self._calls.close()
        for event in (self._created, self._settled, self._closed):
            event.set()
        self.timeline.ended(ending.failure or ending.error, left_to_next=ending.left_to_next)
        if not ending.left_to_next:
            self._host.metrics.session_ended(ending.reason)
        log.info(
            "session_left_to_next_host" if ending.left_to_next else "session_ended",
            reason=ending.reason,
            calls=self._calls.started,
            seconds=round(self._attendance.age_s, 3),
        )

    # --- Ending it --------------------------------------------------------------------------------------------------

    def close(self, failure: Failure) -> None:
        """Let the session end for this reason; the first reason given holds. Does not wait."""
        self._ending.because(failure)
        self._state = move(self._state, Event.CLOSE)
        self._settled.set()
        self._alive.cancel()

    def leave_to_next(self, failure: Failure) -> None:
        """Let the session end here and go on in the next host: its container lives on, and so do its calls.

        One that is still being made ends as by ``close``.
        """
        if self._sandbox is not None and self._state in (State.SETTING_UP, State.READY):
            self._ending.left_to_next = True
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
            raise self._ending.of_creation()

    def request(self) -> AbstractContextManager[None]:
        """Count as a request for the length of the block: the session is not idle."""
        return self._attendance.request()

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
            raise self._ending.refusal()
        try:
            return await self._episode.ask(method)
        except SandboxFailed as exc:
            self.close(exc.failure)
            raise self._ending.refusal() from exc

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
        if self._state not in (State.SETTING_UP, State.READY):
            raise self._ending.refusal()
        return self._calls.call(method, params, call_id)
