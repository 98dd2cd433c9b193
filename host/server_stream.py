"""Bytes → events: the stream of somebody else's server, read by the rules of Server-Sent Events. No I/O.

Lines end in CR, LF or both, wherever the pieces do; one space after the colon is no data; a comment, an unknown field
or an unknown event means nothing. What is endless (a line, a stream, empty lines) is an error before it is a burden.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

_MAX_LINES = 250_000
"""Of one stream: the largest result in the usual chunks takes 50,000, a comment every second for a day 170,000."""

_SLACK_BYTES = 1024 * 1024
"""For what is not data: names of fields, comments, line ends."""


class BadStream(Exception):
    """The stream breaks a rule, or a limit."""


@dataclass(frozen=True)
class StreamEvent:
    """One event: its name (``message`` if it has none) and its data."""

    name: str
    data: bytes


class EventReader:
    """Feed it whatever the connection gave, in pieces of any size. ``max_bytes`` bounds all data together."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes + max_bytes // 8 + _SLACK_BYTES
        self._bytes = 0
        self._lines = 0
        self._line = bytearray()  # one that is not finished
        self._after_cr = False
        self._event = ""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[StreamEvent]:
        """Return the events that a piece completes, in order.

        Raises:
            BadStream: the stream is over a limit.
        """
        if not piece:
            return []
        self._bytes += len(piece)
        if self._bytes > self._max_bytes:
            raise BadStream(f"a stream of more than {self._max_bytes} bytes")
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r") if piece else False
        events: list[StreamEvent] = []
        for line in piece.splitlines(keepends=True):
            if not line.endswith((b"\n", b"\r")):
                self._line += line
            else:
                if self._line:
                    line = bytes(self._line + line)
                    self._line.clear()
                whole = line.rstrip(b"\r\n")
                self._lines += 1
                if (event := self._read(whole)) is not None:
                    events.append(event)
        if self._lines > _MAX_LINES:
            raise BadStream(f"a stream of more than {_MAX_LINES} lines")
        return events

    def _read(self, line: bytes) -> StreamEvent | None:
        if self._lines == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line:
            event = StreamEvent(self._event or "message", b"\n".join(self._data)) if self._data or self._event else None
            self._event, self._data = "", []
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value[:100].decode(errors="replace")
        return None
