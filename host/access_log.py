"""A line for each request, at level ``debug``: trainers send thousands, and what matters of them is in the metrics.

Of what a client sent there is the method, the path without its query, and the session's id; no header else, and no body.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

log = structlog.get_logger()

_SHOWN_CHARS = 128
"""Of a path, which may be anything; an id has no more."""


def access_log() -> list[Middleware]:
    """Return the middleware that logs requests; none where nothing is logged at that level, so that it costs nothing."""
    return [_access] if log.is_enabled_for(logging.DEBUG) else []


def what_is_asked(request: web.Request) -> dict[str, Any]:
    """Return what may be logged of a request."""
    asked = {"method": request.method, "path": request.path[:_SHOWN_CHARS]}
    if session := request.headers.get("X-Session-ID"):
        asked["session"] = session[:_SHOWN_CHARS]
    return asked


@web.middleware
async def _access(request: web.Request, handler: Handler) -> web.StreamResponse:
    began, status = time.monotonic(), 499  # nginx's number for a client that left
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        seconds = round(time.monotonic() - began, 4)
        log.debug("request", **what_is_asked(request), status=status, seconds=seconds, client=request.remote)
