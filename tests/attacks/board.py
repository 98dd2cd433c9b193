"""The board of attacks: what each is called, and how it ended. Printed at the end of the run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from host.isolation import Profile

AGENT = "agent"
ENVIRONMENT = "environment"
CLIENT = "client"

IN_FULL = tuple(os.environ.get("ORS_ATTACK_PROFILES", "standard").split(","))
"""The isolation profiles under which all attacks from inside a container are carried out; under the others it is ``SAMPLE``."""

SAMPLE = frozenset(
    [
        *("A02", "A04", "A09", "A11", "A17", "A21", "A22", "A32", "A41"),
        *("B01", "B03", "B05", "B07", "B09", "B11", "B19", "B23", "B26", "B27", "C01"),
        *("E01", "E14", "F11", "G01", "G05", "G11", "G16", "G17", "G20", "G31"),
    ]
)
"""What a profile could change: users, descriptors, memory, limits, files, mounts, sockets; of all else one or two."""

NOT_KEPT: dict[str, dict[str, str]] = {
    Profile.GVISOR: {
        **dict.fromkeys(["B13", *(f"B{number}" for number in range(19, 28))], "no Landlock in gVisor's kernel"),
        **dict.fromkeys(["B09", "B10"], "more processes than gVisor can have threads"),
        "G16": "a device there is its kernel's, not the machine's",
    }
}
"""What a profile is not meant to keep from, as the threat model says, or where it would mean nothing."""

NO_PROFILE = "any"


@dataclass(frozen=True)
class Row:
    """One attack, once. ``shown``: it was seen to succeed where the defence was taken away."""

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
    """Return the table's lines: one for each attack, with a column for each profile that any was carried out under."""
    rows = list(rows)
    profiles = [name for name in (*Profile, NO_PROFILE) if any(row.profile == name for row in rows)]
    lines = [_line("attack", "party", "weakened", profiles, "what must not happen")]
    for id in sorted({row.id for row in rows}, key=lambda id: min((row.party, id) for row in rows if row.id == id)):
        own = [row for row in rows if row.id == id]
        results = [" ".join(sorted({row.outcome for row in own if row.profile == name})) or "-" for name in profiles]
        shown = "succeeds" if any(row.shown for row in own) else "-"
        lines.append(_line(id, own[0].party, shown, results, own[0].what))
    return lines


def _line(id: str, party: str, weakened: str, results: Iterable[str], what: str) -> str:
    return " ".join([f"{id:<6}", f"{party:<11}", f"{weakened:<8}", *(f"{result:<8}" for result in results), what])
