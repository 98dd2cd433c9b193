"""What the host is told when an author's code raises."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from sandbox_runtime.faults import RequestFault, call_author, describe_exception, exception_text, log_exception
from sandbox_runtime.messages import Fault
from sandbox_runtime.output import MAX_MESSAGE_CHARS
from sandbox_runtime.scope import CallScope, current_scope


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("exc", "text", "described"),
    [
        (ValueError("bad value"), "bad value", "ValueError: bad value"),
        (KeyError("k"), "'k'", "KeyError: 'k'"),
        (ValueError(), "ValueError", "ValueError"),
        (Mute(), "Mute", "Mute"),
        (SystemExit(3), "3", "SystemExit: 3"),
        (ValueError("a\ud800"), "a\ufffd", "ValueError: a\ufffd"),
    ],
)
def test_words(exc: BaseException, text: str, described: str) -> None:
    assert exception_text(exc) == text
    assert describe_exception(exc) == described


def test_words_are_bounded() -> None:
    assert len(exception_text(ValueError("x" * 10**6))) <= MAX_MESSAGE_CHARS
    assert len(describe_exception(ValueError("x" * 10**6))) <= MAX_MESSAGE_CHARS


RAISED = [ValueError("v"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError("own")]


@pytest.mark.parametrize("exc", RAISED)
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_is_raised_becomes_a_fault(
    exc: BaseException, is_async: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail_async() -> None:
        raise exc

    def fail_sync() -> None:
        raise exc

    current_scope.set(CallScope())
    with pytest.raises(RequestFault) as caught:
        await call_author(fail_async if is_async else fail_sync)
    assert caught.value.fault is Fault.ENVIRONMENT_RAISED
    assert type(exc).__name__ in str(caught.value)
    assert caught.value.__cause__ is exc
    assert "Traceback" in capsys.readouterr().err


async def test_what_means_something_to_the_caller_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(IndexError):
        await call_author([].pop, passing=(IndexError,))
    assert capsys.readouterr().err == ""


async def test_the_hosts_cancellation_passes() -> None:
    scope = CallScope()
    current_scope.set(scope)
    task = asyncio.create_task(call_author(asyncio.Event().wait))
    await asyncio.sleep(0)
    scope.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_logging_survives_an_author_who_has_taken_stderr_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stream: Any = object()
    monkeypatch.setattr(sys, "stderr", stream)
    log_exception(ValueError())
