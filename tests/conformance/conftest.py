"""The images, the servers, the one run of the list, and the table at the end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.docker.harness import running_host

from . import report, servers
from .flows import Flow
from .running import Case, Outcome, run

# Both clients honour proxy variables, for loopback addresses too; the newer one asks for its latest version.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"

_OUTCOMES: pytest.StashKey[dict[tuple[str, str], Outcome]] = pytest.StashKey()
SETTINGS: dict[str, Any] = {"memory": "512MiB", "start_concurrency": 2, "start_timeout": 240}
"""Importing openreward is three seconds of work, and the machine may have other things to do."""

_TIMEOUT_S = 900  # of the first test: it waits for images of several SDKs, and for the whole run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("docker")
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def folders() -> Iterator[dict[str, Path]]:
    """The environments' folders, each as its author left it."""
    with servers.folders() as found:
        yield found


@pytest.fixture(scope="session")
def urls(folders: dict[str, Path]) -> Iterator[dict[str, str]]:
    """Our servers, one for each image: their addresses by the folder's name."""
    servers.build_all(folders)
    with ExitStack() as stack:
        yield {name: stack.enter_context(running_host(servers.IMAGES[name], **SETTINGS)).url for name in folders}


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, folders: dict[str, Path], urls: dict[str, str]
) -> dict[tuple[str, str], Outcome]:
    """What the flows of the selected tests came to."""
    selected = [case for item in request.session.items if (case := _case(item)) is not None]
    with ExitStack() as stack:
        reference = {
            name: stack.enter_context(servers.sdk_server(dialect, folders[name]))
            for name, dialect in (("ors-sdk", "ors-sdk"), ("openreward", "openreward"), ("tutor", "openreward"))
        }
        found = asyncio.run(run(selected, reference, urls))
    request.config.stash[_OUTCOMES] = found
    return found


def _case(item: pytest.Item) -> Case | None:
    if Path(__file__).parent not in item.path.parents:
        return None  # the same flows are asked of others as well
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    flow = parameters.get("flow")
    return (str(parameters["dialect"]), flow) if isinstance(flow, Flow) else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    outcomes = config.stash.get(_OUTCOMES, None)
    if outcomes is None:
        return
    terminalreporter.section("conformance: ors-host beside the SDKs' own servers")
    for line in report.summary(outcomes):
        terminalreporter.write_line(line)
