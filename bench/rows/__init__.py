"""Which rows are measured together, in the order in which they are."""

from __future__ import annotations

from bench.context import Group
from bench.images import NATIVE_IMAGE, SDK_IMAGE, SERVER_IMAGE
from bench.rows import calls, churn, cluster, creation, own_server, peers, scale, start, thousand
from bench.table import (
    BURST,
    CALL,
    CHURN,
    COLD,
    HOST_MEMORY,
    IDLE,
    LARGE,
    MEMORY,
    OPENENV,
    PLACEMENTS,
    RAY_CALL,
    RAY_COST,
    RAY_LARGE,
    RAY_WARM,
    SCALE,
    SERVER_CALL,
    START,
    SWEREX,
    THOUSAND,
    THROUGHPUT,
    WARM,
)

GROUPS = (
    Group((CALL, LARGE), calls.latency, SDK_IMAGE),
    Group((SERVER_CALL,), own_server.call, SERVER_IMAGE),
    Group((THROUGHPUT,), calls.throughput, SDK_IMAGE),
    Group((WARM,), creation.warm, NATIVE_IMAGE),
    Group((COLD,), creation.cold, NATIVE_IMAGE),
    Group((CHURN, BURST), churn.churn_and_burst, NATIVE_IMAGE),
    Group((START,), start.start, NATIVE_IMAGE),
    Group((MEMORY, HOST_MEMORY, IDLE, SCALE), scale.scale, NATIVE_IMAGE),
    Group((RAY_CALL, RAY_LARGE, RAY_WARM), cluster.latency, NATIVE_IMAGE),
    Group((PLACEMENTS, RAY_COST), cluster.cost, NATIVE_IMAGE),
    Group((OPENENV,), peers.openenv, NATIVE_IMAGE),
    Group((SWEREX,), peers.swe_rex, NATIVE_IMAGE),
    Group((THOUSAND,), thousand.thousand, NATIVE_IMAGE),
)
