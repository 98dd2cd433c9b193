"""Keeping the beginning and the end of a stream of bytes of any length. Pure, no I/O."""

from __future__ import annotations


class Capture:
    """Keeps at most ``max_bytes`` of what it is given: the first half, and the newest of the rest."""

    def __init__(self, max_bytes: int) -> None:
        self.total_bytes = 0
        self._head_max = (max_bytes + 1) // 2
        self._tail_max = max_bytes - self._head_max
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total_bytes += len(data)
        room = self._head_max - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_max + 65536:  # not each time: dropping from the front moves what stays
            self._drop()

    def _drop(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_max)]

    @property
    def is_cut(self) -> bool:
        """True if not everything was kept."""
        return self.total_bytes > self._head_max + self._tail_max

    def data(self) -> bytes:
        """Return what was kept, without a mark where something is missing."""
        self._drop()
        return bytes(self._head + self._tail)

    def text(self) -> str:
        """Return what was kept as text (what is not UTF-8 becomes U+FFFD), saying where and how much is missing."""
        if not self.is_cut:
            return self.data().decode(errors="replace")
        self._drop()
        head, tail = _without_split_end(bytes(self._head)), _without_split_start(bytes(self._tail))
        mark = f"\n[output cut: {len(head) + len(tail)} of {self.total_bytes} bytes shown]\n"
        return head.decode(errors="replace") + mark + tail.decode(errors="replace")


_CONTINUATION = range(0x80, 0xC0)  # the bytes of a UTF-8 character after its first
_LONGEST = 4


def _without_split_end(data: bytes) -> bytes:
    """Drop a character whose end was cut off; the cut is ours, so no U+FFFD should stand for it."""
    for back in range(1, min(_LONGEST, len(data)) + 1):
        first = data[-back]
        if first in _CONTINUATION:
            continue
        length = 2 if 0xC2 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 4 if 0xF0 <= first < 0xF5 else 1
        return data[:-back] if length > back else data
    return data


def _without_split_start(data: bytes) -> bytes:
    start = 0
    while start < min(_LONGEST - 1, len(data)) and data[start] in _CONTINUATION:
        start += 1
    return data[start:]
