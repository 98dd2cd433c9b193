"""The conformance suite on images that run an SDK's own server: the same answers through ors-host as directly, but for what is
listed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conformance import servers
from tests.conformance.flows import Flow
from tests.conformance.report import page, summary
from tests.conformance.running import Case, Outcome, cases, run
from tests.conformance.servers import DIALECTS
from tests.docker.harness import running_host
from tests.strangers.differences import HEAD, PAGE, SERVERS_TABLE
from tests.strangers.images import build_sdk_servers

Outcomes = dict[tuple[str, str], Outcome]

SETTINGS: dict[str, Any] = {"memory": "512MiB", "start_concurrency": 2, "start_timeout": 240}
"""Importing openreward is three seconds of work, and the machine may have other things to do."""

CASES = [pytest.param(*case, id=f"{case[0]}: {case[1].name}") for dialect in DIALECTS for case in cases(dialect)]
LEAST_EXCHANGES = 150

pytestmark = pytest.mark.timeout(900)  # the first waits for the whole run


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """What the flows of the selected tests came to."""
    selected = [case for item in request.session.items if (case := _case(item)) is not None]
    with servers.folders() as folders, ExitStack() as stack:
        images = build_sdk_servers({name: folder for name, folder in folders.items() if name != "games"})
        reference = {
            name: stack.enter_context(servers.sdk_server("openreward" if name == "tutor" else name, folders[name]))
            for name in images
        }
        ours = {name: stack.enter_context(running_host(image, **SETTINGS)).url for name, image in images.items()}
        found = asyncio.run(run(selected, reference, ours, SERVERS_TABLE))
    print("\n".join(summary(found, SERVERS_TABLE)))
    yield found


def _case(item: pytest.Item) -> Case | None:
    if not (isinstance(item, pytest.Function) and item.function is test_answers_are_the_same_but_for_what_is_listed):
        return None
    dialect, flow = item.callspec.params["dialect"], item.callspec.params["flow"]
    return (str(dialect), flow) if isinstance(flow, Flow) else None


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
    stale = [(dialect, row.name) for row in SERVERS_TABLE for dialect in row.theirs if (dialect, row.name) not in seen]
    assert not stale, "listed, but there is no such difference"


def test_the_page_shows_the_table() -> None:
    assert PAGE.read_text() == page(HEAD, SERVERS_TABLE), "make it anew: python -m tests.strangers.differences"
