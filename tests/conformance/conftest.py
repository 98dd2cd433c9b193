"""The images, the servers, the one run of the list, and the table at the end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docker.harness import RunningHost, running_host

from . import report, servers
from .flows import Flow
from .running import Case, Outcome, run

# Both clients honour proxy variables, for loopback addresses too; the newer one asks for its latest version.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"

_OUTCOMES: pytest.StashKey[dict[tuple[str, str], Outcome]] = pytest.StashKey()
_TIMEOUT_S = 600  # of the first test: it waits for images of several SDKs, and for the whole run


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
def images(folders: dict[str, Path]) -> dict[str, str]:
    """An image of each folder."""
    return {name: servers.build(folder, servers.IMAGES[name]) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def ors_host(images: dict[str, str]) -> Iterator[RunningHost]:
    """Our server with the environments written for ors-sdk."""
    with running_host(images["ors-sdk"], images["games"], memory="512MiB", start_concurrency=2) as host:
        yield host


@pytest.fixture(scope="session")
def openreward_host(images: dict[str, str]) -> Iterator[RunningHost]:
    """Our server with the environments written for openreward."""
    with running_host(images["openreward"], images["tutor"], memory="512MiB", start_concurrency=2) as host:
        yield host


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, folders: dict[str, Path], ors_host: RunningHost, openreward_host: RunningHost
) -> dict[tuple[str, str], Outcome]:
    """What the flows of the selected tests came to."""
    selected = [case for item in request.session.items if (case := _case(item)) is not None]
    ours = {"ors-sdk": ors_host.url, "openreward": openreward_host.url, "tutor": openreward_host.url}
    with ExitStack() as stack:
        reference = {
            name: stack.enter_context(servers.sdk_server(dialect, folders[name]))
            for name, dialect in (("ors-sdk", "ors-sdk"), ("openreward", "openreward"), ("tutor", "openreward"))
        }
        found = asyncio.run(run(selected, reference, ours))
    request.config.stash[_OUTCOMES] = found
    return found


def _case(item: pytest.Item) -> Case | None:
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
