"""What keeps a host from starting, in one sentence each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.build import build_environment
from tests.docker.conftest import TESTS
from tests.docker.harness import running_host


@pytest.fixture
def state_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ors-", dir="/tmp") as directory:
        yield Path(directory)


def start(*arguments: str, **env: str) -> str:
    """Run ``ors-host`` with these arguments, which must fail; return what it says."""
    command = [str(Path(sys.executable).with_name("ors-host")), *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env={**os.environ, **env}
    )
    assert done.returncode not in (0, -9), done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_no_such_image(state_dir: Path) -> None:
    words = start("--image", "no-such-image:latest", "--port", "0", "--state-dir", str(state_dir))
    assert "no-such-image:latest" in words
    assert "ors-host build" in words and "pull" in words


def test_an_image_not_of_our_base(state_dir: Path, probe_image: str) -> None:
    words = start("--image", "ors-host-rootfs:bookworm", "--port", "0", "--state-dir", str(state_dir))
    assert "start_failed" in words
    assert "is not from the base of ors-host; it must run an ORS server of its own" in words


def test_two_environments_of_one_name(state_dir: Path, probe_image: str) -> None:
    twin = "ors-host-test-probe-twin:latest"
    build_environment(TESTS / "probe_env", twin)
    words = start("--image", probe_image, "--image", twin, "--port", "0", "--state-dir", str(state_dir))
    assert "'probe'" in words and probe_image in words and twin in words


def test_no_engine(state_dir: Path) -> None:
    arguments = ("--image", "x", "--port", "0", "--state-dir", str(state_dir))
    words = start(*arguments, DOCKER_HOST="unix:///nonexistent.sock")
    assert "unix:///nonexistent.sock" in words and "start Docker" in words


def test_port_taken(state_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = start("--image", "x", "--port", str(port), "--state-dir", str(state_dir))
    assert str(port) in words and "--port" in words


def test_state_dir_too_long() -> None:
    words = start("--image", "x", "--state-dir", "/tmp/" + "long" * 25)
    assert "too long" in words and "--state-dir" in words


def test_state_dir_in_use(probe_image: str) -> None:
    with running_host(probe_image) as first:
        words = start("--image", probe_image, "--port", "0", "--state-dir", str(first.state_dir))
        assert f"pid {first.process.pid}" in words and "--state-dir" in words


def test_no_image() -> None:
    assert "--image" in start("serve")


def test_a_bad_value() -> None:
    assert "--max-sessions" in start("--image", "x", "--max-sessions", "none")
    assert "ORS_HOST_MEMORY" in start("--image", "x", ORS_HOST_MEMORY="much")
