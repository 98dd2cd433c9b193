"""One node, as a front sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import anyio

from host.cluster.names import ClusterNode
from host.errors import Failure


class NodeLost(Exception):
    """The node is dead, or as good as dead."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Node:
    """What is known of it, and who waits for it."""

    def __init__(self, info: ClusterNode) -> None:
        self.info = info
        self.id = info.id
        self.state = "preparing"
        self.words = ""
        self.url: str | None = None
        self.key: str | None = None
        self.has_agent = False
        self.was_ready = False
        self.heard_at = 0.0
        self.problem: str | None = None
        self.mismatch: str | None = None
        """Why no sessions are to be made there, although those that are there are served."""
        self.environments: Sequence[Mapping[str, str]] = ()
        self.sessions: dict[str, float] = {}
        """By id, when each was noted here."""
        self.strays: set[str] = set()
        """Sessions that it has although it was said that they are lost."""
        self.failure: Failure | None = None
        self._scopes: set[anyio.CancelScope] = set()

    @property
    def lost(self) -> bool:
        """True if it is dead."""
        return self.failure is not None

    @property
    def is_usable(self) -> bool:
        """True if it takes new sessions."""
        return self.state == "ready" and self.problem is None and not self.lost

    @property
    def headers(self) -> dict[str, str]:
        """What its host is asked with."""
        return {"X-API-Key": self.key or ""}

    def say(self, state: str, words: str) -> None:
        """Take note of why it can't be used."""
        self.state, self.words = state, words

    def heard(self, now: float, environments: Sequence[Mapping[str, str]], problem: str | None) -> None:
        """Its host has answered."""
        self.state, self.words, self.problem = "ready", problem or "", problem
        if self.mismatch is not None:
            self.state, self.words = "failed", f"{self.mismatch}; --replace-agents gives it this front's"
        self.environments, self.heard_at, self.was_ready = environments, now, True

    def lose(self, failure: Failure, why: str) -> None:
        """End whatever waits for an answer of it."""
        self.failure = failure
        self.url = None
        self.say("lost", why)
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Ask the node something within the block, which ends when the node does.

        Raises:
            NodeLost: it is, or was meanwhile.
        """
        if self.failure is not None:
            raise NodeLost(self.failure)
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught and self.failure is not None:
            raise NodeLost(self.failure)
