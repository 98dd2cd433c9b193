"""Reservations on a Ray cluster, as the front makes them: ``python -m bench.placements ADDRESS GROUPS PID,…`` prints JSON.

A process of its own, because whoever asks Ray is a driver of its cluster until it ends.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Collection
from typing import Any

from bench import processes

_ONE_BY_ONE = 50
_WAIT_S = 60
_BUNDLE = {"ors_sandbox": 1.0, "CPU": 0.01, "memory": 2.0**20}
"""As a session's, but small: how large makes no difference to Ray, and so many are to have room."""


def measure(address: str, groups: int, head: Collection[int]) -> dict[str, Any]:
    """Return the times of reservations made one by one, and of many that are asked for at once and then are all there.

    ``head`` are the processes that keep book of them, whose memory is looked at.
    """
    import ray
    from ray.util import placement_group, remove_placement_group

    ray.init(address=address, log_to_driver=False, configure_logging=False)

    def reserve() -> Any:
        name = f"ors-bench-{uuid.uuid4()}"
        return placement_group([_BUNDLE], strategy="SPREAD", name=name, lifetime="detached")

    placed_s, removed_s = [], []
    for _ in range(_ONE_BY_ONE):
        begin = time.perf_counter()
        group = reserve()
        assert group.wait(_WAIT_S)
        placed = time.perf_counter()
        remove_placement_group(group)
        placed_s.append(placed - begin)
        removed_s.append(time.perf_counter() - placed)
    before = processes.total_pss_bytes(head)
    begin = time.perf_counter()
    many = [reserve() for _ in range(groups)]
    for group in many:
        assert group.wait(_WAIT_S)
    all_s = time.perf_counter() - begin
    bytes_per_group = (processes.total_pss_bytes(head) - before) / groups
    more_s = []
    for _ in range(_ONE_BY_ONE):
        begin = time.perf_counter()
        group = reserve()
        assert group.wait(_WAIT_S)
        more_s.append(time.perf_counter() - begin)
        many.append(group)
    begin = time.perf_counter()
    for group in many:
        remove_placement_group(group)
    return {
        "placed_s": placed_s,
        "removed_s": removed_s,
        "groups": groups,
        "placed_per_s": groups / all_s,
        "head_bytes_per_group": bytes_per_group,
        "placed_beside_them_s": more_s,
        "removed_per_s": len(many) / (time.perf_counter() - begin),
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), [int(pid) for pid in sys.argv[3].split(",")])))
