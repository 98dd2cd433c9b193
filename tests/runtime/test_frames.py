"""The framing: every message arrives whole however its bytes are cut, and nothing else ever comes out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from sandbox_runtime.frames import HEADER_BYTES, FrameDecoder, FrameError, FrameTooLarge, encode_frame

# Integers as JSON parsers agree on them; floats without NaN and infinity, which have no JSON form.
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    SCALARS | TEXT, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=5)

MESSAGES: list[dict[str, Any]] = [
    {},
    {"a": 1},
    {"text": "ü\0\u2028 \U0001f600", "list": [None, True, 1.5]},
    {"x": "y" * 5000},
]


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_BYTES, "big") + body


@pytest.mark.parametrize("message", MESSAGES)
class TestOneMessage:
    def test_whole(self, message: dict[str, Any]) -> None:
        decoder = FrameDecoder()
        assert decoder.feed(encode_frame(message)) == [message]
        assert decoder.buffered_bytes == 0

    def test_byte_by_byte(self, message: dict[str, Any]) -> None:
        decoder = FrameDecoder()
        data = encode_frame(message)
        for index in range(len(data) - 1):
            assert decoder.feed(data[index : index + 1]) == []
            assert decoder.buffered_bytes > 0
        assert decoder.feed(data[-1:]) == [message]
        assert decoder.buffered_bytes == 0

    def test_with_trailing_bytes(self, message: dict[str, Any]) -> None:
        decoder = FrameDecoder()
        data = encode_frame(message)
        assert decoder.feed(data + data[:3]) == [message]
        assert decoder.buffered_bytes > 0
        assert decoder.feed(data[3:]) == [message]

    def test_several_at_once(self, message: dict[str, Any]) -> None:
        assert FrameDecoder().feed(encode_frame(message) * 3) == [message] * 3


def test_large_frames_among_small_ones_in_one_piece() -> None:
    small, large = {"a": 1}, {"a": "x" * 200_000}
    messages = [small, large, small, large, large, small]
    decoder = FrameDecoder()
    data = b"".join(map(encode_frame, messages))
    assert decoder.feed(data + data[:10]) == messages
    assert decoder.buffered_bytes == 10
    assert decoder.feed(data[10:]) == messages
    assert decoder.buffered_bytes == 0


@given(messages=st.lists(OBJECTS, max_size=4), data=st.data())
def test_round_trip_in_any_pieces(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(message) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder = FrameDecoder()
    found = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += decoder.feed(stream[start:stop])
    assert found == messages
    assert decoder.buffered_bytes == 0


@given(chunks=st.lists(st.binary(max_size=200), max_size=8))
def test_fuzz_bytes_give_objects_or_a_frame_error(chunks: list[bytes]) -> None:
    decoder = FrameDecoder(max_bytes=1000)
    try:
        for chunk in chunks:
            assert all(isinstance(message, dict) for message in decoder.feed(chunk))
    except FrameError:
        with pytest.raises(FrameError):
            decoder.feed(b"")


@given(body=st.binary(max_size=100))
def test_fuzz_bodies_give_objects_or_a_frame_error(body: bytes) -> None:
    decoder = FrameDecoder()
    try:
        (message,) = decoder.feed(frame(body))
    except FrameError:
        return
    assert isinstance(message, dict)


class TestLimits:
    def test_a_body_of_exactly_the_limit_passes(self) -> None:
        message = {"a": "x" * 92}
        assert len(encode_frame(message)) == HEADER_BYTES + 100
        assert FrameDecoder(max_bytes=100).feed(encode_frame(message, max_bytes=100)) == [message]

    def test_encoding_one_byte_more_fails(self) -> None:
        with pytest.raises(FrameTooLarge, match="101 bytes is over the limit of 100") as caught:
            encode_frame({"a": "x" * 93}, max_bytes=100)
        assert (caught.value.size_bytes, caught.value.max_bytes) == (101, 100)

    def test_an_announcement_over_the_limit_is_refused_before_the_body(self) -> None:
        with pytest.raises(FrameTooLarge) as caught:
            FrameDecoder(max_bytes=100).feed((101).to_bytes(HEADER_BYTES, "big"))
        assert caught.value.size_bytes == 101

    def test_three_bytes_of_a_header_announce_nothing(self) -> None:
        assert FrameDecoder(max_bytes=100).feed(b"\xff\xff\xff") == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"1",
        b"{} {}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": "\\ud800"}',
        b'{"a": "\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}",
    ],
)
def test_a_body_that_is_no_strict_json_object_kills_the_decoder(body: bytes) -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameError):
        decoder.feed(frame(body))
    with pytest.raises(FrameError, match="after a framing error"):
        decoder.feed(encode_frame({}))


def test_messages_before_a_bad_frame_are_lost_with_it() -> None:
    with pytest.raises(FrameError):
        FrameDecoder().feed(encode_frame({"a": 1}) + frame(b"x"))


class TestEncoding:
    def test_models_inside(self) -> None:
        class Inner(BaseModel):
            x: int

        assert FrameDecoder().feed(encode_frame({"inner": Inner(x=1)})) == [{"inner": {"x": 1}}]

    def test_nan_and_infinity_become_null(self) -> None:
        assert FrameDecoder().feed(encode_frame({"a": [float("nan"), float("inf")]})) == [{"a": [None, None]}]

    @pytest.mark.parametrize("value", ["\ud800", object(), b"\xff", {"k\udc80": 1}])
    def test_what_has_no_json_form_is_a_value_error(self, value: Any) -> None:
        with pytest.raises(ValueError, match="not JSON"):
            encode_frame({"a": value})

    def test_a_circle_is_a_value_error(self) -> None:
        circle: list[Any] = []
        circle.append(circle)
        with pytest.raises(ValueError, match="not JSON"):
            encode_frame({"a": circle})
