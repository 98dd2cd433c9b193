"""Logging: structlog, one line an event, on stderr. Never a secret, a task or a tool's output: only ids, words and numbers."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog


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
