"""Logging: structlog, one line an event, on stderr. Never a secret, a task or a tool's output: only ids, words and numbers."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Return ``text`` without anything that a terminal would obey: some of what is logged was written in a container."""
    return text.translate(_CONTROL)


def _printable_values(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


def configure(*, format: Literal["human", "json"], level: str) -> None:
    """Set the process's logging up; called once, by the command line."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if format == "json":
        shared += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        shared += [_printable_values]
        shared += [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_plain_traceback)]
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")


_plain_traceback = structlog.dev.plain_traceback
"""Not the pretty one: it prints local variables, and those may hold secrets."""
