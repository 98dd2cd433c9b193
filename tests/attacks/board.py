"""The board of attacks: what each is called, and how it ended. Printed at the end of the run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

AGENT = "agent"
ENVIRONMENT = "environment"
CLIENT = "client"

PROFILES = tuple(os.environ.get("ORS_ATTACK_PROFILES", "standard").split(","))
"""The isolation profiles that the attacks from inside a container are carried out under."""


@dataclass(frozen=True)
class Row:
    """One attack's line in the table. ``shown``: it was seen to succeed where the defence was taken away."""

    id: str
    party: str
    what: str
    profile: str
    shown: bool
    outcome: str


def attack(id: str, party: str, what: str) -> pytest.MarkDecorator:
    """Mark a test as an attack: ``what`` says what must not happen."""
    return pytest.mark.attack(id, party, what)


def table(rows: Iterable[Row]) -> list[str]:
    """Return the table's lines."""
    lines = [f"{'attack':<5} {'party':<12} {'profile':<9} {'weakened':<9} {'result':<8} what must not happen"]
    for row in sorted(rows, key=lambda row: (row.party, row.id, row.profile)):
        shown = "succeeds" if row.shown else "-"
        lines.append(f"{row.id:<5} {row.party:<12} {row.profile:<9} {shown:<9} {row.outcome:<8} {row.what}")
    return lines
