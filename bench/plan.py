"""How much is measured: the full benchmark, and the quick one, which shows that all of it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """Numbers of one profile. Rounds are of both sides in turn; times are in seconds."""

    name: str
    call_rounds: int
    calls_per_round: int
    throughput_rounds: int
    throughput_s: float
    throughput_sessions: int
    large_rounds: int
    large_per_round: int
    creations: int
    churn_s: float
    churn_clients: int
    burst: int
    starts: int
    sessions: tuple[int, ...]
    """How many there are at the steps of the ramp; the last is where idle CPU and the host's memory are measured."""
    most_sessions: int
    """For the row that asks how many idle ones a machine takes."""
    idle_s: float
    mixed_s: float
    cluster_nodes: tuple[int, ...]
    """How many nodes the Ray clusters have whose cost is measured, one cluster after the other."""
    cluster_sessions: int
    """On each of their nodes."""
    cluster_idle_s: float
    placements: int
    """So many reservations at once."""
    peer_starts: int
    peer_calls: int
    """For each start."""
    peer_clients: int
    peer_sessions: int
    """So many at the same time, and so many in all, for sessions a second."""
    prepares_peers: bool
    """If not, peers are measured only where an earlier run has installed them."""


FULL = Plan(
    name="full",
    call_rounds=20,
    calls_per_round=200,
    throughput_rounds=5,
    throughput_s=3.0,
    throughput_sessions=32,
    large_rounds=10,
    large_per_round=20,
    creations=40,
    churn_s=60.0,
    churn_clients=8,
    burst=100,
    starts=25,
    sessions=(1, 10, 50, 100, 200),
    most_sessions=1000,
    idle_s=50.0,
    mixed_s=12.0,
    cluster_nodes=(1, 2, 3),
    cluster_sessions=20,
    cluster_idle_s=10.0,
    placements=500,
    peer_starts=5,
    peer_calls=20,
    peer_clients=4,
    peer_sessions=12,
    prepares_peers=True,
)

QUICK = Plan(
    name="quick",
    call_rounds=3,
    calls_per_round=50,
    throughput_rounds=2,
    throughput_s=1.0,
    throughput_sessions=8,
    large_rounds=3,
    large_per_round=4,
    creations=4,
    churn_s=4.0,
    churn_clients=8,
    burst=16,
    starts=4,
    sessions=(1, 5, 20),
    most_sessions=50,
    idle_s=10.0,
    mixed_s=3.0,
    cluster_nodes=(1, 2),
    cluster_sessions=2,
    cluster_idle_s=2.0,
    placements=50,
    peer_starts=1,
    peer_calls=5,
    peer_clients=2,
    peer_sessions=2,
    prepares_peers=False,
)
