"""`images/engine.sh`: finding an engine, starting one, or saying what to do. Never the machine's own engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "images" / "engine.sh"
AS_ROOT_WITH_APT = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/bin/apt-get").exists(),
    reason="an engine is started only by root on Debian or Ubuntu",
)

# Answers pings as an engine does, after telling who and what it is; ends by itself if a test should forget it.
FAKE_DOCKERD = """
import os, signal, socket, sys
signal.alarm(60)
folder = sys.argv[1]
listener = socket.socket(socket.AF_UNIX)
listener.bind(folder + "/docker.sock")
listener.listen()
with open(folder + "/started", "a") as started:
    descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    print(os.getpid(), os.getsid(0), descriptors, file=started)
while True:
    peer, _ = listener.accept()
    peer.recv(4096)
    peer.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nOK")
    peer.close()
"""


@dataclass
class Sandbox:
    """A place for an engine of the script's own, in a folder."""

    folder: Path
    dockerd: str

    def run(self, *, docker_host: str | None = None, deadline_s: int = 20) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
        environ |= {
            "ORS_HOST_ENGINE_SOCKET": str(self.folder / "docker.sock"),
            "ORS_HOST_ENGINE_RUN_DIR": str(self.folder),
            "ORS_HOST_ENGINE_LOG": str(self.folder / "log"),
            "ORS_HOST_ENGINE_DEADLINE_S": str(deadline_s),
            "ORS_HOST_DOCKERD": self.dockerd,
        }
        if docker_host is not None:
            environ["DOCKER_HOST"] = docker_host
        # Captured through pipes, so a started engine that held them open would make this wait for its end.
        return subprocess.run(
            ["bash", str(SCRIPT)], env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50
        )

    def started(self) -> list[list[str]]:
        """Return a line per engine started: its pid, its session, its open descriptors."""
        file = self.folder / "started"
        return [line.split(maxsplit=2) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    program = tmp_path / "dockerd.py"
    program.write_text(FAKE_DOCKERD)
    sandbox = Sandbox(tmp_path, f"{sys.executable} {program} {tmp_path}")
    yield sandbox
    for pid, *_ in sandbox.started():
        os.kill(int(pid), signal.SIGKILL)


@AS_ROOT_WITH_APT
def test_an_engine_is_started_once_and_outlives_the_script(sandbox: Sandbox) -> None:
    first = sandbox.run()
    assert (first.returncode, first.stderr) == (0, "")
    assert "starting dockerd" in first.stdout
    second = sandbox.run()
    assert second.stdout == f"engine: answers at {sandbox.folder}/docker.sock\n"
    ((pid, session, descriptors),) = sandbox.started()
    assert pid == session, "a session of its own, so that no terminal or job takes it along"
    assert len(descriptors.split(",")) == 6, "the standard ones, its socket, its file, and the listing itself"


@AS_ROOT_WITH_APT
def test_what_a_killed_engine_left_behind_does_not_stop_the_next(sandbox: Sandbox) -> None:
    (sandbox.folder / "docker.pid").write_text(str(os.getpid()))  # by now the number of another process
    assert sandbox.run().returncode == 0
    assert len(sandbox.started()) == 1


@AS_ROOT_WITH_APT
def test_two_at_once_start_one(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor() as threads:
        runs = list(threads.map(lambda _: sandbox.run(), range(2)))
    assert [run.returncode for run in runs] == [0, 0]
    assert len(sandbox.started()) == 1


@AS_ROOT_WITH_APT
def test_an_engine_that_does_not_stay_up_is_told_of_at_once(sandbox: Sandbox) -> None:
    sandbox.dockerd = "cat /nonexistent/dockerd"
    run = sandbox.run()
    assert run.returncode == 1
    assert "dockerd does not stay up" in run.stderr and "No such file or directory" in run.stderr


@AS_ROOT_WITH_APT
def test_an_engine_that_never_answers_is_given_up(sandbox: Sandbox) -> None:
    sandbox.dockerd = "sleep 5"
    run = sandbox.run(deadline_s=1)
    assert run.returncode == 1
    assert "dockerd does not answer within 1 s" in run.stderr


def test_an_engine_named_by_docker_host_is_never_started(sandbox: Sandbox) -> None:
    run = sandbox.run(docker_host="tcp://127.0.0.1:1")
    assert run.returncode == 1
    assert run.stderr == (
        "engine: no Docker engine answers at DOCKER_HOST=tcp://127.0.0.1:1 (Connection refused): "
        "start that engine, or unset DOCKER_HOST\n"
    )
    assert sandbox.started() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_someone_else_than_root_is_told_what_to_do_in_one_sentence(sandbox: Sandbox) -> None:
    run = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-s"],
        input=SCRIPT.read_text(),
        env={"PATH": os.environ["PATH"], "ORS_HOST_ENGINE_SOCKET": "/nonexistent/docker.sock"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert "install and start Docker, or run this as root on Debian or Ubuntu, or set DOCKER_HOST" in run.stderr
