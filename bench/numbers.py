"""Statistics, and what is to be reached. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import fmean, median
from typing import Any


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` of all are not above (nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    rank = max(1, math.ceil(len(values) * percent / 100))
    return sorted(values)[rank - 1]


@dataclass(frozen=True)
class Summary:
    """What is told of many measurements of one thing, in its unit."""

    n: int
    p50: float
    p99: float
    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Sum up.

        Raises:
            ValueError: there are no values.
        """
        if not values:
            raise ValueError("no values")
        return cls(len(values), median(values), percentile(values, 99), fmean(values), min(values), max(values))

    def as_json(self) -> dict[str, Any]:
        """Return it for the results file."""
        return asdict(self)


class Verdict(StrEnum):
    """What came of a row."""

    OK = "ok"
    MISSED = "missed"
    STATED = "stated"  # there is nothing to be reached, only to be known
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Target:
    """A limit for one number, which is to be at most (else at least) that. ``words`` say of what."""

    limit: float
    words: str
    at_most: bool = True

    def judge(self, value: float) -> Verdict:
        """Return whether the value is on the right side."""
        good = value <= self.limit if self.at_most else value >= self.limit
        return Verdict.OK if good else Verdict.MISSED

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.words}"


def ms(seconds: float) -> str:
    """Return a time in milliseconds, to three digits or so; a dash for NaN."""
    if math.isnan(seconds):
        return "–"
    value = seconds * 1000
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def mb(size_bytes: float) -> str:
    """Return a size in megabytes (of 1,000,000 bytes)."""
    value = size_bytes / 1e6
    return f"{value:.0f} MB" if value >= 100 else f"{value:.1f} MB" if value >= 1 else f"{value:.2f} MB"
