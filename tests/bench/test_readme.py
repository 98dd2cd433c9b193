"""The README's table is that of the results that are kept."""

from __future__ import annotations

import json

import pytest

from bench import report
from bench.readme import END, KEPT, README, START, replaced
from bench.table import ON_REQUEST, ROWS


def test_the_table_is_that_of_one_full_run_or_there_is_none() -> None:
    table = ""
    if KEPT.exists():
        kept = json.loads(KEPT.read_text())
        assert kept["profile"] == "full"
        assert [row["name"] for row in kept["rows"]] == [spec.name for spec in ROWS if spec not in ON_REQUEST]
        table = report.markdown(kept)
    text = README.read_text()
    assert replaced(text, table) == text


def test_only_the_table_is_replaced() -> None:
    assert replaced(f"a\n{START}old\n{END}b\n", "new\n") == f"a\n{START}new\n{END}b\n"
    with pytest.raises(ValueError, match="no place"):
        replaced(f"a\n{START}old\n", "new\n")
