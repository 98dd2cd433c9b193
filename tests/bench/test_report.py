"""Rows, tables and the results file, of figures that were never measured."""

from __future__ import annotations

import json
import math

from rich.console import Console

from bench import report
from bench.machine import Machine
from bench.numbers import Verdict
from bench.rows import GROUPS
from bench.rows.start import imported
from bench.table import BURST, CALL, CHURN, ON_REQUEST, ROWS, SCALE, WARM, Row

MACHINE = Machine(
    date="2026-01-02",
    cpu="Some CPU",
    cores=2,
    memory_bytes=24 * 2**30,
    kernel="6.1.0",
    system="Some Linux",
    docker="20.10.24+x",
    storage_driver="overlay2",
    cgroup_version=2,
    python="3.11.2",
    packages={"ors-sdk": "0.1.0"},
    load_before=(0.1, 0.2, 0.3),
)
TIMES = {"n": 3, "p50": 0.001, "p99": 0.002, "mean": 0.001, "least": 0.001, "most": 0.002}
STEP = {
    "sessions": 200,
    "creations_per_s": 12.34,
    "host_bytes": 100e6,
    "whole_bytes_per_session": 30e6,
    "small_s": TIMES,
    "command_s": TIMES,
    "large_s": None,
}
ROWS_MEASURED = [
    Row(CALL, "0.50 × (1 ms to 2 ms)", 0.5, requests=10),
    Row(CHURN, "0.50 × (5/s to 10/s)", 0.5, requests=10, failed=1),
    Row(BURST, "99 of 100", math.inf, requests=100, failed=1),
    Row(WARM, "", None, requests=0, error="[no] pool\nat all"),
    Row(SCALE, "p99 2 ms", 0.002, requests=5, details={"steps": [STEP]}),
]


def test_every_row_is_measured_somewhere_once() -> None:
    measured = [spec for group in GROUPS for spec in group.specs]
    assert sorted(spec.name for spec in measured) == sorted(spec.name for spec in ROWS)
    assert set(ON_REQUEST) < set(ROWS)


def test_verdicts() -> None:
    assert [row.verdict for row in ROWS_MEASURED] == [
        Verdict.OK,
        Verdict.MISSED,
        Verdict.MISSED,
        Verdict.NOT_RUN,
        Verdict.STATED,
    ]
    assert [row.success_rate for row in ROWS_MEASURED] == [1.0, 0.9, 0.99, None, 1.0]


def test_the_results_file_is_json_that_says_it_all() -> None:
    results = json.loads(json.dumps(report.as_json(MACHINE, "full", ROWS_MEASURED), allow_nan=False))
    assert results["machine_in_words"] == (
        "2 cores of an Some CPU, 24 GiB, Some Linux, Linux 6.1.0, Docker 20.10.24, cgroup v2, Python 3.11.2"
    )
    row = results["rows"][0]
    assert (row["name"], row["target"], row["limit"], row["verdict"]) == ("call", "≤ 1.0 × ors-sdk's", 1.0, "ok")


def test_tables_for_people() -> None:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(report.terminal_table(ROWS_MEASURED))
        console.print(report.scale_table(ROWS_MEASURED))
    text = capture.get()
    for words in ("0.50 × (1 ms to 2 ms)", "missed", "[no] pool", "90%", "12.3/s", "30.0 MB", "2.00 ms"):
        assert words in text
    assert report.scale_table(ROWS_MEASURED[:2]) is None


def test_rows_of_another_run_are_merged() -> None:
    first = report.as_json(MACHINE, "full", [Row(CALL, "old", 1.0, requests=1), Row(CHURN, "kept", 1.0, requests=1)])
    other = report.as_json(MACHINE, "full", [Row(WARM, "added", 1.0, requests=1), Row(CALL, "new", 1.0, requests=1)])
    rows = report.merged(first, other)["rows"]
    assert [(row["name"], row["measured"]) for row in rows] == [("call", "new"), ("warm", "added"), ("churn", "kept")]
    assert report.merged(first) == first


def test_the_table_of_the_readme() -> None:
    text = report.markdown(report.as_json(MACHINE, "full", ROWS_MEASURED))
    assert text.startswith("Measured on 2026-01-02 with `make bench`, on 2 cores of an Some CPU, 24 GiB")
    assert "| tool call p50, one session, small result | ≤ 1.0 × ors-sdk's | 0.50 × (1 ms to 2 ms) | ok |" in text
    assert "| [no] pool | not run |" in text
    assert "| 200 | 12.3/s | 100 MB | 30.0 MB | 1.00 ms | 2.00 ms | 1.00 ms | – |" in text


def test_a_busy_machine_is_noticed() -> None:
    assert not MACHINE.is_busy
    assert Machine(**{**MACHINE.as_json(), "load_before": (1.0, 0.0, 0.0)}).is_busy


def test_a_busy_machine_is_owned_up_to() -> None:
    busy = Machine(**{**MACHINE.as_json(), "load_before": (3.14, 0.0, 0.0)})
    assert "was busy with other things (load 3.1)" in report.markdown(report.as_json(busy, "full", ROWS_MEASURED))


def test_import_times_are_read() -> None:
    log = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:       120 |        120 |     zipimport\n"
        "import time:      1500 |       9000 | pydantic\nsomething else\n"
    )
    assert imported(log) == [("zipimport", 120, 120), ("pydantic", 1500, 9000)]
