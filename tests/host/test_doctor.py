"""``ors-host doctor``: the right advice without an engine, without root, with a full disk; and each thing that it looks at."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from host.diagnosis import Finding, diagnose
from host.isolation import Profile
from host.machine import Machine, Room
from host.settings import ImageSettings, Settings
from host.state_view import Life, StateView

GIB = 1024**3
ENGINE: dict[str, Any] = {
    "ServerVersion": "24.0.7",
    "CgroupVersion": "2",
    "CgroupDriver": "systemd",
    "KernelVersion": "6.1.0-18-amd64",
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"],
    "Driver": "overlay2",
    "DriverStatus": [["Backing Filesystem", "extfs"]],
    "Runtimes": {"runc": {}},
    "MemTotal": 256 * GIB,
    "DockerRootDir": "/var/lib/docker",
}
STATE = StateView(Path("/var/lib/ors-host"), "", Life.UNKNOWN, problem="No such file or directory")
MACHINE = Machine(
    engine_address="unix:///var/run/docker.sock",
    engine=ENGINE,
    state=STATE,
    state_room=Room(Path("/var/lib"), 500 * GIB, 10**6, True),
    engine_room=Room(Path("/var/lib/docker"), 500 * GIB, 10**6, True),
    open_files=2**20,
    pid_max=2**22,
    threads_max=2**20,
)


def bad(machine: Machine, settings: Settings | None = None) -> list[Finding]:
    return [finding for finding in diagnose(machine, settings or Settings()) if finding.level != "ok"]


def engine(**changed: Any) -> Machine:
    return replace(MACHINE, engine={**ENGINE, **changed})


def test_a_machine_with_nothing_amiss() -> None:
    assert bad(MACHINE) == []


def test_all_that_is_amiss_has_advice() -> None:
    everything = replace(
        engine(
            ServerVersion="19.03.1",
            KernelVersion="4.4.0",
            SecurityOptions=["name=rootless"],
            CgroupDriver="none",
            MemoryLimit=False,
            PidsLimit=False,
            CpuCfsQuota=False,
            SwapLimit=False,
            MemTotal=GIB,
            Driver="vfs",
        ),
        engine_address="tcp://10.0.0.1:2375",
        images={"gone": None, "foreign": ""},
        state_room=Room(Path("/"), 0, 0, False),
        engine_room=Room(Path("/"), 5 * GIB, 10, True),
        open_files=1024,
        pid_max=4096,
    )
    found = bad(everything, Settings(isolation=Profile.GVISOR))
    assert {finding.check for finding in found} == {
        "engine",
        "engine place",
        "cgroups",
        "limits",
        "kernel",
        "seccomp",
        "rootless",
        "gvisor",
        "storage",
        "image",
        "state directory",
        "disk of the state",
        "disk of containers",
        "memory",
        "open files",
        "processes",
    }
    assert [finding for finding in found if not finding.advice] == []


@pytest.mark.parametrize(
    ("machine", "settings", "check", "level", "words"),
    [
        (engine(SecurityOptions=[]), {}, "seccomp", "problem", "doesn't filter"),
        (engine(MemTotal=8 * GIB), {}, "memory", "warning", "--max-sessions 4 would be safe"),
        (engine(SwapLimit=False), {}, "limits", "warning", "can't limit swap"),
        (engine(), {"isolation": "gvisor"}, "gvisor", "problem", "images/gvisor.sh"),
        (replace(MACHINE, uid=1000), {}, "storage", "warning", "the host isn't root"),
        (replace(MACHINE, images={"x:1": None}), {}, "image", "problem", "docker pull x:1"),
        (
            replace(
                MACHINE, misplaced="ors-host runs in a container, and … can't find it. Mount it: docker run --volume …"
            ),
            {},
            "state directory",
            "problem",
            "Mount it",
        ),
        (replace(MACHINE, open_files=1024), {}, "open files", "warning", "LimitNOFILE=4736"),
        (replace(MACHINE, engine_address="ssh://box"), {}, "engine place", "problem", "on the engine's machine"),
        (
            replace(MACHINE, state=replace(STATE, path=Path("/" + "d" * 100))),
            {},
            "state directory",
            "problem",
            "19 bytes shorter",
        ),
        (
            replace(MACHINE, engine_room=Room(Path("/var/lib/docker"), GIB, 10**6, True)),
            {},
            "disk of containers",
            "warning",
            "--max-sessions × --disk is 128.0GiB",
        ),
    ],
)
def test_one_thing(machine: Machine, settings: dict[str, Any], check: str, level: str, words: str) -> None:
    (finding,) = bad(machine, Settings(**settings))
    assert (finding.check, finding.level) == (check, level)
    assert words in f"{finding.found} {finding.advice}"


def test_the_largest_image_counts() -> None:
    sections = {"small": ImageSettings(memory=GIB), "large": ImageSettings(memory=5 * GIB, isolation=Profile.GVISOR)}
    settings = Settings(image=("small", "large"), images=sections)
    assert {finding.check for finding in bad(MACHINE, settings)} == {"memory", "gvisor"}


def test_a_host_that_runs_is_fine() -> None:
    alive = replace(MACHINE, state=StateView(STATE.path, "abc", Life.ALIVE, 17))
    (finding,) = [finding for finding in diagnose(alive, Settings()) if finding.check == "state directory"]
    assert finding.level == "ok" and "pid 17" in finding.found


# --- The whole command, on this machine -------------------------------------------------------------------------------


def problems(output: str) -> dict[str, dict[str, str]]:
    return {finding["check"]: finding for finding in json.loads(output) if finding["level"] == "problem"}


def test_no_engine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "host", "doctor", "--state-dir", str(tmp_path / "s")]
    environ = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    done = subprocess.run([*command, "--json"], env=environ, capture_output=True, text=True, check=False)
    found = problems(done.stdout)
    assert done.returncode == 1 and list(found) == ["engine"]
    assert "No such file or directory" in found["engine"]["found"] and "DOCKER_HOST" in found["engine"]["advice"]
    text = subprocess.run(command, env=environ, capture_output=True, text=True, check=False).stdout
    assert "1 problem, no warnings" in text and "problem  engine" in text


def test_no_engine_at_the_usual_place() -> None:
    absent = replace(MACHINE, engine=None, engine_problem="No such file or directory")
    (finding,) = bad(absent)
    assert "systemctl start docker" in finding.advice and "apt-get install docker.io" in finding.advice


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_not_root(tmp_path: Path) -> None:
    """The socket is root's, and so is the state directory that a host of root's left."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as engine_socket:
        address = tmp_path / "engine.sock"
        engine_socket.bind(str(address))
        address.chmod(0o600)
        tmp_path.chmod(0o755)
        for parent in tmp_path.parents[:2]:  # pytest keeps its directories private
            parent.chmod(stat.S_IMODE(parent.stat().st_mode) | 0o055)
        code = (
            "import os, sys, host.cli, encodings.idna\n"
            "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
            f"host.cli.main(['doctor', '--state-dir', {str(state)!r}, '--json'])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "DOCKER_HOST": f"unix://{address}", "HOME": "/nonexistent"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1, done.stderr
    found = problems(done.stdout)
    assert set(found) == {"engine", "state directory"}
    assert "Permission denied" in found["engine"]["found"] and "usermod -aG docker" in found["engine"]["advice"]
    assert "run as the user whose it is" in found["state directory"]["advice"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk(tmp_path: Path) -> None:
    """In a mount namespace of its own, so that nothing stays mounted."""
    script = (
        'mount -t tmpfs -o size=64k tmpfs "$1" && ! head -c 1M /dev/zero 2>/dev/null >"$1/full" && '
        'exec "$2" -m host doctor --json --state-dir "$1/state"'
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "-", str(tmp_path), sys.executable],
        env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    found = problems(done.stdout)
    assert set(found) == {"engine", "disk of the state"}
    assert "the disk is full: 0B free" in found["disk of the state"]["found"]
    assert "--state-dir" in found["disk of the state"]["advice"]
