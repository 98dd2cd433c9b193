"""The table of a session's states, whole, and when a session is over."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.errors import Failure, Reason
from host.lifecycle import Clock, Event, IllegalMove, State, expiry, move

LEGAL = {
    (State.STARTING, Event.CONSTRUCTED): State.SETTING_UP,
    (State.SETTING_UP, Event.SET_UP): State.READY,
    (State.STARTING, Event.CLOSE): State.CLOSING,
    (State.SETTING_UP, Event.CLOSE): State.CLOSING,
    (State.READY, Event.CLOSE): State.CLOSING,
    (State.CLOSING, Event.CLOSE): State.CLOSING,
    (State.CLOSING, Event.REMOVED): State.CLOSED,
    (State.CLOSED, Event.CLOSE): State.CLOSED,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_move(state: State, event: Event) -> None:
    if (state, event) in LEGAL:
        assert move(state, event) is LEGAL[state, event]
    else:
        with pytest.raises(IllegalMove, match=f"{event.name} in {state.name}"):
            move(state, event)


@pytest.mark.parametrize(
    ("created_at", "last_ended_at", "in_flight", "now", "expected"),
    [
        (0, 0, 0, 0, 900),
        (0, 0, 0, 899.9, 900),
        (0, 0, 0, 900, "no request for 900 s"),
        (0, 500, 0, 900, 1400),
        (0, 0, 1, 5000, 5900),
        (0, 0, 2, 86_399, 86_400),
        (0, 0, 1, 86_400, "the session reached its maximum age of 86400 s"),
        (0, 86_399, 0, 86_400, "the session reached its maximum age of 86400 s"),
        (0, 86_000, 0, 86_100, 86_400),
    ],
)
def test_expiry(created_at: float, last_ended_at: float, in_flight: int, now: float, expected: float | str) -> None:
    verdict = expiry(Clock(created_at, last_ended_at, in_flight), now, idle_timeout_s=900, max_age_s=86_400)
    if isinstance(expected, str):
        assert verdict == Failure(Reason.EXPIRED, expected)
    else:
        assert verdict == expected


times = st.floats(0, 1e6)


@given(created_at=times, ended_after=times, waited=times, in_flight=st.integers(0, 2), idle=st.floats(0.1, 1e4))
def test_looking_again_is_always_later(
    created_at: float, ended_after: float, waited: float, in_flight: int, idle: float
) -> None:
    clock = Clock(created_at, created_at + ended_after, in_flight)
    now = created_at + ended_after + waited
    verdict = expiry(clock, now, idle_timeout_s=idle, max_age_s=1e7)
    assert isinstance(verdict, Failure) or verdict > now
