"""A daemon that maps containers' root to somebody else: the host works on it as it is. A second daemon, for this test only."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from host import docker_client
from tests.docker.harness import running_host
from tests.isolation.conftest import AS_ROOT
from tests.strangers.images import HOSTILE, build_hostile

START_TIMEOUT_S = 30


@pytest.fixture(scope="module")
def remapping_daemon() -> Iterator[str]:
    """The ``DOCKER_HOST`` of a daemon with user-namespace remapping; its files and its network are its own, or none."""
    directory = Path(tempfile.mkdtemp(prefix="ors-dockerd-", dir="/tmp"))
    directory.chmod(0o755)  # the remapped root must get through
    address = f"unix://{directory}/docker.sock"
    (directory / "daemon.json").write_text("{}")
    # In a network namespace of its own: a daemon without a bridge removes the bridge that it finds, the machine's.
    command = [
        "unshare",
        "--net",
        "dockerd",
        "--userns-remap=default",
        "--config-file",
        f"{directory}/daemon.json",
        "-H",
        address,
    ]
    command += ["--data-root", f"{directory}/data", "--exec-root", f"{directory}/exec", "-p", f"{directory}/pid"]
    command += ["--bridge=none", "--iptables=false", "--ip-masq=false"]
    with (directory / "log").open("wb") as log:
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(daemon, directory / "docker.sock", directory / "log")
        yield address
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(START_TIMEOUT_S)
        shutil.rmtree(directory)


def _wait(daemon: subprocess.Popen[bytes], path: Path, log: Path) -> None:
    """Wait until something listens: what is asked then is answered when the daemon is ready."""
    deadline = time.monotonic() + START_TIMEOUT_S
    with socket.socket(socket.AF_UNIX) as sock:
        while sock.connect_ex(str(path)) != 0:
            assert daemon.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


@AS_ROOT
@pytest.mark.skipif(shutil.which("dockerd") is None, reason="there is no dockerd here to start a second one of")
async def test_a_session_under_user_namespace_remapping(
    probe_image: str, remapping_daemon: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(docker_client.connect()) as here:
        archive = b"".join(here.get_image(probe_image))
    monkeypatch.setenv("DOCKER_HOST", remapping_daemon)
    with contextlib.closing(docker_client.connect(timeout_s=120)) as there:
        there.load_image(archive)  # type: ignore[no-untyped-call]
    with running_host(probe_image, allow_host="good.example.com", disk="32MiB") as host:
        async with host.client() as client:
            session = await client.create(secrets={"key": "value"})
            assert (await session.call("secret")).text == "key=value"
            assert await session.bash("id -u; cat /run/ors/token 2>&1; touch /workspace/x && echo wrote") == (
                "10000\ncat: /run/ors/token: Permission denied\nwrote\n"
            )
            inner = await session.bash("cat /proc/self/uid_map")
            assert inner.split()[:2] == ["0", str(_remapped_uid())], inner
            state = host.inspect(session.sid)["State"]
            assert os.stat(f"/proc/{state['Pid']}").st_uid == _remapped_uid()
            reply = await session.call(
                "bash", command="curl -sS https://evil.example.org/ 2>&1 || true; printenv https_proxy"
            )
            assert reply.text.endswith("http://127.0.0.1:3128\n")
            full = await session.call("bash", command="head -c 1G /dev/zero > /workspace/big; sleep 30")
            assert full.data.startswith("disk_full: "), full.data


def _remapped_uid() -> int:
    for line in Path("/etc/subuid").read_text().splitlines():
        name, first, _ = line.split(":")
        if name == "dockremap":
            return int(first)
    raise AssertionError(f"dockerd gave {pwd.getpwnam('dockremap')} no ids")


@AS_ROOT
@pytest.mark.skipif(shutil.which("dockerd") is None, reason="there is no dockerd here to start a second one of")
async def test_a_server_of_its_own_under_user_namespace_remapping(
    remapping_daemon: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(docker_client.connect()) as here:
        archive = b"".join(here.get_image(build_hostile()))
    monkeypatch.setenv("DOCKER_HOST", remapping_daemon)
    with contextlib.closing(docker_client.connect(timeout_s=120)) as there:
        there.load_image(archive)  # type: ignore[no-untyped-call]
    with running_host(HOSTILE, disk="32MiB") as host:
        async with host.client() as client:
            session = await client.create(secrets={"key": "value"})
            assert (await session.call("secrets")).text == '{"key": "value"}'
            assert (await session.call("shell", command="touch /var/tmp/x && echo wrote")).text == "wrote\n"
            await session.delete()
