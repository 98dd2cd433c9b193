"""Wheels for an image's Python, collected outside of it: a build then needs no index (and no certificate for one)."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

RUNTIME_PROJECT = "ors-host-runtime"
"""What the runtime is called among an image's Python packages."""

_OLDEST_GLIBC_MINOR = 17  # manylinux2014; older names are aliases that pip derives from it
_TIMEOUT_S = 900
_ERROR_LINES = 8


class WheelsUnavailable(Exception):
    """Not every requirement can be had as a wheel, or pip is missing here; ``str()`` says which."""


@dataclass(frozen=True)
class Target:
    """The Python that wheels are for: its version, machine and, on glibc, glibc 2's minor version (else None)."""

    python: tuple[int, int]
    machine: str
    glibc_minor: int | None

    def pip_options(self) -> list[str]:
        """Return the options that make pip choose for this target and not for the Python it runs on."""
        major, minor = self.python
        options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={major}.{minor}"]
        options += [f"--abi=cp{major}{minor}"]
        if self.glibc_minor is not None:
            newest_first = range(self.glibc_minor, _OLDEST_GLIBC_MINOR - 1, -1)
            options += [f"--platform=manylinux_2_{glibc}_{self.machine}" for glibc in newest_first]
            options += [f"--platform=manylinux2014_{self.machine}"]
        return [*options, f"--platform=linux_{self.machine}"]


def collect(target: Target, requirements: Path, destination: Path) -> None:
    """Put the wheels of a requirements file, and of all that these require, into an existing folder.

    Raises:
        WheelsUnavailable: something has no wheel for the target, the index can't be reached, or there is no pip here.
    """
    if util.find_spec("pip") is None:
        raise WheelsUnavailable("there is no pip beside ors-host")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += [
        "--progress-bar=off",
        f"--dest={destination}",
        *target.pip_options(),
        f"--requirement={requirements.name}",
    ]
    try:
        done = subprocess.run(
            command,
            cwd=requirements.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as exc:
        raise WheelsUnavailable(f"pip was not done after {_TIMEOUT_S} s") from exc
    if done.returncode:
        raise WheelsUnavailable("\n".join(done.stderr.strip().splitlines()[-_ERROR_LINES:]))


def runtime_sources() -> dict[str, bytes]:
    """Return the files of the installed ``sandbox_runtime``: path inside the package's parent → content."""
    spec = util.find_spec("sandbox_runtime")  # finds without importing: nothing of it runs in the host
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package sandbox_runtime is not installed beside host")
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in (".py", ".typed"))
    return {path.relative_to(folder.parent).as_posix(): path.read_bytes() for path in files}


def runtime_requirements() -> list[str]:
    """Return what the runtime requires, as the distribution declares it for both sides."""
    return [line for line in metadata.requires("ors-host") or [] if re.match(r"pydantic(?![\w.-])", line)]


def runtime_pins() -> list[str]:
    """Return the versions to put beside the runtime: those the host runs with, so that both sides speak alike."""
    return [f"pydantic=={metadata.version('pydantic')}"]


def write_runtime_wheel(version: str, destination: Path) -> Path:
    """Make a wheel of the installed runtime in a folder and return its path; the same sources give the same bytes."""
    name = RUNTIME_PROJECT.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    about = [
        f"Name: {RUNTIME_PROJECT}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in runtime_requirements()),
    ]
    files = runtime_sources()
    files[f"{info}/METADATA"] = "\n".join(["Metadata-Version: 2.1", *about, ""]).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: ors-host\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{path},sha256={_record_hash(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    wheel = destination / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path)  # dated 1980, whatever the time: equal sources must give equal layers
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return wheel


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
