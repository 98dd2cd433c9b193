"""The table of differences, for the end of a run and for ``DIFFERENCES.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .differences import OPENREWARD, ORS, TABLE, Difference
from .running import Outcome

PAGE = Path(__file__).with_name("DIFFERENCES.md")

_HEAD = """# Where ors-host answers otherwise than the SDKs' own servers, and why

The conformance suite asks three servers the same: ors-sdk 0.1.0's own, openreward 0.1.167's own, and ors-host with the same
environments in containers. These are all the differences; the suite fails on any other. An empty cell means no difference.

This page is made from `tests/conformance/differences.py` by `python -m tests.conformance.report`.
"""


def page(head: str = _HEAD, table: Sequence[Difference] = TABLE) -> str:
    """Return the text of ``DIFFERENCES.md``."""
    lines = [head, f"| | {ORS} | {OPENREWARD} | ors-host | why |", "|---|---|---|---|---|"]
    for row in table:
        cells = [row.name, row.theirs.get(ORS, ""), row.theirs.get(OPENREWARD, ""), row.ours, row.why]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def summary(outcomes: Mapping[tuple[str, str], Outcome], table: Sequence[Difference] = TABLE) -> list[str]:
    """Return the lines for the end of a run."""
    counted = {dialect: [o for (found, _), o in outcomes.items() if found == dialect] for dialect in (ORS, OPENREWARD)}
    lines = [f"{'exchanges with this difference':<58}{ORS:>10}{OPENREWARD:>12}"]
    for row in table:
        numbers = {d: sum(o.by_difference.get(row.name, 0) for o in found) for d, found in counted.items()}
        lines.append(f"  {row.name:<56}{numbers[ORS] or '–':>10}{numbers[OPENREWARD] or '–':>12}")
    totals = {dialect: sum(outcome.exchanges for outcome in found) for dialect, found in counted.items()}
    unlisted = sum(len(outcome.unlisted) for outcome in outcomes.values())
    lines.append(f"  {'exchanges compared':<56}{totals[ORS]:>10}{totals[OPENREWARD]:>12}")
    lines.append(f"{sum(totals.values())} exchanges compared, {unlisted} unlisted differences")
    return lines


if __name__ == "__main__":
    PAGE.write_text(page())
