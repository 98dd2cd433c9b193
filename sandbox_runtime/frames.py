"""Frames: the bytes on the wire between a host and the runtime in its container. Pure, no I/O.

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON, one JSON object. Both sides use this module, and
each side must expect anything of the other, so:

1. A length over the limit is refused when it is *announced*: not one byte of the body is read for it.
2. The body must be strict JSON: no NaN or infinity, no lone surrogates, no nesting deeper than the parser allows.
3. After an error the decoder is dead. The byte stream has no way to find the next frame, so there is none.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json

HEADER_BYTES = 4

DEFAULT_MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Large enough for a few uncompressed screenshots in one result, small enough for a host to hold many of."""

_LARGE_BYTES = 64 * 1024


class FrameError(Exception):
    """The peer broke the framing rules; the connection is of no more use."""


class FrameTooLarge(FrameError):
    """A frame is longer than the limit (``size_bytes`` and ``max_bytes`` say by how much)."""

    def __init__(self, size_bytes: int, max_bytes: int) -> None:
        super().__init__(f"a frame of {size_bytes} bytes is over the limit of {max_bytes} bytes")
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes


def encode_frame(message: Any, *, max_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> bytes:
    """Return ``message`` (a JSON object as a dict, pydantic models allowed inside) as one frame.

    NaN and infinity become null, as in the reference servers; where they may not (a reward), the model says so.

    Raises:
        FrameTooLarge: the encoded body is over ``max_bytes``.
        ValueError: the message has no JSON form (lone surrogates, a type that is not JSON's).
    """
    body = encode(message)
    if len(body) > max_bytes:
        raise FrameTooLarge(len(body), max_bytes)
    return frame(body)


def encode(value: Any) -> bytes:
    """Return ``value`` as JSON, as ``encode_frame`` does.

    Raises:
        ValueError: it has no JSON form.
    """
    try:
        return to_json(value, inf_nan_mode="null")
    except (PydanticSerializationError, UnicodeEncodeError) as exc:
        raise ValueError(f"not JSON: {exc}") from exc


def frame(body: bytes) -> bytes:
    """Return the frame with this body, which must be a JSON object of no more than the limit."""
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameDecoder:
    """Bytes in, messages out: feed it whatever the socket gave, in pieces of any size."""

    def __init__(self, *, max_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._dead = False

    def feed(self, data: bytes | memoryview) -> list[dict[str, Any]]:
        """Return the messages that ``data`` completes, in order.

        Raises:
            FrameTooLarge: a frame announces more than the limit.
            FrameError: a body is not a JSON object, or an earlier call raised.
        """
        try:
            return [parse_body(body) for body in self.bodies(data)]
        except FrameError:
            self._dead = True
            self._buffer.clear()
            raise

    def bodies(self, data: bytes | memoryview) -> list[bytes | bytearray]:
        """Return the bodies that ``data`` completes, in order and unread: for one who must know how heavy they are first.

        A large one is not copied: that would hold up whoever shares the thread for longer than reading all of its pieces.

        Raises:
            FrameTooLarge: a frame announces more than the limit.
            FrameError: an earlier call raised.
        """
        if self._dead:
            raise FrameError("data after a framing error")
        self._buffer += data
        bodies: list[bytes | bytearray] = []
        start = 0
        try:
            while len(self._buffer) - start >= HEADER_BYTES:
                body_start = start + HEADER_BYTES
                size = int.from_bytes(self._buffer[start:body_start], "big")
                if size > self._max_bytes:
                    raise FrameTooLarge(size, self._max_bytes)
                if len(self._buffer) - body_start < size:
                    break
                start = body_start + size
                if size < _LARGE_BYTES:
                    with memoryview(self._buffer) as view:
                        bodies.append(bytes(view[body_start:start]))
                else:
                    rest = self._buffer[start:]
                    del self._buffer[start:], self._buffer[:body_start]
                    bodies.append(self._buffer)
                    self._buffer, start = rest, 0
        except FrameError:
            self._dead = True
            self._buffer.clear()
            raise
        del self._buffer[:start]
        return bodies

    @property
    def buffered_bytes(self) -> int:
        """How much of an unfinished frame is held."""
        return len(self._buffer)


def parse_body(body: bytes | bytearray) -> dict[str, Any]:
    """Return a frame's body as the object that it holds.

    Raises:
        FrameError: it is not a JSON object.
    """
    try:
        message = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as exc:
        raise FrameError(f"a frame is not JSON: {exc}") from exc
    if not isinstance(message, dict):
        raise FrameError(f"a frame holds a JSON {type(message).__name__}, not an object")
    return message
