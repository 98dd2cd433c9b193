"""The host in a container of the engine's: episodes are played, an upgrade keeps them, a wrong set-up is refused in words."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from deploy.image import build
from host import docker_client
from host.progress import Steps
from tests.docker.conftest import probe_image
from tests.docker.harness import Client, Session, free_port

__all__ = ["probe_image"]

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]  # wheels are collected for the image

IMAGE, NAME, KEY = "ors-host-test-host:latest", "ors-host-test-host", "the-trainers-key"
INSIDE = "/var/lib/ors-host"
SOCKET = "/var/run/docker.sock:/var/run/docker.sock"
AS_OUTSIDE = (
    "--pid=host",
    "--cap-add=DAC_READ_SEARCH",
    "--cap-add=SYS_PTRACE",
    "--volume=/var/lib/docker:/var/lib/docker:ro",
)
START_TIMEOUT_S = 60


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def host_image() -> None:
    with docker_client.connect() as client:
        build(client, Steps(), IMAGE)


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A directory of the machine; in the container it has another path. Afterwards no container of its host is left."""
    directory = Path(tempfile.mkdtemp(prefix="ors-", dir="/tmp"))
    yield directory
    subprocess.run(["docker", "rm", "--force", NAME], capture_output=True)
    if (directory / "server-id").exists():
        label = f"label=ors-host.server={(directory / 'server-id').read_text()}"
        for container in docker("ps", "--all", "--quiet", f"--filter={label}").split():
            docker("rm", "--force", container)
    shutil.rmtree(directory)


@contextlib.contextmanager
def running(state_dir: Path, image: str, *options: str, port: int) -> Iterator[str]:
    """Run the host until the block is left; yield its address. It is stopped with ``keep``."""
    words = ("--detach", f"--name={NAME}", f"--publish=127.0.0.1:{port}:8080", f"--volume={SOCKET}")
    environ = (f"--env=ORS_HOST_API_KEY={KEY}", f"--volume={state_dir}:{INSIDE}")
    docker("run", *words, *environ, *options, IMAGE, "serve", "--on-exit=keep", "--disk=64MiB", f"--image={image}")
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while " serving " not in docker("logs", NAME):
            assert docker("inspect", "--format={{.State.Status}}", NAME).strip() == "running", docker("logs", NAME)
            assert time.monotonic() < deadline, docker("logs", NAME)
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        docker("stop", "--time=45", NAME)
        assert docker("inspect", "--format={{.State.ExitCode}}", NAME).strip() == "0"
    finally:
        subprocess.run(["docker", "rm", "--force", NAME], capture_output=True)


async def test_episodes_and_an_upgrade(state_dir: Path, probe_image: str) -> None:
    headers = {"X-API-Key": KEY}
    port = free_port()
    with running(state_dir, probe_image, port=port) as url:
        async with aiohttp.ClientSession(url, headers=headers) as http:
            kept = await Client(http).create()
            await kept.bash("echo of the first host > /workspace/note")
        assert "asking the engine (inodes: not counted)" in docker("logs", NAME)
        assert kept.sid in docker("exec", NAME, "ors-host", "ps", "--json")
    with running(state_dir, probe_image, *AS_OUTSIDE, port=port) as url:
        assert "measuring the containers' files" in docker("logs", NAME)
        async with aiohttp.ClientSession(url, headers=headers) as http:
            session = Session(http, kept.sid)
            assert await session.bash("cat /workspace/note") == "of the first host\n"
            await session.call("bash", command="head -c 200M /dev/zero > /workspace/much; sleep 60")
            assert (await session.post("/ping"))[1]["reason"] == "disk_full"


@pytest.mark.parametrize(
    ("options", "flags", "words"),
    [
        ((), (), f"the state directory {INSIDE} is only in there"),
        (("--volume={state_dir}:" + INSIDE,), ("--data=/usr/share",), "the data folder /usr/share is only in there"),
    ],
)
def test_a_wrong_set_up_is_refused(
    state_dir: Path, probe_image: str, options: tuple[str, ...], flags: tuple[str, ...], words: str
) -> None:
    mounts = [option.format(state_dir=state_dir) for option in (f"--volume={SOCKET}", *options)]
    command = [
        "docker",
        "run",
        "--rm",
        "--env=ORS_HOST_API_KEY=k",
        *mounts,
        IMAGE,
        "serve",
        f"--image={probe_image}",
        *flags,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert words in done.stderr and "docker run --volume" in done.stderr


def test_without_a_key_it_does_not_start(probe_image: str) -> None:
    """It listens on all addresses of its container."""
    command = ["docker", "run", "--rm", IMAGE, "serve", f"--image={probe_image}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "ORS_HOST_API_KEY" in done.stderr
