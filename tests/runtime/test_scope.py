"""What a call has started ends when it is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from sandbox_runtime.scope import CallScope


def test_cancel_ends_what_is_running_and_only_that() -> None:
    scope, ended = CallScope(), list[str]()
    with scope.started(lambda: ended.append("over")):
        pass
    with scope.started(lambda: ended.append("a")), scope.started(lambda: ended.append("b")):
        assert not scope.cancelled
        scope.cancel()
    assert sorted(ended) == ["a", "b"]
    assert scope.cancelled


def test_nothing_starts_in_a_cancelled_scope() -> None:
    scope = CallScope()
    scope.cancel()
    with pytest.raises(asyncio.CancelledError), scope.started(lambda: None):
        raise AssertionError("started")
