"""How many sessions are asked for at a time. Pure: ``now``, in seconds, is an argument."""

from __future__ import annotations

import math
from collections import deque

AT_A_TIME_S = 1.0
"""About what starting a few containers takes: whoever comes within it finds none that was started since."""

HALF_LIFE_S = 300.0
"""Trainers come back with the next batch after minutes."""

_MOST = 1024


class Demand:
    """What was asked for of one kind. Follows a rise at once, and forgets it by half in ``HALF_LIFE_S``."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_MOST)
        self._peak = 0.0
        self._peak_at = 0.0

    def note(self, now: float) -> None:
        """Count one that is asked for now."""
        self._recent.append(now)
        while self._recent[0] < now - AT_A_TIME_S:
            self._recent.popleft()
        if len(self._recent) >= self.level(now):
            self._peak, self._peak_at = float(len(self._recent)), now

    def level(self, now: float) -> float:
        """Return how many come at a time, as far as is remembered."""
        return self._peak * math.exp2((self._peak_at - now) / HALF_LIFE_S)
