"""What can go wrong, by whose fault it is, and what a client is told.

Every error that reaches a client is a ``HostError``: it knows its HTTP status, its ``reason`` and the words to say. 5xx means
"try again" to both public clients, so it is never used for what can't get better. No error carries a reward.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """The failure vocabulary: the same words in logs, HTTP bodies and SSE ``error`` events."""

    IMAGE_NOT_FOUND = "image_not_found"
    START_FAILED = "start_failed"
    START_TIMEOUT = "start_timeout"
    SETUP_FAILED = "setup_failed"
    SETUP_TIMEOUT = "setup_timeout"
    CALL_TIMEOUT = "call_timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CONTAINER_DIED = "container_died"
    PROTOCOL_VIOLATION = "protocol_violation"
    DISK_FULL = "disk_full"
    CAPACITY = "capacity"
    EXPIRED = "expired"
    DELETED = "deleted"
    HOST_SHUTDOWN = "host_shutdown"
    NODE_LOST = "node_lost"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a session ended: a word for machines and a sentence for people."""

    reason: Reason
    message: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class HostError(Exception):
    """Something to tell a client. ``str()`` is the ``detail`` of the body."""

    status = 500
    reason: str = "internal"
    retry_after_s: int | None = None
    starting = False
    """True adds ``X-Backend-State: starting``, which the newer public client rides out for ten minutes."""


# --- The caller is wrong ----------------------------------------------------------------------------------------------


class InvalidRequest(HostError):
    """The request can't be understood; the words name the field and what was expected."""

    status = 400
    reason = "invalid_request"


class Unauthorized(HostError):
    """A key is needed, and none or a wrong one was sent."""

    status = 401
    reason = "unauthorized"


class Forbidden(HostError):
    """The key is good, but not for this."""

    status = 403
    reason = "forbidden"


class BodyTimeout(HostError):
    """The body did not arrive in time."""

    status = 408
    reason = "body_timeout"


class UnsupportedEncoding(HostError):
    """The body is compressed."""

    status = 415
    reason = "unsupported_encoding"


class BodyTooLarge(HostError):
    """The body is over the limit."""

    status = 413
    reason = "body_too_large"


class NotFound(HostError):
    """No such route or feature here."""

    status = 404
    reason = "not_found"


class UnknownEnvironment(HostError):
    """No image that is served has an environment of that name."""

    status = 404
    reason = "unknown_environment"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"unknown environment {name!r}; there are: {', '.join(known)}")


class UnknownSession(HostError):
    """No session of that id was ever created, or it is long forgotten."""

    status = 404
    reason = "unknown_session"

    def __init__(self) -> None:
        super().__init__("Active environment not found")


class SessionExists(HostError):
    """A session of that id is there already."""

    status = 400
    reason = "session_exists"

    def __init__(self) -> None:
        super().__init__("Session already exists")


# --- Too late, or too early -------------------------------------------------------------------------------------------


class SessionEnded(HostError):
    """The session was there and has ended; ``failure`` says why."""

    status = 410

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.reason = failure.reason


class StillStarting(HostError):
    """The session's ``setup()`` is not done yet; asking again is right."""

    status = 503
    reason = "starting"
    retry_after_s = 2
    starting = True

    def __init__(self) -> None:
        super().__init__("Environment still starting.")


class CapacityExceeded(HostError):
    """All places are taken, and waiting did not help."""

    status = 503
    reason = Reason.CAPACITY
    retry_after_s = 2
    starting = True


class TooManyCalls(HostError):
    """The session has as many calls in flight as it may; nothing was started."""

    status = 429
    reason = Reason.CAPACITY
    retry_after_s = 1


class EngineDown(HostError):
    """The Docker engine doesn't answer, so no container can be started."""

    status = 503
    reason = Reason.START_FAILED
    retry_after_s = 5


class ShuttingDown(HostError):
    """The host was told to stop and takes no new sessions."""

    status = 503
    reason = Reason.HOST_SHUTDOWN
    retry_after_s = 10

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


# --- The environment's code -------------------------------------------------------------------------------------------


class EnvironmentFailed(HostError):
    """The author's code raised, or returned what it may not. Asking again would not help, so it is no 5xx."""

    status = 422
    reason = "environment_failed"


# --- The container, the engine ----------------------------------------------------------------------------------------

_STATUS = {
    Reason.IMAGE_NOT_FOUND: 503,  # an operator can bring it back; until then nothing else is true
    Reason.START_FAILED: 503,
    Reason.START_TIMEOUT: 503,
    Reason.SETUP_FAILED: 422,
    Reason.SETUP_TIMEOUT: 422,
    Reason.OUT_OF_MEMORY: 422,
    Reason.CONTAINER_DIED: 422,
    Reason.PROTOCOL_VIOLATION: 422,
    Reason.DISK_FULL: 503,
    Reason.NODE_LOST: 503,  # of a creation: another node takes it
}


class SandboxFailed(HostError):
    """A container could not be started, or failed while something waited for it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.reason = failure.reason
        self.status = _STATUS.get(failure.reason, 410)
        self.retry_after_s = 2 if self.status == 503 else None


class QuestionLost(HostError):
    """A catalog container failed while it was asked; the next question gets a new one, so asking again is right."""

    status = 503
    retry_after_s = 2

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.reason = failure.reason


class StartupError(Exception):
    """The host can't start; ``str()`` is the one sentence an operator needs."""
