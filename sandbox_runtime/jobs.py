"""Jobs: the work behind requests. A job outlives the connection that asked for it, and runs once however often it is asked for.

A set-up and a tool call have a key, so that a host that comes back can ask for the outcome. Outcomes of calls are kept for a
while, for the case that the host that got one died before the client had it; after that only their ids are.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any

from .answering import Answer
from .scope import CallScope, current_scope

KEEP_S = 60.0
"""As long as a host keeps a result for a client that reconnects."""

MAX_KEPT_BYTES = 64 * 1024 * 1024
MAX_REMEMBERED_IDS = 10_000


class Job:
    """One piece of work: running until ``answer`` is there."""

    def __init__(self) -> None:
        self.scope = CallScope()
        self.answer: Answer | None = None
        self._on_done: list[Callable[[Answer], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._running = False  # a task cancelled before its first step would never get to answer

    def start(self, work: Callable[[CallScope], Coroutine[Any, Any, Answer]]) -> None:
        """Run ``work`` in a task, which gives the answer; it must not raise."""
        self._task = asyncio.create_task(self._run(work))

    def when_done(self, tell: Callable[[Answer], None]) -> None:
        """Have ``tell`` called with the answer, at once if it is there."""
        if self.answer is not None:
            tell(self.answer)
        else:
            self._on_done.append(tell)

    def cancel(self) -> asyncio.Task[None] | None:
        """End what the job has started; it answers when that is over. Return its task if it still runs."""
        if self.answer is not None:
            return None
        self.scope.cancel()
        if self._running and self._task is not None:
            self._task.cancel()
        return self._task

    async def _run(self, work: Callable[[CallScope], Coroutine[Any, Any, Answer]]) -> None:
        self._running = True
        current_scope.set(self.scope)
        self.answer = await work(self.scope)
        for tell in self._on_done:
            tell(self.answer)
        self._on_done.clear()


class Jobs:
    """All jobs, those with a key by it."""

    def __init__(self) -> None:
        self._running: set[Job] = set()
        self._setup: Job | None = None
        self._calls: dict[str, Job] = {}
        self._kept: OrderedDict[str, tuple[float, int]] = OrderedDict()  # finished calls: when, and how large
        self._kept_bytes = 0
        self._forgotten: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def setup(self) -> Job | None:
        """The set-up, if it was asked for."""
        return self._setup

    def call(self, call_id: str) -> Job | None:
        """Return the call of that id, if it runs or its answer is kept."""
        self._drop_old()
        return self._calls.get(call_id)

    def is_forgotten(self, call_id: str) -> bool:
        """True for a call that ran and whose answer is kept no longer."""
        return call_id in self._forgotten

    def add(self, *, setup: bool = False, call_id: str | None = None) -> Job:
        """Return a new job, to be started."""
        job = Job()
        self._running.add(job)
        if setup:
            self._setup = job
        if call_id is not None:
            self._calls[call_id] = job
        job.when_done(lambda answer: self._done(job, call_id, answer))
        return job

    def call_ids(self) -> tuple[list[str], list[str], list[str]]:
        """Return the ids of the calls that are running, finished and forgotten."""
        self._drop_old()
        running = [call_id for call_id in self._calls if call_id not in self._kept]
        return running, list(self._kept), list(self._forgotten)

    def cancel_all(self) -> list[asyncio.Task[None]]:
        """Cancel whatever runs; return the tasks to wait for."""
        tasks = [job.cancel() for job in tuple(self._running)]
        return [task for task in tasks if task is not None]

    def _done(self, job: Job, call_id: str | None, answer: Answer) -> None:
        self._running.discard(job)
        if call_id is None:
            return
        size = len(answer.member)
        self._kept[call_id] = (time.monotonic(), size)
        self._kept_bytes += size
        self._drop_old()

    def _drop_old(self) -> None:
        oldest = time.monotonic() - KEEP_S
        while self._kept:
            call_id, (finished_at, size) = next(iter(self._kept.items()))
            if finished_at >= oldest and self._kept_bytes <= MAX_KEPT_BYTES:
                return
            del self._kept[call_id], self._calls[call_id]
            self._kept_bytes -= size
            self._forgotten[call_id] = None
            if len(self._forgotten) > MAX_REMEMBERED_IDS:
                self._forgotten.popitem(last=False)
