"""The last hour in numbers: a sample every ten seconds, in memory, for the dashboard's chart."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from host.timeline import Tally

STEP_S = 10.0
HELD_S = 3600.0


@dataclass(frozen=True)
class Sample:
    """How it was at a time (seconds since the epoch), and what happened since the sample before."""

    at: float
    sessions: int
    queue: int
    calls: int
    errors: int
    created: int
    failed: int
    refused: int


class History:
    """The ring of samples. ``look`` returns how many sessions there are, and how many creations wait."""

    def __init__(self, tally: Tally, look: Callable[[], tuple[int, int]]) -> None:
        self._tally = tally
        self._look = look
        self._samples: deque[Sample] = deque(maxlen=int(HELD_S / STEP_S))
        self._before = Tally()

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            self.take(time.time())
            await anyio.sleep(STEP_S)

    def take(self, at: float) -> None:
        """Take a sample."""
        now, before = self._tally, self._before
        sessions, queue = self._look()
        self._samples.append(
            Sample(
                at,
                sessions,
                queue,
                now.calls - before.calls,
                now.errors - before.errors,
                now.created - before.created,
                now.failed - before.failed,
                now.refused - before.refused,
            )
        )
        self._before = Tally(now.calls, now.errors, now.created, now.failed, now.refused)

    def since(self, at: float) -> list[Sample]:
        """Return the samples taken after a time, the oldest first."""
        return [sample for sample in self._samples if sample.at > at]
