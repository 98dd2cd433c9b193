"""The images that attacks come from, the hosts that they are aimed at, and the table that is printed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from host import docker_client
from host.base_image import ensure_base
from host.build import build_environment
from host.isolation import Profile
from host.progress import Steps
from tests.attacks.board import IN_FULL, NO_PROFILE, NOT_KEPT, SAMPLE, Row, table
from tests.attacks.hosts import GROWTH_MB, memory_mb, readers, serving_hostile
from tests.attacks.targets import Served, Weakened
from tests.conftest import Once
from tests.docker.harness import Client, RunningHost, running_host, until
from tests.isolation.conftest import gvisor

__all__ = ["gvisor"]

HERE = Path(__file__).parent
VAULT = "ors-host-test-vault:latest"
HOSTILE = "ors-host-test-hostile:latest"

_ROW = "row of the board"
_rows: list[Row] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "attack(id, party, what): an attack; what must not happen")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = []
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("docker")
            if not _chosen(item):
                left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _chosen(item: pytest.Item) -> bool:
    """Tell whether a test is carried out under its profile, if it has one; mark it where the profile can't keep it."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    profile = params.get("profile", params.get("hostile_profile"))
    if profile is None:
        return True
    marker = item.get_closest_marker("attack")
    id = str(marker.args[0]) if marker else ""
    if reason := NOT_KEPT.get(str(profile), {}).get(id):
        item.add_marker(pytest.mark.skip(reason=reason))
    return profile in IN_FULL or (id in SAMPLE and not reason)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    marker = item.get_closest_marker("attack")
    if marker is None or not (report.when == "call" or report.outcome != "passed"):
        return
    id, party, what = marker.args
    properties = dict(item.user_properties)
    result = {"passed": "repelled", "failed": "FAILED" if report.when == "call" else "NOT RUN", "skipped": "skipped"}[
        report.outcome
    ]
    row = (id, party, what, str(properties.get("profile", NO_PROFILE)), bool(properties.get("shown")), result)
    report.user_properties.append((_ROW, row))  # which also a worker process tells


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _rows.extend(Row(*value) for name, value in report.user_properties if name == _ROW)  # type: ignore[misc]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _rows:
        terminalreporter.section(f"{len({row.id for row in _rows})} attacks")
        for line in table(_rows):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def vault_image(once: Once) -> str:
    """An environment with secrets, an answer and a grader, and a careless twin of each tool."""
    once(VAULT, lambda: build_environment(HERE / "vault_env", VAULT))
    return VAULT


@pytest.fixture(scope="session", params=list(Profile))
def profile(request: pytest.FixtureRequest) -> str:
    """The isolation profile."""
    return _available(request)


def _available(request: pytest.FixtureRequest) -> str:
    if request.param is Profile.GVISOR:
        request.getfixturevalue("gvisor")
    return str(request.param)


@pytest.fixture(scope="session")
def vault_host(vault_image: str, profile: str) -> Iterator[RunningHost]:
    """A host that serves the vault, under one profile."""
    sizes: dict[str, Any] = {"memory": "384MiB", "tmp_size": "16MiB", "workspace_size": "16MiB"}
    with running_host(vault_image, max_sessions=16, isolation=profile, **sizes) as host:
        assert "files_can_use_up_memory" not in host.log
        yield host


@pytest.fixture
async def client(vault_host: RunningHost) -> AsyncIterator[Client]:
    """The raw protocol."""
    async with vault_host.client() as client:
        yield client


@pytest.fixture(autouse=True)
def _note_profile(request: pytest.FixtureRequest) -> None:
    for name in ("profile", "hostile_profile"):
        if name in request.fixturenames:
            request.node.user_properties.append(("profile", request.getfixturevalue(name)))


@pytest.fixture
async def served(vault_host: RunningHost, client: Client) -> AsyncIterator[Served]:
    """A session of its own."""
    async with Served.open(vault_host, client) as served:
        yield served


@pytest.fixture
async def weakened(vault_image: str) -> AsyncIterator[Weakened]:
    """A container without defences, of its own."""
    async with Weakened.open(vault_image) as weakened:
        yield weakened


@pytest.fixture(scope="session")
def hostile_image(once: Once) -> str:
    """A runtime of its own, which misbehaves as it is told. ``ors-host build`` refuses to make such an image."""
    once(HOSTILE, _build_hostile)
    return HOSTILE


def _build_hostile() -> None:
    with closing(docker_client.connect()) as engine:
        ensure_base(engine, Steps())
        for line in engine.build(path=str(HERE / "hostile"), tag=HOSTILE, rm=True, decode=True):
            assert "error" not in line, line


@pytest.fixture(scope="session", params=list(Profile))
def hostile_profile(request: pytest.FixtureRequest) -> str:
    """The isolation profile of the hostile runtime."""
    return _available(request)


@pytest.fixture(scope="session")
def hostile_host(hostile_image: str, hostile_profile: str) -> Iterator[RunningHost]:
    """A host that serves the hostile runtime; after all attacks it has not grown."""
    with serving_hostile(hostile_image, hostile_profile, call_timeout=40) as host:
        asyncio.run(_use(host))
        before = memory_mb(host)
        yield host
        # It looks for memory to give back every ten seconds.
        asyncio.run(until(lambda: readers(host) == [] and memory_mb(host) - before <= GROWTH_MB, 40))


@pytest.fixture(scope="session")
def impatient_host(hostile_image: str, hostile_profile: str) -> Iterator[RunningHost]:
    """The same, for attacks that consist in waiting."""
    with serving_hostile(hostile_image, hostile_profile, call_timeout=2, setup_timeout=2, create_timeout=2) as host:
        yield host


async def _use(host: RunningHost) -> None:
    async with host.client() as client:
        session = await client.create()
        await session.call("probe")
        await session.delete()
