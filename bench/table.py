"""The rows of the benchmark: what each is called, and what it is to reach."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from bench.numbers import Target, Verdict


@dataclass(frozen=True)
class RowSpec:
    """One row: its name on the command line, its title in tables, and its target (None: stated only)."""

    name: str
    title: str
    target: Target | None = None


@dataclass(frozen=True)
class Row:
    """What a row came to. ``value`` is what is judged, in the target's unit; ``details`` go to the results file."""

    spec: RowSpec
    measured: str
    value: float | None
    requests: int
    failed: int = 0
    note: str = ""
    error: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """What came of it."""
        if not self.measured:
            return Verdict.NOT_RUN
        if self.spec.target is None or self.value is None:
            return Verdict.STATED
        return self.spec.target.judge(self.value)

    @property
    def success_rate(self) -> float | None:
        """The share of requests that were served as they should be; None if there were none."""
        return (self.requests - self.failed) / self.requests if self.requests else None

    def as_json(self) -> dict[str, Any]:
        """Return it for the results file."""
        return {
            "name": self.spec.name,
            "title": self.spec.title,
            "target": str(self.spec.target) if self.spec.target else None,
            "limit": self.spec.target.limit if self.spec.target else None,
            "value": self.value if self.value is not None and math.isfinite(self.value) else None,
            "measured": self.measured,
            "verdict": self.verdict.value,
            "requests": self.requests,
            "success_rate": self.success_rate,
            "note": self.note,
            "error": self.error,
            "details": self.details,
        }


HOST_BYTES_PER_SESSION = 0.2e6

CALL = RowSpec("call", "tool call p50, one session, small result", Target(1.0, "1.0 × ors-sdk's"))
THROUGHPUT = RowSpec("throughput", "tool calls/s, 32 sessions", Target(1.5, "1.5 × ors-sdk's", at_most=False))
SERVER_CALL = RowSpec(
    "server-call",
    "an image's own ors-sdk server: tool call p50, small result",
    Target(1.6, "1.6 × the same server asked directly"),
)
LARGE = RowSpec("large", "tool call with a 1 MB result, p50", Target(0.7, "0.7 × ors-sdk's"))
WARM = RowSpec("warm", "warm: create → prompt answered, p50", Target(0.10, "0.10 × the floor"))
COLD = RowSpec("cold", "cold: create → prompt answered, p50", Target(1.6, "1.6 × the floor"))
CHURN = RowSpec(
    "churn",
    "churn: create, one call, delete; 8 clients",
    Target(0.75, "0.75 × the floor's create+remove cycles/s", at_most=False),
)
BURST = RowSpec("burst", "burst of 100 creates at once", Target(1.3, "1.3 × 100/churn for the last one; all served"))
MEMORY = RowSpec("memory", "memory per idle session: runtime PSS", Target(22e6, "22 MB"))
HOST_MEMORY = RowSpec(
    "host-memory", "host memory at 200 sessions", Target(90e6, f"90 MB + {HOST_BYTES_PER_SESSION / 1e6} MB per session")
)
START = RowSpec("start", "start of the runtime in a container, exec → hello", Target(0.120, "120 ms"))
IDLE = RowSpec("idle", "idle CPU: host + 200 sessions, a ping each 10 s", Target(0.05, "5 % of one core"))
SCALE = RowSpec("scale", "200 sessions, mixed calls: a small call's p99")
THOUSAND = RowSpec("thousand", "1,000 idle sessions")
RAY_CALL = RowSpec("ray-call", "Ray cluster: tool call p50, small result", Target(2.5, "2.5 × one machine's"))
RAY_LARGE = RowSpec("ray-large", "Ray cluster: tool call with a 1 MB result, p50")
RAY_WARM = RowSpec("ray-warm", "Ray cluster: warm create → prompt, p50", Target(3.0, "3.0 × one machine's"))
PLACEMENTS = RowSpec("placements", "Ray cluster: places reserved")
RAY_COST = RowSpec("ray-cost", "Ray cluster: memory")
OPENENV = RowSpec("openenv", "peer: OpenEnv's local Docker provider")
SWEREX = RowSpec("swe-rex", "peer: SWE-ReX's Docker deployment")

ROWS = (
    CALL,
    THROUGHPUT,
    LARGE,
    SERVER_CALL,
    WARM,
    COLD,
    CHURN,
    BURST,
    MEMORY,
    HOST_MEMORY,
    START,
    IDLE,
    SCALE,
    RAY_CALL,
    RAY_LARGE,
    RAY_WARM,
    PLACEMENTS,
    RAY_COST,
    OPENENV,
    SWEREX,
    THOUSAND,
)

ON_REQUEST = (THOUSAND,)
"""Measured only if named: what fills a machine is not for everybody who runs the benchmark."""
