"""The list of requests, asked of the SDKs' own servers and of ours; no answer may differ in a way that is not listed."""

from __future__ import annotations

import pytest

from .differences import TABLE
from .flows import Flow
from .report import PAGE, page
from .running import Outcome, cases
from .servers import DIALECTS

Outcomes = dict[tuple[str, str], Outcome]
CASES = [pytest.param(*case, id=f"{case[0]}: {case[1].name}") for dialect in DIALECTS for case in cases(dialect)]
LEAST_EXCHANGES = 150


@pytest.mark.parametrize(("dialect", "flow"), CASES)
def test_answers_are_the_same_but_for_what_is_listed(outcomes: Outcomes, dialect: str, flow: Flow) -> None:
    outcome = outcomes[dialect, flow.name]
    assert not outcome.unlisted, "\n\n" + "\n".join(outcome.unlisted)
    assert outcome.exchanges > 0


def test_enough_is_compared_and_every_listed_difference_is_seen(outcomes: Outcomes) -> None:
    if len(outcomes) < len(CASES):
        pytest.skip("only some flows were selected")
    assert sum(outcome.exchanges for outcome in outcomes.values()) >= LEAST_EXCHANGES
    seen = {(dialect, name) for (dialect, _), outcome in outcomes.items() for name in outcome.by_difference}
    stale = [(dialect, row.name) for row in TABLE for dialect in row.theirs if (dialect, row.name) not in seen]
    assert not stale, "listed, but there is no such difference"


def test_the_page_shows_the_table() -> None:
    assert PAGE.read_text() == page(), "make it anew: python -m tests.conformance.report"
