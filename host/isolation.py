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

GVISOR = "runsc"
"""The name that gVisor's OCI runtime must be registered under in the engine."""

_AGENT = "uid=10000,gid=10000"
"""The agent's user, as images/Dockerfile makes it: the numbers are part of the base."""

_PRIVATE_DIRECTORY = "/run/private"
"""The environment's own (``sandbox_runtime.grading``): the agent can neither see into it nor take its room away."""

_PRIVATE_BYTES = 64 * 1024**2

_WRITABLE = "rw,exec,nosuid,nodev"


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


@dataclass(frozen=True)
class Confinement:
    """The container options that depend on the profile."""

    tmpfs: Mapping[str, str]
    pids: int
    security_options: tuple[str, ...] = field(repr=False)
    read_only_root: bool = False
    oci_runtime: str | None = None


def confine(profile: Profile, sizes: Sizes) -> Confinement:
    """Return the options of a container under ``profile``."""
    tmpfs = {
        "/tmp": f"{_WRITABLE},mode=1777,size={sizes.tmp_bytes},nr_inodes={sizes.inodes}",
        _PRIVATE_DIRECTORY: f"{_WRITABLE},mode=0700,size={_PRIVATE_BYTES}",
    }
    security = ("no-new-privileges:true",)
    if profile is Profile.GVISOR:
        return Confinement(tmpfs, _gvisor_pids(sizes.pids), security, oci_runtime=GVISOR)
    if profile is Profile.STANDARD:
        return Confinement(tmpfs, sizes.pids, security)
    tmpfs["/var/tmp"] = tmpfs["/tmp"]
    for path, mode in (("/workspace", "0755"), ("/home/agent", "0700")):
        tmpfs[path] = f"{_WRITABLE},{_AGENT},mode={mode},size={sizes.workspace_bytes},nr_inodes={sizes.inodes}"
    return Confinement(tmpfs, sizes.pids, (*security, f"seccomp={_seccomp_profile()}"), read_only_root=True)


def check_runtimes(profile: Profile, oci_runtimes: Collection[str]) -> None:
    """Refuse a profile that the engine has no OCI runtime for.

    Raises:
        StartupError: it has none; the sentence says what to do.
    """
    if profile is Profile.GVISOR and GVISOR not in oci_runtimes:
        raise StartupError(
            f"--isolation gvisor needs the OCI runtime {GVISOR!r}, and the Docker engine has only "
            f"{', '.join(sorted(oci_runtimes)) or 'its own'}; install gVisor and register it in the engine "
            "(README: Profiles), or choose another profile"
        )


def _gvisor_pids(pids: int) -> int:
    """gVisor needs some ten threads of the machine for a process inside; without one more it ends, and the session with it."""
    return 512 + 10 * pids


@cache
def _seccomp_profile() -> str:
    return json.dumps(json.loads((files("host") / "profiles" / "strict.json").read_text()), separators=(",", ":"))
