"""The one way a request fails: an exception with the word that the host is told, and the sentence for a person."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

from .calling import call
from .messages import Fault
from .output import shorten
from .scope import current_scope


class RequestFault(Exception):
    """A request can't be answered with a result; ``fault`` says why."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def describe_exception(exc: BaseException) -> str:
    """Return ``Type: text``, or the type alone, of bounded length."""
    text = exception_text(exc)
    name = type(exc).__name__
    return name if text == name else shorten(f"{name}: {text}")


def exception_text(exc: BaseException) -> str:
    """Return the exception's own text, or its type's name where it has none, of bounded length."""
    try:
        text = str(exc)
    except Exception:  # an author's __str__
        text = ""
    return shorten(text) or type(exc).__name__


def log_exception(exc: BaseException) -> None:
    """Write the traceback to the log (standard error, or what the author has put in its place)."""
    with contextlib.suppress(Exception):
        traceback.print_exception(exc, file=sys.stderr)


async def call_author(
    fn: Callable[..., Any],
    *args: Any,
    passing: tuple[type[Exception], ...] = (),
    describe: Callable[[BaseException], str] = describe_exception,
) -> Any:
    """Return what the author's ``fn`` returns (see ``calling.call``).

    Raises:
        passing: it raised one of these, which mean something to the caller.
        RequestFault: it raised anything else (``describe`` makes the message of it); the traceback has gone to the log.
        asyncio.CancelledError: the host cancelled the request.
    """
    scope = current_scope.get()
    try:
        return await call(fn, *args, on_cancel=None if scope is None else scope.cancel)
    except BaseException as exc:
        if isinstance(exc, (RequestFault, *passing)):
            raise
        # An author's code may raise CancelledError of its own; only the scope knows whether the host has cancelled.
        if isinstance(exc, asyncio.CancelledError) and (scope is None or scope.cancelled):
            raise
        log_exception(exc)
        raise RequestFault(Fault.ENVIRONMENT_RAISED, describe(exc)) from exc
