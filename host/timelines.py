"""The timelines of sessions: those that live, and for an hour the last 500 that ended; and what all come to, counted."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from secrets import token_hex

from host.errors import Reason
from host.recording import Recorder
from host.timeline import Tally, Timeline

KEPT_S = 3600.0
_MAX_ENDED = 500
"""A kilobyte and a half each. Who wants more of them has them recorded in a directory."""

_MAX_STEPS = 100_000
"""Of all sessions that ended: some 5 MB."""

ORDERLY = frozenset({Reason.DELETED, Reason.HOST_SHUTDOWN})
"""Ends that somebody meant. A session that expired was forgotten by its client, which is no failure of its own either."""


class Timelines:
    """Begun and finished by ``Sessions``; looked at by the dashboard."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder
        self.tally = Tally()
        self._live: dict[str, Timeline] = {}
        self._ended: OrderedDict[str, Timeline] = OrderedDict()
        self._ended_steps = 0

    def begin(
        self,
        sid: str,
        environment: str,
        image: str,
        *,
        task: str = "",
        secrets: Iterable[str] = (),
        adopted_age_s: float | None = None,
    ) -> Timeline:
        """Begin a session's timeline.

        Args:
            task: a few words that name its task.
            secrets: what is not to be kept, wherever it occurs.
            adopted_age_s: its age in seconds, if an earlier host made it.
        """
        timeline = Timeline(
            token_hex(8),
            sid,
            environment,
            image,
            task=task,
            secrets=secrets,
            age_s=adopted_age_s or 0.0,
            tally=self.tally,
        )
        self._live[timeline.ref] = timeline
        if self.recorder is not None:
            self.recorder.begin(timeline, resumed=adopted_age_s is not None)
        return timeline

    def finish(self, timeline: Timeline) -> None:
        """Its session is gone. One that could not be made for want of a place is only counted: it is asked for again."""
        del self._live[timeline.ref]
        reason = timeline.failure[0] if timeline.failure else "internal"
        if reason == Reason.CAPACITY:
            self.tally.refused += 1
            self._forget(timeline)
            return
        if reason not in ORDERLY and reason != Reason.EXPIRED:
            self.tally.failed += 1
        self._ended[timeline.ref] = timeline
        self._ended_steps += timeline.length
        self._forget_old()

    def find(self, ref: str) -> Timeline | None:
        """Return a timeline by its ref."""
        return self._live.get(ref) or self._ended.get(ref)

    def ended(self) -> Iterator[Timeline]:
        """Yield those that ended within the last hour, the latest first."""
        self._forget_old()
        return iter(tuple(reversed(self._ended.values())))

    def reasons(self) -> dict[str, int]:
        """Return why sessions ended within the last hour: how many, by the word of the failure vocabulary."""
        return dict(Counter(timeline.failure[0] for timeline in self.ended() if timeline.failure).most_common())

    def _forget_old(self) -> None:
        oldest_kept = time.time() - KEPT_S
        while self._ended:
            oldest = next(iter(self._ended.values()))
            if (
                (oldest.ended_at or 0.0) >= oldest_kept
                and len(self._ended) <= _MAX_ENDED
                and self._ended_steps <= _MAX_STEPS
            ):
                return
            self._ended.popitem(last=False)
            self._ended_steps -= oldest.length
            self._forget(oldest)

    def _forget(self, timeline: Timeline) -> None:
        if self.recorder is not None:
            self.recorder.forget(timeline)
