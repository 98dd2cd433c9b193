"""HTTP requests → values, with an error that names what is wrong. Nothing here trusts its input or echoes a secret."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from host.errors import BodyTooLarge, InvalidRequest
from sandbox_runtime.messages import describe

M = TypeVar("M", bound=BaseModel)

_VISIBLE_ASCII = re.compile(r"[\x21-\x7e]{1,128}")


def session_id(request: web.Request) -> str:
    """Return the request's session id.

    Raises:
        InvalidRequest: there is none, or it isn't 1 to 128 visible ASCII characters.
    """
    raw = request.headers.get("X-Session-ID", "").strip()
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
        BodyTooLarge: it is over the limit.
        InvalidRequest: it isn't JSON, not an object, or not what the model says.
    """
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge as exc:
        raise BodyTooLarge(str(exc.text)) from exc
    except web.RequestPayloadError as exc:
        raise InvalidRequest("the body is broken off, or not encoded as its headers say") from exc
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
