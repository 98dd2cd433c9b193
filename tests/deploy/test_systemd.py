"""The unit: sound for systemd, in line with the settings, and a host works within its limits."""

from __future__ import annotations

import asyncio
import configparser
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from host.settings import Settings
from tests.docker.conftest import probe_image
from tests.docker.harness import running_host

__all__ = ["probe_image"]

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "ors-host.service"
EXPOSURE = 35
"""Of systemd's 0 to 100; a service that says nothing has 96."""

analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with its drop-ins, as it is on a machine where the host is this one."""
    text = UNIT.read_text().replace("/opt/ors-host/bin/ors-host", str(Path(sys.executable).with_name("ors-host")))
    (tmp_path / UNIT.name).write_text(text)
    shutil.copytree(DEPLOY / f"{UNIT.name}.d", tmp_path / f"{UNIT.name}.d")
    return tmp_path / UNIT.name


def setting(name: str) -> str:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return parser["Service"][name]


@analyze
def test_systemd_finds_nothing_wrong(installed: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", installed], capture_output=True, text=True)
    about_it = [line for line in done.stderr.splitlines() if "ors-host" in line]
    assert (done.returncode, about_it) == (0, [])


@analyze
def test_little_is_open_to_it() -> None:
    """Of the unit without drop-ins."""
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_times_and_numbers_are_in_line_with_the_settings() -> None:
    fields = Settings.model_fields
    assert int(setting("TimeoutStopSec")) >= fields["shutdown_grace_s"].default + 10
    assert int(setting("LimitNOFILE")) > fields["max_connections"].default + 10 * fields["max_sessions"].default
    assert "--on-exit keep" in setting("ExecStart")


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """The one directory that the unit lets a host write to; short, as it holds sockets."""
    directory = Path(tempfile.mkdtemp(prefix="ors-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.mark.docker
@pytest.mark.skipif(os.geteuid() != 0, reason="gives up capabilities, and mounts")
async def test_a_host_works_within_its_limits(probe_image: str, state_dir: Path, tmp_path: Path) -> None:
    """The same capabilities, a read-only system, no memory that is both written and executed; and systemd's socket."""
    kept = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in setting("CapabilityBoundingSet").split())
    mounts = f"mount --bind {state_dir} {state_dir} && mount -o remount,bind,ro /"
    no_write_and_execute = (
        "import ctypes, os, sys\n"
        "ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)\n"  # PR_SET_MDWE, Linux 6.3; without effect before
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    limits = ["setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all", "--no-new-privs"]
    limits += [sys.executable, "-c", no_write_and_execute]
    prefix = ("unshare", "--mount", "sh", "-ec", f'{mounts} && exec "$@"', "-", *limits)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with running_host(probe_image, prefix=prefix, state_dir=state_dir, env=environ, disk="64MiB") as host:
            assert await asyncio.to_thread(systemd.recv, 100) == b"READY=1"
            assert "measuring the containers' files" in host.log
            assert "CapBnd:\t000000000008000f" in status_of(host.process.pid)
            async with host.client() as client:
                session = await client.create()
                assert await session.bash("echo hello") == "hello\n"
                await session.call("bash", command="head -c 200M /dev/zero > /workspace/much; sleep 60")
                assert (await session.post("/ping"))[1]["reason"] == "disk_full"
