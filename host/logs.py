"""Logging: structlog, one line an event, on stderr. Never a secret, a task or a tool's output: only ids, words and numbers.

A line that is about a session says which (``session``), one that is about a call that too (``call``): whoever begins something
for one binds its ids, and all that is logged in that task, or in tasks it starts, has them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import ExcInfo

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Return ``text`` without anything that a terminal would obey: some of what is logged was written in a container."""
    return text.translate(_CONTROL)


def belongs(container: str, session: str) -> None:
    """Have all lines that name a container name its session, until ``forget``: those too that others than the session write."""
    _session_of[container] = session


def forget(container: str) -> None:
    """End what ``belongs`` began."""
    _session_of.pop(container, None)


_session_of: dict[str, str] = {}


def _name_session(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if "session" not in event and (session := _session_of.get(event.get("container", ""))) is not None:
        event["session"] = session
    return event


def _printable_values(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


def configure(*, format: Literal["human", "json"], level: str) -> None:
    """Set the process's logging up; called once, by the command line."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _name_session,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if format == "json":
        last: list[Any] = [structlog.processors.ExceptionRenderer(_traceback), structlog.processors.JSONRenderer()]
    else:
        last = [_printable_values]
        last += [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_print_traceback)]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    # What libraries say looks the same.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def heed_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Have what goes wrong in the event loop's own callbacks logged as all else is: asyncio would print the error's words."""

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        structlog.get_logger().error("event_loop", what=context["message"], exc_info=context.get("exception"))

    loop.set_exception_handler(handle)


def _traceback(exc_info: ExcInfo) -> str:
    return "".join(_lines(exc_info[1], set()))


def _lines(exc: BaseException, told: set[int]) -> Iterator[str]:
    """Yield where an error was raised, and of what type; not its words, nor local variables: those may hold secrets.

    Only the system's own words are told.
    """
    told.add(id(exc))
    cause = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    if cause is not None and id(cause) not in told:
        yield from _lines(cause, told)
        yield "\nand then\n\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(exc.__traceback__)
    yield f"{type(exc).__qualname__}{f': {exc.strerror}' if isinstance(exc, OSError) and exc.strerror else ''}\n"
    if isinstance(exc, BaseExceptionGroup):
        for one in exc.exceptions:
            yield from _lines(one, told)


def _print_traceback(stream: TextIO, error: ExcInfo) -> None:
    stream.write("\n" + _traceback(error))
