"""A session's states and times, as a table and one function. Pure: no I/O, and ``now`` is an argument.

STARTING    the container is being made, or the environment constructed; ``/create`` has not answered
SETTING_UP  ``/create`` has answered; ``setup()`` runs
READY       tools may be called
CLOSING     somebody ended it (client, time, death, host); calls are ending, the container is being removed
CLOSED      nothing of it is left
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from host.errors import Failure, Reason


class State(Enum):
    """Where a session is in its life."""

    STARTING = auto()
    SETTING_UP = auto()
    READY = auto()
    CLOSING = auto()
    CLOSED = auto()


class Event(Enum):
    """What moves it on."""

    CONSTRUCTED = auto()
    SET_UP = auto()
    CLOSE = auto()
    REMOVED = auto()


_MOVES: dict[tuple[State, Event], State] = {
    (State.STARTING, Event.CONSTRUCTED): State.SETTING_UP,
    (State.STARTING, Event.CLOSE): State.CLOSING,
    (State.SETTING_UP, Event.SET_UP): State.READY,
    (State.SETTING_UP, Event.CLOSE): State.CLOSING,
    (State.READY, Event.CLOSE): State.CLOSING,
    (State.CLOSING, Event.CLOSE): State.CLOSING,  # the first reason holds
    (State.CLOSING, Event.REMOVED): State.CLOSED,
    (State.CLOSED, Event.CLOSE): State.CLOSED,
}


class IllegalMove(Exception):
    """An event that can't happen in this state: a fault of ours."""


def move(state: State, event: Event) -> State:
    """Return the state that ``event`` leads to.

    Raises:
        IllegalMove: the table has no such move.
    """
    try:
        return _MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"{event.name} in {state.name}") from None


@dataclass(frozen=True)
class Clock:
    """What decides when a session is over. Times in seconds, all of one monotonic clock."""

    created_at: float
    last_request_ended_at: float
    requests_in_flight: int


def expiry(clock: Clock, now: float, *, idle_timeout_s: float, max_age_s: float) -> Failure | float:
    """Return why the session is over at ``now``, or, if it isn't, when to look again.

    A session with a request in flight is not idle, however long that request takes.
    """
    too_old_at = clock.created_at + max_age_s
    if now >= too_old_at:
        return Failure(Reason.EXPIRED, f"the session reached its maximum age of {max_age_s:g} s")
    idle_since = now if clock.requests_in_flight else clock.last_request_ended_at
    idle_at = idle_since + idle_timeout_s
    if now >= idle_at:
        return Failure(Reason.EXPIRED, f"no request for {idle_timeout_s:g} s")
    return min(too_old_at, idle_at)
