"""Text fit to be sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_runtime import TextBlock
from sandbox_runtime.output import MAX_MESSAGE_CHARS, sendable, shorten, without_surrogates

ANY_TEXT = st.text(st.characters())  # lone surrogates included


@given(text=ANY_TEXT)
def test_without_surrogates_is_always_utf8_and_keeps_what_was(text: str) -> None:
    clean = without_surrogates(text)
    clean.encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        assert "\ufffd" in clean
    else:
        assert clean == text


def test_each_lone_surrogate_is_one_replacement() -> None:
    assert without_surrogates("a\ud800b\udc80") == "a\ufffdb\ufffd"


@given(text=ANY_TEXT, limit=st.integers(40, 100))
def test_shorten(text: str, limit: int) -> None:
    text = text * 10
    short = shorten(text, limit)
    short.encode()
    assert len(short) <= limit
    if len(text) > limit:
        assert short.endswith(f"… [{len(text)} characters, cut]")


def test_an_error_text_is_never_over_16_kib() -> None:
    assert len(shorten("\U0001f600" * 100_000).encode()) <= 16 * 1024
    assert len(shorten("x" * 100_000)) == MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    ("value", "clean"),
    [
        ("\ud800", "\ufffd"),
        ({"\udc80": ["\ud800", ("x", 1, None)]}, {"\ufffd": ["\ufffd", ["x", 1, None]]}),
        (TextBlock(text="\ud800"), {"text": "\ufffd", "detail": None, "type": "text"}),
        (
            {"b": TextBlock(text="t", detail={"k": "\ud800"})},
            {"b": {"text": "t", "detail": {"k": "\ufffd"}, "type": "text"}},
        ),
        (1.5, 1.5),
    ],
)
def test_sendable(value: Any, clean: Any) -> None:
    assert sendable(value) == clean
