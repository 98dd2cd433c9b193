"""The benchmark runs: every row is there and nothing failed. Its figures are not judged here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench import processes
from bench.floor import LABEL
from bench.table import ON_REQUEST, OPENENV, ROWS, SWEREX
from host import docker_client
from host.engine import LABEL_SERVER

pytestmark = [pytest.mark.docker, pytest.mark.timeout(700)]

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def engine() -> Iterator[docker_client.APIClient]:
    with closing(docker_client.connect()) as client:
        yield client


def containers(engine: docker_client.APIClient, label: str) -> list[Any]:
    found: list[Any] = engine.containers(all=True, filters={"label": label})
    return found


def test_the_quick_benchmark(tmp_path: Path, engine: docker_client.APIClient) -> None:
    output = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench", "--quick", "--output", str(output)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        printed, _ = process.communicate(timeout=680)
    assert process.returncode == 0, printed
    rows = {row["name"]: row for row in json.loads(output.read_text())["rows"]}
    assert set(rows) == {spec.name for spec in ROWS if spec not in ON_REQUEST}
    for name, row in rows.items():
        assert row["error"] == ""
        if name not in (OPENENV.name, SWEREX.name):  # measured where an earlier run has installed them
            assert row["measured"], name
            assert row["success_rate"] == 1.0, name
    assert containers(engine, f"{LABEL}={process.pid}") == []


def test_a_benchmark_that_is_stopped_leaves_nothing(tmp_path: Path, engine: docker_client.APIClient) -> None:
    command = [sys.executable, "-m", "bench", "--only", "churn", "--output", str(tmp_path / "results.json")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            until(lambda: containers(engine, f"{LABEL}={process.pid}"), process)
            (host,) = [pid for pid in processes.tree(process.pid) if "--state-dir" in processes.arguments(pid)]
            words = processes.arguments(host)
            state = Path(words[words.index("--state-dir") + 1])
            server = f"{LABEL_SERVER}={(state / 'server-id').read_text()}"
            assert containers(engine, server)
            process.send_signal(signal.SIGINT)
            printed, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "bench: stopped" in printed
    assert containers(engine, f"{LABEL}={process.pid}") == containers(engine, server) == []
    assert not state.exists()
    assert not Path(f"/proc/{host}").exists()
    assert not (tmp_path / "results.json").exists()


def until(condition: Callable[[], Any], process: subprocess.Popen[str], timeout_s: float = 120) -> None:
    """Wait for what nothing announces."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
