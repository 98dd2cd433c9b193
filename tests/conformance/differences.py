"""The table of all differences that are meant. An answer that differs in any other way fails the suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .replies import Delta, Exchange


@dataclass(frozen=True)
class Difference:
    """One difference on purpose.

    ``theirs`` says what each SDK's server does where it differs from ``ours``; ``covers`` tells whether one place in one
    exchange is this difference.
    """

    name: str
    theirs: Mapping[str, str]
    ours: str
    why: str
    covers: Callable[[Exchange, Delta], bool]


TABLE: tuple[Difference, ...] = ()
