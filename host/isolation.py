"""Isolation profiles: what each one makes of a container. Pure: a profile and sizes in, container options out.

standard  the engine's own confinement: namespaces, three capabilities, no-new-privileges, the engine's default seccomp profile
strict    also a read-only root: all that can be written is in memory and sized; and a seccomp profile of ours that allows less
          (``profiles/strict.json``: a list of what is allowed; all else fails with EPERM)
gvisor    as standard, but the container talks to gVisor's kernel, a process of its own, instead of the machine's. Who connects
          to the runtime's socket is then root to the host, whoever it is inside (older releases): there the socket's mode
          decides, which gVisor's kernel holds to, and after that the token
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files

from host.errors import StartupError
from host.kinds import Kind

GVISOR = "runsc"
"""The name that gVisor's OCI runtime must be registered under in the engine."""

_AGENT = "uid=10000,gid=10000"
"""The agent's user, as images/Dockerfile makes it: the numbers are part of the base."""

_PRIVATE_DIRECTORY = "/run/private"
"""The environment's own (``sandbox_runtime.grading``): the agent can neither see into it nor take its room away."""

_MIB = 1024**2
_PRIVATE_BYTES = 64 * _MIB
_VAR_TMP_BYTES = 64 * _MIB
_SHM_BYTES = 64 * _MIB
_SHM_FILES = 4096

_MEMORY_PER_FILE = 16 * 1024
"""There may be one file in memory for so much of the container's memory, whatever --inodes allows: each of them, empty or not,
takes up to ``_FILE_BYTES`` of the kernel's, which no limit on a file system's size counts."""

_FILE_BYTES = 2048

_NEEDED_BYTES = 128 * _MIB
"""What the runtime and a command need beside all files."""

_SYSCTLS = {"kernel.shm_rmid_forced": "1", "kernel.msgmni": "16", "kernel.sem": "250 32000 100 128"}
"""Shared memory goes with the last process that has it; of messages and semaphores, which stay, there are few."""

_WRITABLE = "rw,exec,nosuid,nodev"

_RUNTIME_CAPABILITIES = ("SETUID", "SETGID", "KILL")
"""What the runtime needs to become and to supervise the agent's user, and no more."""

_SERVER_CAPABILITIES = (*_RUNTIME_CAPABILITIES, "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "NET_BIND_SERVICE")
"""What programs that run as root expect of it: files of any owner, low ports. Not devices, raw packets, other roots, audit."""


class Profile(StrEnum):
    """How far containers are shut in."""

    STANDARD = "standard"
    STRICT = "strict"
    GVISOR = "gvisor"


@dataclass(frozen=True)
class Sizes:
    """What a container may use of a kind that its profile has a say in."""

    tmp_bytes: int
    workspace_bytes: int
    inodes: int
    pids: int
    memory_bytes: int


@dataclass(frozen=True)
class Confinement:
    """The container options that depend on the profile. ``file_bytes``: the most memory that files in memory may take.

    ``user`` is None where the image says whose its processes are.
    """

    tmpfs: Mapping[str, str]
    file_bytes: int
    pids: int
    security_options: tuple[str, ...] = field(repr=False)
    read_only_root: bool = False
    oci_runtime: str | None = None
    sysctls: Mapping[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = _RUNTIME_CAPABILITIES
    user: str | None = "0:0"


@dataclass(frozen=True)
class _Tmpfs:
    """A file system in memory."""

    options: str
    size: int
    files: int

    def __str__(self) -> str:
        return f"{self.options},size={self.size},nr_inodes={self.files}"


def confine(profile: Profile, sizes: Sizes, *, kind: Kind = Kind.RUNTIME, remapped: bool = False) -> Confinement:
    """Return the options of a container under ``profile``.

    An image with a server of its own is run as it is: as its own user, on its own files also in /tmp, which count to the disk.
    Under ``strict`` only what is in memory can be written there: /tmp and /var/tmp.

    ``remapped``: the engine remaps users. Kernels before 6.9 let no such container have kernel settings of its own.
    """
    strict = profile is Profile.STRICT
    files = min(sizes.inodes, max(sizes.memory_bytes // _MEMORY_PER_FILE, 1))
    temporary = f"{_WRITABLE},mode=1777"
    ours = kind is Kind.RUNTIME
    tmpfs = {"/dev/shm": _Tmpfs("rw,noexec,nosuid,nodev,mode=1777", _SHM_BYTES, _SHM_FILES)}
    if ours or strict:
        tmpfs["/tmp"] = _Tmpfs(temporary, sizes.tmp_bytes, files // 8 if strict else files)
    if ours:
        tmpfs[_PRIVATE_DIRECTORY] = _Tmpfs(f"{_WRITABLE},mode=0700", _PRIVATE_BYTES, _SHM_FILES)
    if strict:
        tmpfs["/var/tmp"] = _Tmpfs(temporary, min(sizes.tmp_bytes, _VAR_TMP_BYTES), files // 8)
    if strict and ours:
        for path, mode, share in (("/workspace", "0755", 2), ("/home/agent", "0700", 4)):
            tmpfs[path] = _Tmpfs(f"{_WRITABLE},{_AGENT},mode={mode}", sizes.workspace_bytes, files // share)
    security = ("no-new-privileges:true",)
    return Confinement(
        {path: str(mount) for path, mount in tmpfs.items()},
        sum(mount.size + mount.files * _FILE_BYTES for mount in tmpfs.values()),
        _gvisor_pids(sizes.pids) if profile is Profile.GVISOR else sizes.pids,
        (*security, f"seccomp={_seccomp_profile()}") if strict else security,
        read_only_root=strict,
        oci_runtime=GVISOR if profile is Profile.GVISOR else None,
        sysctls={} if remapped or profile is Profile.GVISOR else _SYSCTLS,
        capabilities=_RUNTIME_CAPABILITIES if ours else _SERVER_CAPABILITIES,
        user="0:0" if ours else None,
    )


def missing_memory(confinement: Confinement, memory_bytes: int) -> int:
    """Return how many bytes of memory are missing for files never to leave too little for the runtime and a command."""
    return max(confinement.file_bytes + _NEEDED_BYTES - memory_bytes, 0)


def check_runtimes(profile: Profile, oci_runtimes: Collection[str]) -> None:
    """Refuse a profile that the engine has no OCI runtime for.

    Raises:
        StartupError: it has none; the sentence says what to do.
    """
    if profile is Profile.GVISOR and GVISOR not in oci_runtimes:
        raise StartupError(
            f"--isolation gvisor needs the OCI runtime {GVISOR!r}, and the Docker engine has only "
            f"{', '.join(sorted(oci_runtimes)) or 'its own'}; install gVisor and register it in the engine "
            "(docs/how-to/gvisor.md), or choose another profile"
        )


def _gvisor_pids(pids: int) -> int:
    """gVisor needs some ten threads of the machine for a process inside; without one more it ends, and the session with it."""
    return 512 + 10 * pids


@cache
def _seccomp_profile() -> str:
    return json.dumps(json.loads((files("host") / "profiles" / "strict.json").read_text()), separators=(",", ":"))
