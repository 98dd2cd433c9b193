"""The results: as a table on a terminal, as a file, and as the README's table. Pure but for the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from bench.machine import Machine
from bench.numbers import Verdict
from bench.table import Row

FORMAT = 1
_STYLES = {Verdict.OK: "green", Verdict.MISSED: "red", Verdict.STATED: "", Verdict.NOT_RUN: "yellow"}


def terminal_table(rows: Sequence[Row]) -> Table:
    """Return the rows as a table for people."""
    table = Table(title="ors-host: benchmark", title_justify="left", pad_edge=False)
    for name in ("what", "target", "measured", "served", "verdict", "how"):
        table.add_column(name, overflow="fold")
    for row in rows:
        style = _STYLES[row.verdict]
        verdict = f"[{style}]{row.verdict}[/]" if style else str(row.verdict)
        rate = "" if row.success_rate is None else f"{row.success_rate:.0%}"
        target = str(row.spec.target or "")
        table.add_row(row.spec.title, target, escape(row.measured or row.error), rate, verdict, escape(row.note))
    return table


def as_json(machine: Machine, profile: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return all that is known of a run."""
    return {
        "format": FORMAT,
        "profile": profile,
        "machine": machine.as_json(),
        "machine_in_words": machine.words(),
        "rows": [row.as_json() for row in rows],
    }


def write(path: Path, results: dict[str, Any]) -> None:
    """Write the results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def markdown(results: dict[str, Any]) -> str:
    """Return the README's table of a results file."""
    lines = [
        f"Measured on {results['machine']['date']} with `make bench`, on {results['machine_in_words']}.",
        "",
        "| what | target | measured | verdict |",
        "|---|---|---|---|",
    ]
    for row in results["rows"]:
        measured = row["measured"] or row["error"].splitlines()[0]
        lines.append(f"| {row['title']} | {row['target'] or '–'} | {_cell(measured)} | {row['verdict']} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
