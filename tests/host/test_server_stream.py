"""Streams of somebody else's server: the same events, however the bytes arrive; and nothing endless."""

from __future__ import annotations

import pytest

from host import server_stream
from host.server_stream import BadStream, EventReader, StreamEvent

STREAMS = [
    (b"event: end\ndata: {}\n\n", [("end", b"{}")]),
    (b"event: end\r\ndata: {}\r\n\r\n", [("end", b"{}")]),
    (b"event: end\rdata: {}\r\r", [("end", b"{}")]),
    (b"event:end\ndata:x\n\n", [("end", b"x")]),
    (b"data:  two spaces\n\n", [("message", b" two spaces")]),
    (b": a comment\n\n: another\nevent: end\n: in between\ndata: 1\n\n", [("end", b"1")]),
    (b"event: end\ndata: one\ndata: two\n\n", [("end", b"one\ntwo")]),
    (b"event: end\n\n", [("end", b"")]),
    (b"id: 7\nretry: 1\nno colon\nevent: end\ndata\n\n", [("end", b"")]),
    ("\ufeffevent: end\ndata: ü\n\n".encode(), [("end", "ü".encode())]),
    (b"event: chunk\ndata: a\n\nevent: end\ndata: b\n\n", [("chunk", b"a"), ("end", b"b")]),
    (b"event: end\ndata: not finished\n", []),
    (b"\n\n\r\n\r", []),
]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(("raw", "events"), STREAMS)
def test_events_in_pieces_of_any_size(raw: bytes, events: list[tuple[str, bytes]], size: int) -> None:
    reader = EventReader(max_bytes=1000)
    found = [event for start in range(0, len(raw), size) for event in reader.feed(raw[start : start + size])]
    assert found == [StreamEvent(*event) for event in events]


def feed(reader: EventReader, piece: bytes, times: int) -> None:
    for _ in range(times):
        reader.feed(piece)


def test_a_line_without_end() -> None:
    with pytest.raises(BadStream, match="a stream of more than"):
        feed(EventReader(max_bytes=1000), b"x" * 65536, 20)


def test_comments_without_end() -> None:
    with pytest.raises(BadStream, match="a stream of more than"):
        feed(EventReader(max_bytes=1000), b": ping\n\n" * 8192, 20)


def test_lines_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_stream, "_MAX_LINES", 100)
    reader = EventReader(max_bytes=1000)
    feed(reader, b"\n" * 50, 2)
    with pytest.raises(BadStream, match="a stream of more than 100 lines"):
        reader.feed(b"\n")
