"""From what a request came to, to the frame that answers it. Pure, no I/O.

A result is encoded once, however often it is asked for: the id of the request is put in front of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from . import frames, messages
from .faults import RequestFault
from .messages import Fault
from .output import sendable, shorten

_MAX_BRACKETS_UNCHECKED = 150
"""Fewer brackets than this can't be nested deeper than the receiver's parser allows (200)."""


class Answer(NamedTuple):
    """The answer to a request, whatever the request's id: ``member`` is its ``result`` or its ``error``, as JSON."""

    member: bytes

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return the answer that carries ``value``; strings that UTF-8 can't carry are repaired.

        Raises:
            RequestFault: the value has no JSON form, or one that the other side could not parse.
        """
        try:
            return cls(b'"result":' + _encoded(value))
        except (ValueError, RecursionError) as exc:
            raise RequestFault(Fault.BAD_RESULT, shorten(f"the result has no JSON form: {exc}")) from exc

    @classmethod
    def fault(cls, fault: Fault, message: str) -> Self:
        """Return the answer that says why there is no result."""
        return cls(b'"error":' + frames.encode(messages.error_body(fault, message)))

    def frame(self, request_id: int, max_bytes: int) -> bytes:
        """Return the frame to send: with a fault in it where the answer is over ``max_bytes``."""
        body = b'{"jsonrpc":"2.0","id":%d,%b}' % (request_id, self.member)
        if len(body) <= max_bytes:
            return frames.frame(body)
        what = f"the result has {len(body)} bytes, which is over the limit of {max_bytes} bytes"
        return frames.encode_frame(messages.error(request_id, Fault.RESULT_TOO_LARGE, what))


def _encoded(value: Any) -> bytes:
    try:
        encoded = frames.encode(value)
    except ValueError:
        encoded = frames.encode(sendable(value))
    if encoded.count(b"[") + encoded.count(b"{") > _MAX_BRACKETS_UNCHECKED:
        try:
            frames.parse_body(b'{"result":%b}' % encoded)
        except frames.FrameError as exc:
            raise ValueError(str(exc)) from exc
    return encoded
