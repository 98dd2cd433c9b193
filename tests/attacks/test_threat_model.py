"""The threat model names its tests, and they exist; every attack belongs to a test that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCUMENT = TESTS.parent / "host" / "THREAT_MODEL.md"
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::([\w:]+)`", DOCUMENT.read_text())))


def rows() -> list[list[str]]:
    """Return the cells of the rows that name a threat."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("|") and line.count("|") == 6]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] != "threat" and not set(row[0]) <= set("-|")]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    defined: list[ast.stmt] = ast.parse((TESTS / file).read_text()).body
    for part in name.split("::"):
        found = [node for node in defined if getattr(node, "name", None) == part]
        assert found, f"{file} has no {name}"
        defined = getattr(found[0], "body", [])


def test_every_row_names_a_test() -> None:
    assert rows()
    for row in rows():
        assert len(row) == 5 and "::test" in row[4], row


def test_every_party_has_its_attacks() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    ids = set(re.findall(r'"([A-HKS]\d\d)"', text))
    assert len(ids) >= 60
    assert {identity[0] for identity in ids} >= set("ABCEFGHKS")
