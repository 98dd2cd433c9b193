"""What differs when an SDK's own server, in an image, is reached through ors-host: conformance's table, less what is the SDK's
to answer, and with what only this kind of image has.

``DIFFERENCES.md`` shows it to people: ``python -m tests.strangers.differences``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from tests.conformance.differences import OPENREWARD, ORS, TABLE, Difference, at, both, detail, events_of, words
from tests.conformance.report import page

PAGE = Path(__file__).with_name("DIFFERENCES.md")

HEAD = """# Where an SDK's own server answers otherwise through ors-host than directly, and why

The conformance suite again, with other images: in these the SDK's own server runs, one container for each session, and
ors-host stands before it. Compared with the same server asked directly. These are all the differences; an empty cell means
none. Rows with the same name as in `tests/conformance/DIFFERENCES.md` are the same difference.

This page is made from `tests/strangers/differences.py` by `python -m tests.strangers.differences`.
"""

THE_SERVERS_OWN: Mapping[str, Collection[str]] = {
    "Words: no such toolset": (OPENREWARD,),
    "Words: a toolset that can't be used": (OPENREWARD,),
    "A constructor that raises": (ORS,),
    "Why a tool was not run": (ORS,),
    "Calls at once": (ORS,),
    "A tool that raises `CancelledError`": (ORS, OPENREWARD),
    "A tool that raises without words": (ORS, OPENREWARD),
}
"""Rows of conformance's table that there are not, for these SDKs: it is their server that answers."""

OWN: tuple[Difference, ...] = (
    Difference(
        "A constructor that raises only when it is needed",
        {ORS: "`/create` succeeds, later requests get 500; `/ping` is well"},
        "the container is removed; 410 `setup_failed`",
        "Clients retry a 500 for 15 s, and it never gets better.",
        lambda exchange, delta: (
            at(exchange, "a constructor that raises")
            and (exchange.theirs.status, exchange.ours.status) in {(500, 410), (200, 410)}
            and detail(exchange).startswith("setup_failed: ValueError: OPENAI_API_KEY must be given")
        ),
    ),
    Difference(
        "Calls after the end of an episode: tools that there are not",
        both("the tool is looked for first"),
        "`ok: false`, `reason: episode_finished`: no call reaches the server any more",
        "One of the SDKs would run the tools that there are.",
        lambda exchange, delta: (
            at(exchange, "the end of an episode", path="/call")
            and exchange.request.body["name"] == "no_such_tool"
            and delta.place.endswith((".data.error", ".data.reason"))
            and any(
                isinstance(said, dict) and said["reason"] == "episode_finished"
                for _, said in events_of(exchange, "ours")
            )
        ),
    ),
    Difference(
        "A tool that raises without words, in a server that leaves it at that",
        both("an empty `error` event"),
        "a sentence that says that the server doesn't say how the tool failed",
        "Clients say `Unknown SSE error` for an empty one; the exception's name is known to nobody outside.",
        lambda exchange, delta: (
            at(exchange, "tools that fail")
            and exchange.request.body["input"] == {"what": "empty"}
            and words(delta, ".data", "", "the tool failed, and the environment's server doesn't say how")
            and delta.theirs == ""
        ),
    ),
)


def _table() -> tuple[Difference, ...]:
    rows = []
    for row in TABLE:
        left_out = THE_SERVERS_OWN.get(row.name, ())
        theirs = {dialect: words for dialect, words in row.theirs.items() if dialect not in left_out}
        if theirs:
            rows.append(replace(row, theirs=theirs))
    return (*rows, *OWN)


SERVERS_TABLE = _table()

if __name__ == "__main__":
    PAGE.write_text(page(HEAD, SERVERS_TABLE))
