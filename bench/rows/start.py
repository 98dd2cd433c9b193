"""How long the runtime takes in its container from exec to hello, and what it imports."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench.context import Bench, undisturbed
from bench.floor import Floor
from bench.images import NATIVE_IMAGE
from bench.numbers import Summary, ms
from bench.ours import our_host
from bench.table import START, Row

_IMPORT = re.compile(r"^import time:\s+(\d+) \|\s+(\d+) \|( *)(\S+)$", re.MULTILINE)
_HEAVIEST = 15


async def start(bench: Bench) -> list[Row]:
    """Measure the runtime's start, one at a time."""
    async with our_host([NATIVE_IMAGE], max_sessions=1, warm=0) as host:
        floor = Floor(bench.engine, host.pattern())
        took_s, alone_s = [], []
        for turn in range(-1, bench.plan.starts):  # the first is to warm up
            bench.say(f"start {max(turn, 0) + 1} of {bench.plan.starts}")
            with undisturbed():
                one_s, imports_s = floor.runtime_start_s(), floor.imports_alone_s()
            if turn >= 0:
                took_s.append(one_s)
                alone_s.append(imports_s)
        imports = imported(floor.import_times())
    summary, alone = Summary.of(took_s), Summary.of(alone_s)
    total_us = sum(own_us for _, own_us, _ in imports)
    return [
        Row(
            START,
            measured=f"{ms(summary.p50)} (p99 {ms(summary.p99)}; {len(imports)} modules are imported); a bare Python with "
            f"asyncio and one pydantic model {ms(alone.p50)}",
            value=summary.p50,
            requests=summary.n,
            note="environment written for ors-host, with pydantic",
            details={
                "start_s": summary.as_json(),
                "imports_alone_s": alone.as_json(),
                "modules": len(imports),
                "importing_s": total_us / 1e6,
                "heaviest": [
                    {"module": name, "own_s": own_us / 1e6, "with_its_imports_s": all_us / 1e6}
                    for name, own_us, all_us in sorted(imports, key=lambda item: -item[2])[:_HEAVIEST]
                ],
            },
        )
    ]


def imported(log: str) -> Sequence[tuple[str, int, int]]:
    """Return what ``python -X importtime`` printed: a module, its own microseconds, and with all that it imported."""
    return [(name, int(own), int(total)) for own, total, _, name in _IMPORT.findall(log)]
