"""Events, read back by the parsers of both public clients. What arrives is what was sent, byte for byte."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openreward.api._session.http import _parse_sse_events as openreward_parser
from ors.client._http import _parse_sse_events as ors_parser

from host import sse

MAX_LINE_BYTES = 128 * 1024
"""What aiohttp's reader in both clients takes as one line."""

Parser = Callable[[Any], AsyncIterator[tuple[str, str]]]
PARSERS: list[Parser] = [ors_parser, openreward_parser]

WHITE_SPACE = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]


class Response:
    """What the parsers need of a response: its lines, as a stream reader gives them."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    @property
    async def content(self) -> AsyncIterator[bytes]:
        for line in _lines(self._raw):
            yield line


def _lines(raw: bytes) -> list[bytes]:
    return [line + b"\n" for line in raw.removesuffix(b"\n").split(b"\n")]


async def read(parser: Parser, raw: bytes) -> list[tuple[str, str]]:
    """Return what a client sees, having checked what would crash it."""
    for line in _lines(raw):
        assert len(line) <= MAX_LINE_BYTES
        assert line == b"\r\n" or b":" in line
    return [event async for event in parser(Response(raw))]


async def joined(parser: Parser, text: str) -> str:
    """Send a result, and put it together as the clients do."""
    events = await read(parser, b"".join(sse.result(text)))
    assert [name for name, _data in events] == (len(events) - 1) * ["chunk"] + ["end"]
    assert all(len(data) <= sse.CHUNK_CHARS for _name, data in events)
    return "".join(data for _name, data in events)


def as_json(value: object) -> str:
    """Return compact JSON with nothing escaped that need not be, as the host sends it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("parser", PARSERS)
async def test_each_white_space_character_at_each_offset_around_the_border(parser: Parser) -> None:
    for character in WHITE_SPACE:
        for offset in range(sse.CHUNK_CHARS - 4, sse.CHUNK_CHARS + 4):
            value = "x" * offset + character + "y" * 10
            assert json.loads(await joined(parser, as_json(value))) == value


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("length", [2, 3, 4095, 4096, 4097, 8191, 8192, 8193, 10_000])
@pytest.mark.parametrize("character", [" ", "\u00a0", "\u2028", "\x85", "\u3000"])
async def test_runs_of_white_space(parser: Parser, length: int, character: str) -> None:
    for before in (0, 1, 4090, 4094, 4095, 4096):
        value = "x" * before + character * length + "y"
        assert json.loads(await joined(parser, as_json(value))) == value


@pytest.mark.parametrize("parser", PARSERS)
async def test_characters_and_escapes_across_the_border(parser: Parser) -> None:
    for piece in ("\U0001f600", "\\", '"', "\r\n", "\x00", "\u00e9", "a b", "\ufeff", "\u200b"):
        for offset in range(sse.CHUNK_CHARS - 8, sse.CHUNK_CHARS + 2):
            text = as_json("x" * offset + 3 * piece + " " + piece)
            assert json.loads(await joined(parser, text)) == json.loads(text)


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("size", [1, 2, 4095, 4096, 4097, 8192, 8193, 100_000])
async def test_sizes(parser: Parser, size: int) -> None:
    text = "1" * size
    assert await joined(parser, text) == text
    assert len(list(sse.result(text))) == -(-size // sse.CHUNK_CHARS)


strings = st.text(
    st.one_of(st.sampled_from([*WHITE_SPACE, "x", '"', "\\", "\U0001f600"]), st.characters(exclude_categories=["Cs"])),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(head=st.integers(4070, 4100), parts=st.lists(st.tuples(strings, st.integers(1, 300)), max_size=8))
async def test_whatever_a_tool_returns_arrives(head: int, parts: list[tuple[str, int]]) -> None:
    value = {"text": "x" * head + "".join(part * times for part, times in parts)}
    for parser in PARSERS:
        assert json.loads(await joined(parser, as_json(value))) == value


# --- Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("simple", "simple"),
        ("", ""),
        ("one\ntwo", "one\ntwo"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("a\n\nb", "a\n\nb"),
        ("\n", ""),
        ("a\x0bb\x0cc\x1cd\x85e\u2028f", "a\nb\nc\nd\ne\nf"),
        ("event: end\ndata: {}\n\nevent: end", "event: end\ndata: {}\n\nevent: end"),
        (": comment", ": comment"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
        ("\x00 \U0001f600 \u00a0", "\x00 \U0001f600 \u00a0"),
    ],
)
async def test_error_texts(parser: Parser, text: str, seen: str) -> None:
    assert await read(parser, sse.error(text)) == [("error", seen)]


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("text", ["x" * 10_000_000, "\U0001f600" * 1_000_000, "line\n" * 100_000, "\n" * 100_000])
async def test_long_error_texts_are_cut(parser: Parser, text: str) -> None:
    ((name, seen),) = await read(parser, sse.error(text))
    assert name == "error"
    assert seen.endswith(f"… (cut: {len(text)} characters)")
    assert len(seen) < sse.MAX_ERROR_CHARS + 100


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(), max_size=200))
async def test_any_error_is_one_event(text: str) -> None:
    for parser in PARSERS:
        ((name, _seen),) = await read(parser, sse.error(text))
        assert name == "error"


@pytest.mark.parametrize("parser", PARSERS)
async def test_comments_are_nothing(parser: Parser) -> None:
    raw = sse.PING + sse.event("task_id", "call_1") + 3 * sse.PING + sse.event("end", "")
    assert await read(parser, raw) == [("task_id", "call_1"), ("end", "")]
