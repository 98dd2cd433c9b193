"""What a soak found: counts, faults by kind, what must be none, and the host's memory and descriptors over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from tests.lifecycle.hosts import Usage

_MAX_DETAILS = 20
_TOLERANCE = 0.05
_MIB = 1024**2


class Report:
    """Filled as the soak goes on."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sessions = 0
        self.calls = 0
        self.refused = 0
        self.faults: Counter[str] = Counter()
        self.doubles = 0
        self.lost = 0
        self.leaks = 0
        self.wrong = 0
        self.most_containers = 0
        self.slowest_notice_s = 0.0
        self.details: list[str] = []
        self.usage: list[Usage] = []
        self.rest: list[Usage] = []
        self.kept: list[str] = []

    def fault(self, kind: str) -> None:
        """Count a fault that was put in."""
        self.faults[kind] += 1

    def bad(self, kind: str, words: str) -> None:
        """Count something that must not be: ``doubles``, ``lost``, ``leaks`` or ``wrong`` (answers, health)."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.details) < _MAX_DETAILS:
            self.details.append(f"{kind}: {words}")

    @property
    def problems(self) -> list[str]:
        """Why this soak has not passed; empty if it has."""
        problems = [
            f"{kind}: {count}" for kind in ("leaks", "doubles", "lost", "wrong") if (count := getattr(self, kind))
        ]
        problems += [f"at rest {words}" for words in self.kept]
        if self.most_containers > self.limit:
            problems.append(f"{self.most_containers} containers of sessions at once, at a limit of {self.limit}")
        return problems

    def compare(self, before: Usage, after: Usage, *, spare_descriptors: int = 0) -> None:
        """Take note of what a host held at rest, before and after all this."""
        self.rest = [before, after]
        for field, spare in (("descriptors", spare_descriptors), ("threads", 0)):
            more = getattr(after, field) - getattr(before, field)
            if more > spare:
                self.kept.append(f"{more} {field} more than before")

    def drift(self) -> dict[str, float]:
        """How much more memory the last tenth of the time used than the second; empty if there is too little to say."""
        if len(self.usage) < 50:
            return {}
        second, last = self._tenth(1), self._tenth(9)
        return {"memory": _median(last, "rss_bytes") / _median(second, "rss_bytes") - 1}

    def memory_problems(self) -> list[str]:
        """What grew by more than 5 %."""
        return [f"{name} grew by {by:.1%}" for name, by in self.drift().items() if by > _TOLERANCE]

    def lines(self) -> list[str]:
        """The report."""
        lines = [
            f"sessions           {self.sessions}",
            f"calls              {self.calls}",
            f"told to come again {self.refused}",
            f"faults             {sum(self.faults.values())}",
            *(f"  {kind:<24} {count}" for kind, count in sorted(self.faults.items())),
            f"most containers    {self.most_containers} (limit {self.limit})",
            f"slowest notice     {self.slowest_notice_s:.2f} s from a container's end to the client's knowing",
            f"leaks              {self.leaks}",
            f"double executions  {self.doubles}",
            f"lost results       {self.lost}",
            f"wrong answers      {self.wrong}",
        ]
        if len(self.usage) >= 10:
            lines.append("tenth of the time  memory MiB  descriptors  threads   (medians)")
            for n in range(10):
                tenth = self._tenth(n)
                if tenth:
                    memory = _median(tenth, "rss_bytes") / _MIB
                    rest = f"{_median(tenth, 'descriptors'):>13.0f}{_median(tenth, 'threads'):>9.0f}"
                    lines.append(f"{n + 1:>17}  {memory:>10.1f}{rest}")
        for when, usage in zip(("before", "after"), self.rest, strict=False):
            lines.append(
                f"at rest {when:<10} {usage.rss_bytes >> 20} MiB, {usage.descriptors} descriptors, {usage.threads} threads"
            )
        lines += [f"{name}: last tenth {by:+.1%} against the second" for name, by in self.drift().items()]
        return lines + self.details

    def _tenth(self, n: int) -> list[Usage]:
        first, last = self.usage[0].at_s, self.usage[-1].at_s
        length = (last - first) / 10
        return [u for u in self.usage if first + n * length <= u.at_s <= first + (n + 1) * length]


def _median(usage: Sequence[Usage], field: str) -> float:
    return float(median(getattr(each, field) for each in usage))
