"""Why a session ends, and what is told to those who still have to do with it."""

from __future__ import annotations

from host.calls import Outcome
from host.errors import Failure, HostError, Reason, SessionEnded, ShuttingDown


class Ending:
    """How one session ends, filled in when it does."""

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.error: HostError | None = None
        """In place of a failure: why there never was a session, or a fault of the host's own."""
        self.left_to_next = False
        """True if it ends here only, and goes on in the next host."""

    def because(self, failure: Failure) -> None:
        """Take note of the reason; the first one holds."""
        if self.failure is None:
            self.failure = failure

    @property
    def reason(self) -> str:
        """The word of the failure vocabulary for it."""
        return str(self.failure.reason if self.failure else getattr(self.error, "reason", "internal"))

    def last_words(self) -> Outcome:
        """Return what a call is told that ends because the session does."""
        if self.left_to_next:
            return Outcome("cut")
        return Outcome("error", str(self.failure or self.error or "the call was cancelled"))

    def refusal(self) -> HostError:
        """Return what whoever asks from now on is told."""
        if self.left_to_next:
            return ShuttingDown()
        return SessionEnded(self.failure or Failure(Reason.DELETED, "the session ended"))

    def of_creation(self) -> HostError:
        """Return what whoever waits for the session to be made is told when it has ended."""
        if self.failure is not None:
            return SessionEnded(self.failure)
        assert self.error is not None
        return self.error
