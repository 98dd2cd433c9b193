"""Making text fit to be sent: of bounded length, and Unicode that UTF-8 can carry. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

MAX_MESSAGE_CHARS = 4096
"""For error texts: four bytes a character at most, so never over 16 KiB."""


def shorten(text: str, max_chars: int = MAX_MESSAGE_CHARS) -> str:
    """Return ``text`` cut to ``max_chars``, saying so, and without lone surrogates."""
    if len(text) > max_chars:
        mark = f"… [{len(text)} characters, cut]"
        text = text[: max_chars - len(mark)] + mark
    return without_surrogates(text)


def without_surrogates(text: str) -> str:
    """Return ``text`` with U+FFFD for each lone surrogate (a byte that ``surrogateescape`` could not decode, mostly)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def sendable(value: Any) -> Any:
    """Return ``value`` with ``without_surrogates`` applied to every string in it, keys included.

    Raises:
        RecursionError: it is nested too deeply, or contains itself.
    """
    match value:
        case str():
            return without_surrogates(value)
        case BaseModel():
            return sendable(value.model_dump(warnings=False))
        case Mapping():
            return {sendable(key): sendable(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [sendable(item) for item in value]
        case _:
            return value
