"""What is fine on a machine and what isn't, and what to do about it. Pure: what was looked at in, findings out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import ByteSize

from host.isolation import GVISOR, Profile
from host.machine import Machine, Room
from host.settings import Settings
from host.state import MAX_SOCKET_PATH_BYTES, longest_socket_path
from host.state_view import Life

Level = Literal["ok", "warning", "problem"]

_OLDEST_ENGINE = (20, 10)
_OLDEST_KERNEL = (4, 18)
_FULL_BYTES = 64 * 1024**2
"""A file system with less is as good as full: sockets, logs and layers are written all the time."""
_FULL_INODES = 1000
_FILES_EACH = 6
"""Descriptors for one session: its socket, its channel, streams of its clients."""
_OWN_FILES = 256
_OWN_PIDS = 1000


@dataclass(frozen=True)
class Finding:
    """One thing looked at: what was found, and what to do if that isn't fine."""

    check: str
    level: Level
    found: str
    advice: str = ""


def diagnose(machine: Machine, settings: Settings) -> list[Finding]:
    """Return a finding for everything that was looked at."""
    images = tuple(settings.for_image(tag) for tag in settings.image) or (settings,)
    return [
        *_engine(machine),
        *_kernel(machine, images),
        *_storage(machine),
        *_images(machine),
        *_state_dir(machine),
        *_room(machine, settings, images),
        *_memory(machine, settings, images),
        *_limits(machine, settings, images),
    ]


def _engine(machine: Machine) -> Iterator[Finding]:
    info = machine.engine
    if info is None:
        yield Finding(
            "engine",
            "problem",
            f"no Docker engine answers at {machine.engine_address}: {machine.engine_problem}",
            _how_to_reach(machine),
        )
        return
    version = str(info.get("ServerVersion", "?"))
    if _numbers(version) < _OLDEST_ENGINE:
        yield Finding(
            "engine", "warning", f"Docker {version}", "20.10 is the oldest that ors-host is tested with: upgrade"
        )
    else:
        yield Finding("engine", "ok", f"Docker {version} answers at {machine.engine_address}")
    if not machine.engine_is_local:
        yield Finding(
            "engine place",
            "problem",
            f"the engine is reached over a network ({machine.engine_address})",
            "containers talk to the host through unix sockets in its state directory: run the host on the engine's machine",
        )
    driver, cgroups = info.get("CgroupDriver"), info.get("CgroupVersion", "1")
    if driver == "none":
        yield Finding(
            "cgroups",
            "problem",
            "the engine limits nothing (cgroup driver none)",
            "give the (rootless) engine cgroup v2",
        )
    else:
        yield Finding("cgroups", "ok", f"version {cgroups}, driver {driver}")
    for key, what, level, advice in (
        ("MemoryLimit", "memory", "problem", "enable the memory cgroup (kernel option cgroup_enable=memory)"),
        ("PidsLimit", "processes", "problem", "enable the pids cgroup, or a newer kernel"),
        ("CpuCfsQuota", "processors", "problem", "a kernel with CONFIG_CFS_BANDWIDTH"),
        ("SwapLimit", "swap", "warning", "kernel option swapaccount=1, or no swap: else a container may fill it"),
    ):
        if info.get(key) is False:
            yield Finding(
                "limits", "warning" if level == "warning" else "problem", f"the engine can't limit {what}", advice
            )


def _how_to_reach(machine: Machine) -> str:
    problem = machine.engine_problem or ""
    if "ermission denied" in problem:
        return (
            "this user may not use it: run as root, or add the user to the group of the socket (sudo usermod -aG docker USER, "
            "then log in again; that group is as powerful as root)"
        )
    if not machine.engine_is_local:
        return "look whether the machine and the port in DOCKER_HOST are right, and reachable"
    if machine.engine_address != "unix:///var/run/docker.sock":
        return (
            "look whether DOCKER_HOST is right, or unset it for the default; else start the engine that should be there"
        )
    return "start it (sudo systemctl start docker), or install it (Debian, Ubuntu: sudo apt-get install docker.io)"


def _kernel(machine: Machine, images: tuple[Settings, ...]) -> Iterator[Finding]:
    if (info := machine.engine) is None:
        return
    kernel = str(info.get("KernelVersion", "?"))
    if _numbers(kernel) < _OLDEST_KERNEL:
        yield Finding("kernel", "warning", kernel, "containers share it: one that still gets fixes, 4.18 or newer")
    else:
        yield Finding("kernel", "ok", kernel)
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    if any("name=seccomp" in option for option in options):
        yield Finding("seccomp", "ok", "the engine filters system calls")
    else:
        yield Finding(
            "seccomp",
            "problem",
            "the engine doesn't filter system calls",
            "containers reach parts of the kernel that they need not: an engine and a kernel with seccomp",
        )
    remapped = any("name=userns" in option for option in options)
    found = "on: root in a container is nobody outside" if remapped else "off"
    yield Finding("user namespaces", "ok", found + (", which is Docker's default" if not remapped else ""))
    if any("name=rootless" in option for option in options):
        yield Finding(
            "rootless", "warning", "the engine is rootless", "ors-host isn't tested with it: try it out first"
        )
    has_gvisor = GVISOR in (info.get("Runtimes") or ())
    if any(image.isolation is Profile.GVISOR for image in images) and not has_gvisor:
        yield Finding(
            "gvisor",
            "problem",
            f"--isolation gvisor is set, and the engine has no OCI runtime {GVISOR!r}",
            "install gVisor and register it: bash images/gvisor.sh (root, Debian or Ubuntu), or docs/how-to/gvisor.md",
        )
    else:
        found = (
            f"{GVISOR} is registered" if has_gvisor else f"{GVISOR} is not registered; only --isolation gvisor needs it"
        )
        yield Finding("gvisor", "ok", found)


def _storage(machine: Machine) -> Iterator[Finding]:
    if (info := machine.engine) is None:
        return
    driver = str(info.get("Driver", "?"))
    backing = dict(item[:2] for item in info.get("DriverStatus") or ()).get("Backing Filesystem", "?")
    found = f"{driver} on {backing}"
    if driver == "overlay2" and backing == "xfs":
        yield Finding(
            "storage", "ok", f"{found}: --disk is held by the file system's quota, if it is mounted with pquota"
        )
    elif driver == "overlay2" and machine.uid == 0:
        yield Finding(
            "storage", "ok", f"{found}: --disk and --inodes are held by measuring, some hundreds of MB late at worst"
        )
    else:
        why = "the host isn't root" if driver == "overlay2" else "only overlay2's files can be measured"
        yield Finding(
            "storage",
            "warning",
            f"{found}: --disk is held by asking the engine, which is slow, and --inodes is not held ({why})",
            "run the host as root, on overlay2 (best on xfs mounted with pquota); or --isolation strict, which writes no disk",
        )


def _images(machine: Machine) -> Iterator[Finding]:
    for tag, runtime in machine.images.items():
        if runtime is None:
            advice = f"build it (ors-host build DIR -t {tag}) or pull it (docker pull {tag})"
            yield Finding("image", "problem", f"{tag} is not on this engine", advice)
        elif not runtime:
            yield Finding("image", "ok", f"{tag}, which has no runtime of ours: it must run an ORS server of its own")
        else:
            yield Finding("image", "ok", f"{tag}, with runtime {runtime}")


def _state_dir(machine: Machine) -> Iterator[Finding]:
    view, room = machine.state, machine.state_room
    if view is None:
        return
    size = longest_socket_path(view.path)
    if machine.misplaced is not None:
        found, _, advice = machine.misplaced.partition(". ")
        yield Finding("state directory", "problem", found, advice)
    elif size > MAX_SOCKET_PATH_BYTES:
        advice = f"a path that is {size - MAX_SOCKET_PATH_BYTES} bytes shorter, with --state-dir"
        yield Finding("state directory", "problem", f"{view.path} is too long for a unix socket's path", advice)
    elif view.life is Life.ALIVE:
        yield Finding("state directory", "ok", f"{view.path}: a host runs there, pid {view.pid}")
    elif room is None or not room.is_writable or view.problem == "Permission denied":
        yield Finding(
            "state directory",
            "problem",
            f"{view.path} can't be written by uid {machine.uid}",
            "another place with --state-dir, or run as the user whose it is; it was made by root if the host ran as root",
        )
    else:
        there = "is there, no host runs in it" if view.server_id else "will be made"
        yield Finding("state directory", "ok", f"{view.path} {there}")


def _room(machine: Machine, settings: Settings, images: tuple[Settings, ...]) -> Iterator[Finding]:
    most = settings.max_sessions * max(image.disk for image in images)
    where: tuple[tuple[str, Room | None, int, str], ...] = (
        ("disk of the state", machine.state_room, 0, "free some, or put it elsewhere with --state-dir"),
        ("disk of containers", machine.engine_room, most, "remove images (docker image prune), or what else fills it"),
    )
    for check, room, wanted, advice in where:
        if room is None:
            continue
        found = f"{ByteSize(room.free_bytes).human_readable()} free at {room.path}"
        if room.free_bytes < _FULL_BYTES:
            yield Finding(check, "problem", f"the disk is full: {found}", f"no session can be started so: {advice}")
        elif room.free_inodes is not None and room.free_inodes < _FULL_INODES:
            found = f"no file can be made: {room.free_inodes} inodes free at {room.path}"
            yield Finding(check, "problem", found, f"no session can be started so: {advice}")
        elif room.free_bytes < wanted:
            yield Finding(
                check,
                "warning",
                f"{found}; --max-sessions × --disk is {ByteSize(wanted).human_readable()}",
                "enough if sessions don't write all that they may; else fewer sessions, or a smaller --disk",
            )
        else:
            yield Finding(check, "ok", found)


def _memory(machine: Machine, settings: Settings, images: tuple[Settings, ...]) -> Iterator[Finding]:
    if machine.engine is None:
        return
    total = int(machine.engine.get("MemTotal") or 0)
    most = settings.max_sessions * max(image.memory for image in images)
    sizes = f"{ByteSize(total).human_readable()}; --max-sessions × --memory is {ByteSize(most).human_readable()}"
    if most > total:
        fit = max(1, total // max(image.memory for image in images))
        yield Finding(
            "memory",
            "warning",
            sizes,
            "enough if sessions don't use all that they may; else the kernel ends processes of whichever session: "
            f"--max-sessions {fit} would be safe, or a smaller --memory",
        )
    else:
        yield Finding("memory", "ok", sizes)


def _limits(machine: Machine, settings: Settings, images: tuple[Settings, ...]) -> Iterator[Finding]:
    wanted = settings.max_connections + _FILES_EACH * settings.max_sessions + _OWN_FILES
    if machine.open_files is not None and machine.open_files < wanted:
        yield Finding(
            "open files",
            "warning",
            f"{machine.open_files} allowed; --max-connections and --max-sessions may take {wanted}",
            f"ulimit -Hn {wanted} (systemd: LimitNOFILE={wanted}), or a smaller --max-connections",
        )
    else:
        allowed = "no limit" if machine.open_files is None else f"{machine.open_files} allowed"
        yield Finding("open files", "ok", f"{allowed}, {wanted} may be needed")
    known = [number for number in (machine.pid_max, machine.threads_max) if number is not None]
    if known:
        most = settings.max_sessions * max(image.pids for image in images) + _OWN_PIDS
        found = f"{min(known)} on this machine; --max-sessions × --pids is {most - _OWN_PIDS}"
        advice = "enough if sessions don't use all that they may; else a smaller --pids, or sysctl kernel.pid_max"
        yield Finding("processes", *(("warning", found, advice) if most > min(known) else ("ok", found)))
    yield Finding("addresses", "ok", "containers have no network of their own: no address pool can run out")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version; what has none is taken for the newest."""
    parts = version.replace("-", ".").split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else (1 << 30,)
