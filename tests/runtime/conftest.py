"""Fixtures of the runtime's tests."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sandbox_runtime.agent import UNSAFE_SAME_USER, Agent
from tests.runtime.fake_host import FakeHost

# How long drawing an example takes says something about the machine only.
settings.register_profile("runtime", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("runtime")

OTHER_UID = 61_234
"""An identity that nobody on the machine has; it needs no entry in /etc/passwd."""


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's name (107 bytes in all)."""
    with tempfile.TemporaryDirectory(prefix="ors") as name:
        yield Path(name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that can be imported from; what is imported in the test is forgotten after it, a ``__main__`` of its too."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        where = [getattr(sys.modules[name], attribute, "") for attribute in ("__file__", "__path__")]
        if str(tmp_path) in str(where):
            del sys.modules[name]


@pytest.fixture
async def host(short_directory: Path) -> AsyncIterator[FakeHost]:
    """A host that listens in ``short_directory``."""
    fake = FakeHost(short_directory)
    await fake.listen()
    yield fake
    fake.close()


@pytest.fixture
def same_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the agent's commands as ourselves, in the directory returned."""
    monkeypatch.setenv(UNSAFE_SAME_USER, "1")
    monkeypatch.setattr("sandbox_runtime.agent.WORKSPACE", "/nonexistent")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def other_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Run the agent's commands as another user with a work directory of its own; its processes are ended afterwards."""
    if os.getuid() != 0:
        pytest.skip("only root can run commands as another user")
    from sandbox_runtime import processes

    with tempfile.TemporaryDirectory(prefix="ors") as name:
        os.chmod(name, 0o755)
        workspace = Path(name, "workspace")
        workspace.mkdir(mode=0o700)
        os.chown(workspace, OTHER_UID, OTHER_UID)
        agent = Agent("agent", OTHER_UID, OTHER_UID, str(workspace), str(workspace), same_user=False)
        for module in ("command", "shell"):
            monkeypatch.setattr(f"sandbox_runtime.{module}.current_agent", lambda: agent)
        yield agent
        assert processes.end_all(agent)
