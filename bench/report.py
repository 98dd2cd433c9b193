"""The results: as a table on a terminal, as a file, and as the README's table. Pure but for the file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from bench.machine import Machine
from bench.numbers import Verdict, mb, ms
from bench.table import ROWS, Row

FORMAT = 1
STEP_COLUMNS = (
    "sessions",
    "created",
    "host",
    "whole of a session",
    "small call p50",
    "p99",
    "command p50",
    "1 MB p50",
)
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


def scale_table(rows: Sequence[Row]) -> Table | None:
    """Return how cost grows with sessions, if that was measured."""
    steps = next((row.details["steps"] for row in rows if "steps" in row.details), None)
    if steps is None:
        return None
    table = Table(title="How cost grows with sessions", title_justify="left", pad_edge=False)
    for name in STEP_COLUMNS:
        table.add_column(name, justify="right")
    for step in steps:
        table.add_row(*step_cells(step))
    return table


def step_cells(step: dict[str, Any]) -> list[str]:
    """Return one line of that table, under ``STEP_COLUMNS``."""
    times = [step[f"{kind}_s"] for kind in ("small", "command", "large")]
    small, command, large = (each or {"p50": math.nan, "p99": math.nan} for each in times)
    return [
        str(step["sessions"]),
        f"{step['creations_per_s']:.1f}/s",
        mb(step["host_bytes"]),
        mb(step["whole_bytes_per_session"]),
        *(ms(each) for each in (small["p50"], small["p99"], command["p50"], large["p50"])),
    ]


def as_json(machine: Machine, profile: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return all that is known of a run."""
    return {
        "format": FORMAT,
        "profile": profile,
        "machine": machine.as_json(),
        "machine_in_words": machine.words(),
        "machine_busy": machine.is_busy,
        "rows": [row.as_json() for row in rows],
    }


def merged(first: dict[str, Any], *others: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a run with the rows that others have measured in place of its own, and those that it lacks."""
    rows = {row["name"]: row for results in (first, *others) for row in results["rows"]}
    return {**first, "rows": [rows[spec.name] for spec in ROWS if spec.name in rows]}


def write(path: Path, results: dict[str, Any]) -> None:
    """Write the results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def markdown(results: dict[str, Any]) -> str:
    """Return the README's table of a results file."""
    lines = [
        f"Measured on {results['machine']['date']} with `make bench`, on {results['machine_in_words']}.{_busy(results)}",
        "",
        "| what | target | measured | verdict |",
        "|---|---|---|---|",
    ]
    for row in results["rows"]:
        measured = (row["measured"] or row["error"] or row["note"]).splitlines()[0]
        lines.append(f"| {row['title']} | {row['target'] or '–'} | {_cell(measured)} | {row['verdict']} |")
    for row in results["rows"]:
        if steps := row["details"].get("steps"):
            lines += ["", f"How cost grows with sessions ({row['note']}):", ""]
            lines += [f"| {' | '.join(STEP_COLUMNS)} |", "|" + "---:|" * len(STEP_COLUMNS)]
            lines += [f"| {' | '.join(step_cells(step))} |" for step in steps]
    return "\n".join(lines) + "\n"


def _busy(results: dict[str, Any]) -> str:
    load = results["machine"]["load_before"][0]
    return f" The machine was busy with other things (load {load:.1f})." if results["machine_busy"] else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
