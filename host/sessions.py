"""All sessions by id: creating, finding, ending them; and what is remembered of those that ended."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from anyio.abc import TaskGroup

from host.calls import KeptResults
from host.engine import LABEL_IMAGE
from host.errors import (
    CapacityExceeded,
    EngineDown,
    Failure,
    HostError,
    Reason,
    SessionEnded,
    SessionExists,
    ShuttingDown,
    UnknownSession,
)
from host.lifecycle import State
from host.origin import SessionSpec, Survivor
from host.pool import Pool
from host.sandbox_host import SandboxHost
from host.session import Session
from host.timeline import label
from host.timelines import Timelines

_REMEMBER_S = 3600.0
_MAX_REMEMBERED = 10_000
"""Ended sessions that are still answered with 410 and the reason; a line of text each."""


class Sessions:
    """The registry. Each session runs in a task of ``tasks``, which the server owns."""

    def __init__(
        self,
        *,
        host: SandboxHost,
        pool: Pool,
        tasks: TaskGroup,
        clock: Callable[[], float],
        timelines: Timelines | None = None,
    ) -> None:
        self._host = host
        self._pool = pool
        self._tasks = tasks
        self._clock = clock
        self._results = KeptResults(host.settings.max_kept_results)
        self.metrics = host.metrics
        self.timelines = timelines or Timelines()
        self._live: dict[str, Session] = {}
        self._ended: OrderedDict[str, tuple[Failure, float]] = OrderedDict()
        self._closing = False

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._live.values()))

    def count_by_state(self) -> dict[str, int]:
        """Return how many sessions there are in each state, by its name in lower case."""
        counts = {state.name.lower(): 0 for state in State if state is not State.CLOSED}
        for session in self._live.values():
            if session.state is not State.CLOSED:
                counts[session.state.name.lower()] += 1
        return counts

    def __len__(self) -> int:
        return len(self._live)

    async def create(self, spec: SessionSpec) -> Session:
        """Start a session and wait until its environment is constructed. The id is taken from the first moment.

        Raises:
            SessionExists: the id is in use.
            HostError: the session could not be made; the id is free again.
        """
        if self._closing:
            raise ShuttingDown
        if spec.sid in self._live:
            raise SessionExists
        self._ended.pop(spec.sid, None)
        session = self._session(spec)
        self._live[spec.sid] = session
        self._tasks.start_soon(self._run, session)
        with session.request():
            await session.wait_created()
        return session

    async def adopt(self, survivors: Iterable[Survivor]) -> int:
        """Go on with what an earlier host left running; return with how many that worked. Those that didn't are removed.

        Raises nothing: what became of a session is told to whoever asks for it.
        """
        sessions = []
        for survivor in survivors:
            session = self._session(survivor)
            self._live[survivor.sid] = session
            self._tasks.start_soon(self._run, session)
            sessions.append(session)
        adopted = 0
        for session in sessions:
            with contextlib.suppress(HostError):
                await session.wait_created()
                adopted += 1
        return adopted

    def remember(self, sid: str, failure: Failure) -> None:
        """Answer for a session of which only its end is known."""
        self._ended[sid] = (failure, self._clock())
        self._forget_old()

    def ended_within(self, seconds: float) -> list[str]:
        """Return the ids of those that have ended so lately, and are not in use again."""
        since = self._clock() - seconds
        return [sid for sid, _ in takewhile(lambda entry: entry[1][1] >= since, reversed(self._ended.items()))]

    @property
    def kept_bytes(self) -> int:
        """What the results take that are kept for clients that reconnect."""
        return self._results.held_bytes

    def why_not_ready(self) -> HostError | None:
        """Return what keeps a new session from being created now, None if nothing does."""
        if self._closing:
            return ShuttingDown()
        if (problem := self._host.engine.problem) is not None:
            return EngineDown(f"the Docker engine doesn't answer: {problem}")
        if self._pool.room <= 0:
            return CapacityExceeded(f"all {self._pool.capacity.limit} sessions are in use")
        return None

    def check_free(self, sid: str) -> None:
        """Raise ``SessionExists`` if the id is in use: before work is done for a creation that can't be."""
        if sid in self._live:
            raise SessionExists

    def get(self, sid: str) -> Session:
        """Return the session.

        Raises:
            SessionEnded: it was there and has ended, or is ending.
            UnknownSession: it was never there, or not within memory.
        """
        if session := self._live.get(sid):
            if session.state is State.CLOSING and session.failure is not None:
                raise SessionEnded(session.failure)
            return session
        self._forget_old()
        if ended := self._ended.get(sid):
            raise SessionEnded(ended[0])
        raise UnknownSession

    async def delete(self, sid: str) -> None:
        """End a session and wait until nothing is left of it; fine if there is none."""
        if session := self._live.get(sid):
            session.close(Failure(Reason.DELETED, "the session was deleted"))
            await session.wait_closed()

    async def close_all(self, failure: Failure) -> None:
        """End all sessions for the same reason, take no more, and wait until nothing is left of any."""
        self._closing = True
        for session in self:
            session.close(failure)
        for session in self:
            await session.wait_closed()

    async def leave_all_to_next(self, failure: Failure) -> None:
        """Let go of all sessions so that the next host can go on with them; take no more."""
        self._closing = True
        for session in self:
            session.leave_to_next(failure)
        for session in self:
            await session.wait_closed()

    def _session(self, origin: SessionSpec | Survivor) -> Session:
        begin = self.timelines.begin
        if isinstance(origin, SessionSpec):
            tag = origin.image.tag
            secrets = (*self._host.rules(tag).secrets.values(), *origin.secrets.values())
            task = origin.task or label(origin.task_spec)
            timeline = begin(origin.sid, origin.environment, tag, task=task, secrets=secrets)
        else:
            tag = origin.container.labels.get(LABEL_IMAGE, "")
            secrets = tuple(self._host.rules(tag).secrets.values())
            timeline = begin(origin.sid, origin.environment, tag, secrets=secrets, adopted_age_s=origin.age_s)
        return Session(
            origin, host=self._host, pool=self._pool, results=self._results, clock=self._clock, timeline=timeline
        )

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        finally:
            del self._live[session.sid]
            self.timelines.finish(session.timeline)
            if session.failure is not None:
                self.remember(session.sid, session.failure)

    def _forget_old(self) -> None:
        oldest_kept = self._clock() - _REMEMBER_S
        while self._ended:
            _failure, ended_at = next(iter(self._ended.values()))
            if ended_at >= oldest_kept and len(self._ended) <= _MAX_REMEMBERED:
                return
            self._ended.popitem(last=False)
