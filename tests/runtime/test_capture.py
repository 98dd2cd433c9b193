"""Keeping head and tail of a stream."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_runtime.capture import Capture


def captured(max_bytes: int, *pieces: bytes) -> Capture:
    capture = Capture(max_bytes)
    for piece in pieces:
        capture.add(piece)
    return capture


@given(max_bytes=st.integers(0, 20), pieces=st.lists(st.binary(max_size=15), max_size=6))
def test_head_and_tail_of_any_stream(max_bytes: int, pieces: list[bytes]) -> None:
    capture = captured(max_bytes, *pieces)
    stream = b"".join(pieces)
    head, tail = (max_bytes + 1) // 2, max_bytes // 2
    expected = stream if len(stream) <= max_bytes else stream[:head] + stream[len(stream) - tail :]
    assert capture.data() == expected
    assert capture.total_bytes == len(stream)
    assert capture.is_cut == (len(stream) > max_bytes)
    assert ("[output cut: " in capture.text()) == capture.is_cut


def test_all_of_it_when_it_fits() -> None:
    assert captured(10, b"12345", b"67890").text() == "1234567890"


def test_a_cut_says_where_and_how_much() -> None:
    assert captured(4, b"abcdefgh").text() == "ab\n[output cut: 4 of 8 bytes shown]\ngh"


def test_any_bytes_become_text() -> None:
    assert captured(10, b"a\xff\0b").text() == "a\ufffd\0b"


@pytest.mark.parametrize("character", ["é", "€", "\U0001f600"])
@pytest.mark.parametrize("max_bytes", range(2, 20))
def test_a_cut_leaves_no_half_character(character: str, max_bytes: int) -> None:
    text = captured(max_bytes, character.encode() * 50).text()
    head, shown, tail = re.split(r"\n\[output cut: (\d+) of \d+ bytes shown\]\n", text)
    assert set(head + tail) <= {character}
    assert int(shown) == len((head + tail).encode())


def test_an_endless_stream_takes_bounded_memory() -> None:
    capture = Capture(1000)
    chunk = b"y\n" * 32768
    for _ in range(200):
        capture.add(chunk)
        assert len(capture._tail) <= 2 * 1000 + 65536
    assert capture.total_bytes == 200 * 65536
