"""Pages that are written by hand name all that there is, and nothing else. Settings and commands are generated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from host.errors import Failure, Reason, SandboxFailed
from host.routes import Routes

DOCS = Path(__file__).parents[2] / "docs"
HTTP = (DOCS / "reference" / "http.md").read_text()
SAME_AS = {"/get_task": "/task", "/get_task_range": "/task_range", "/delete_session": "/delete"}
"""Second names, of which the table speaks in another's row."""


def rows(after: str) -> list[list[str]]:
    """The cells of the first table after a heading."""
    lines = HTTP.partition(f"## {after}\n")[2].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip(" `") for cell in line.strip("|").split("|")])
    return table


def test_all_endpoints() -> None:
    routes = Routes(cast(Any, None), cast(Any, None)).table()
    there = {(route.method, re.sub(r":[^}]*}", "}", route.path)) for route in routes}
    bare = {(method, path) for method, path in there if (method, "/{env}" + path) in there}
    second = {(method, path) for method, path in there if path.removeprefix("/{env}") in SAME_AS}
    assert {(method, path) for method, path, *_ in rows("Endpoints")} == there - bare - second
    for name, first in SAME_AS.items():
        assert re.search(rf"`(/{{env}})?{first}`.*`{name}` is the same", HTTP)


def test_all_reasons_of_failures_with_their_status() -> None:
    said = {reason: int(status) for reason, status, *_ in rows("Reasons of failures")}
    assert said == {reason.value: SandboxFailed(Failure(reason, "")).status for reason in Reason} | {"capacity": 503}
