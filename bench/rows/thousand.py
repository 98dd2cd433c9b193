"""How many idle sessions a machine takes, up to a thousand, and what stops it."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from bench.context import Bench
from bench.crowd import Crowd
from bench.images import NATIVE_IMAGE
from bench.numbers import mb
from bench.ours import our_host
from bench.table import THOUSAND, Row
from bench.usage import Meter
from bench.wire import RequestFailed

_STEP = 25
_LEAST_AVAILABLE_BYTES = 1.5e9


async def thousand(bench: Bench) -> list[Row]:
    """Open sessions until there are as many as planned, one is refused, or the machine's memory is nearly used up."""
    most = bench.plan.most_sessions
    stopped = ""
    begin = time.monotonic()
    async with our_host([NATIVE_IMAGE], max_sessions=most) as host, Crowd.gathering(host.server) as crowd:
        while len(crowd.sessions) < most and not stopped:
            bench.say(f"{len(crowd.sessions)} sessions")
            try:
                await crowd.grow(len(crowd.sessions) + _STEP)
            except RequestFailed as exc:
                stopped = str(exc)
            if (available := _available_bytes()) < _LEAST_AVAILABLE_BYTES:
                stopped = stopped or f"the machine has {mb(available)} of memory left"
        took_s = time.monotonic() - begin
        n = len(crowd.sessions)
        memory = Meter(host).memory(n)
        pings = await crowd.keep_alive(10.0)
    return [
        Row(
            THOUSAND,
            measured=f"{n} in {took_s:.0f} s; host {mb(memory.host)}" + (f"; stopped by: {stopped}" if stopped else ""),
            value=n,
            requests=n + pings,
            failed=0,
            note=f"load {os.getloadavg()[0]:.1f}",
            details={"sessions": n, "stopped_by": stopped, "seconds": took_s, **memory.as_json()},
        )
    ]


def _available_bytes() -> float:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else float("inf")
