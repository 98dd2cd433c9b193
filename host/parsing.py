"""HTTP requests → values, with an error that names what is wrong. Nothing here trusts its input or echoes a secret."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from host.answers import has_more_values
from host.errors import BodyTimeout, BodyTooLarge, CapacityExceeded, InvalidRequest, UnsupportedEncoding
from sandbox_runtime.messages import describe

M = TypeVar("M", bound=BaseModel)

MAX_VALUES = 100_000
"""In one body; parsing so many and sending them on takes about 0.1 s, in which nobody else is served."""

_UNCOUNTED_BYTES = 64 * 1024
"""Of a body, that it may hold whatever others hold: nearly all bodies are smaller."""

_BODIES_HELD = 16
"""Bodies of the largest size that may be held at once."""


@dataclass
class BodyLimits:
    """What bodies may take of time and, all together, of memory."""

    max_bytes: int
    timeout_s: float
    held_bytes: int = 0

    def hold(self, size: int) -> None:
        """Count bytes that are held, or with a negative size no longer are.

        Raises:
            CapacityExceeded: it would be too much.
        """
        if size > 0 and self.held_bytes + size > _BODIES_HELD * self.max_bytes:
            raise CapacityExceeded("too many large requests at once; try again later")
        self.held_bytes += size


BODY_LIMITS = web.AppKey("body_limits", BodyLimits)

_VISIBLE_ASCII = re.compile(r"[\x21-\x7e]{1,128}")


def session_id(request: web.Request) -> str:
    """Return the request's session id.

    Raises:
        InvalidRequest: there is none, or it isn't 1 to 128 visible ASCII characters.
    """
    given = request.headers.getall("X-Session-ID", [""])
    if len(given) > 1:  # which of them counts must not depend on who reads them: a proxy, or we
        raise InvalidRequest("X-Session-ID is there more than once")
    raw = given[0].strip()
    if not raw:
        raise InvalidRequest("X-Session-ID header is required")
    if not _VISIBLE_ASCII.fullmatch(raw):
        raise InvalidRequest("X-Session-ID must be 1 to 128 visible ASCII characters")
    return raw


def call_id(raw: str | None) -> str | None:
    """Return a call's id from the body. It is sent back as a line of a stream, so it must be nothing but a word.

    Raises:
        InvalidRequest: it isn't 1 to 128 visible ASCII characters.
    """
    if raw is not None and not _VISIBLE_ASCII.fullmatch(raw):
        raise InvalidRequest("task_id must be 1 to 128 visible ASCII characters")
    return raw


async def body(request: web.Request, model: type[M]) -> M:
    """Return the request's JSON body as ``model``.

    Raises:
        BodyTooLarge, UnsupportedEncoding, BodyTimeout, CapacityExceeded: it can't be taken in.
        InvalidRequest: it isn't JSON, not an object, or not what the model says.
    """
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedEncoding("compressed bodies are not taken; send it as it is")
    limits = request.app[BODY_LIMITS]
    content = request.content
    try:
        if content.is_eof() and content.total_bytes <= min(limits.max_bytes, _UNCOUNTED_BYTES):  # it came with its head
            return _parsed(content.read_nowait(), model)
        async with asyncio.timeout(limits.timeout_s):
            return await _read(request, limits, model)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {limits.timeout_s:g} s") from None
    except web.RequestPayloadError as exc:
        raise InvalidRequest("the body is broken off, or not encoded as its headers say") from exc


async def _read(request: web.Request, limits: BodyLimits, model: type[M]) -> M:
    raw = bytearray()
    held = 0
    try:
        async for chunk in request.content.iter_any():
            raw += chunk
            if len(raw) > limits.max_bytes:
                raise BodyTooLarge(f"the body is over the limit of {limits.max_bytes} bytes")
            if len(raw) - held > _UNCOUNTED_BYTES:
                limits.hold(len(raw) - held)
                held = len(raw)
        return _parsed(bytes(raw), model)
    finally:
        limits.hold(-held)


def _parsed(raw: bytes, model: type[M]) -> M:
    if has_more_values(raw, MAX_VALUES):
        raise InvalidRequest(f"the body holds more than {MAX_VALUES} values")
    value = _json(raw, "the body")
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {_NAMES.get(type(value), 'null')}")
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        raise InvalidRequest(describe(exc)) from exc


def secrets_header(request: web.Request) -> dict[str, str]:
    """Return the secrets of ``X-Secrets``: base64 of JSON ``{"NAME": {"value": "…"}}``. Empty if there is no such header.

    Raises:
        InvalidRequest: it is anything else.
    """
    raw = request.headers.get("X-Secrets")
    if not raw:
        return {}
    shape = 'X-Secrets must be base64 of a JSON object {"NAME": {"value": "…"}}'
    try:
        value = from_json(base64.b64decode(raw, validate=True))
    except (ValueError, binascii.Error):
        raise InvalidRequest(shape) from None
    if not isinstance(value, dict):
        raise InvalidRequest(shape)
    secrets = {}
    for name, entry in value.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("value"), str):
            raise InvalidRequest(shape)
        secrets[name] = entry["value"]
    return secrets


_NAMES: dict[type, str] = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


def _json(raw: bytes, what: str) -> Any:
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError as exc:
        raise InvalidRequest(f"{what} is not valid JSON: {exc}") from None
