"""What clients and environments said, kept in memory for a while: bounded for each session and for all; the oldest go first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LeftOut:
    """In place of a piece that is not kept; ``why`` in words."""

    why: str


Piece = bytes | LeftOut
"""JSON, or why there is none."""

_OVERHEAD_BYTES = 400
"""What keeping a piece costs beside its bytes."""


@dataclass
class _Session:
    steps: OrderedDict[int, dict[str, Piece]] = field(default_factory=OrderedDict)
    held_bytes: int = 0


class Pieces:
    """All that is kept, by a session's ref, a step's number and the piece's name. For any thread."""

    def __init__(self, *, max_bytes: int, max_session_bytes: int) -> None:
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._max_session_bytes = max_session_bytes
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._order: OrderedDict[tuple[str, int], None] = OrderedDict()

    def add(self, ref: str, number: int, pieces: Mapping[str, Piece]) -> None:
        """Keep pieces of one step; older ones make room."""
        if not pieces:
            return
        with self._lock:
            session = self._sessions.setdefault(ref, _Session())
            session.steps.setdefault(number, {}).update(pieces)
            self._order[ref, number] = None
            self._count(session, sum(map(_size, pieces.values())))
            while session.held_bytes > self._max_session_bytes and session.steps:
                self._drop(ref, next(iter(session.steps)))
            while self.held_bytes > self._max_bytes:
                self._drop(*next(iter(self._order)))

    def get(self, ref: str, number: int) -> Mapping[str, Piece]:
        """Return what is kept of one step."""
        with self._lock:
            session = self._sessions.get(ref)
            return dict(session.steps.get(number, {})) if session else {}

    def forget(self, ref: str) -> None:
        """Drop all of a session."""
        with self._lock:
            for number in tuple(self._sessions[ref].steps) if ref in self._sessions else ():
                self._drop(ref, number)

    def _drop(self, ref: str, number: int) -> None:
        session = self._sessions[ref]
        self._count(session, -sum(map(_size, session.steps.pop(number).values())))
        del self._order[ref, number]
        if not session.steps:
            del self._sessions[ref]

    def _count(self, session: _Session, size: int) -> None:
        session.held_bytes += size
        self.held_bytes += size


def _size(piece: Piece) -> int:
    return _OVERHEAD_BYTES + (len(piece) if isinstance(piece, bytes) else 0)
