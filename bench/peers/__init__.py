"""Peers on the same machine: the packages they are published as, in an environment and an image of their own.

Each folder is one: what to install, the image's Dockerfile, and ``drive.py``, which plays episodes with the peer's own client.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.floor import LABEL
from host import docker_client, wheels
from host.base_image import ensure_base, inspect_image, probe_python, tag
from host.build_context import open_context
from host.image_builder import run_build
from host.progress import Steps

CACHE = Path(__file__).parent.parent / ".cache"
PEER_LABEL = f"{LABEL}=peer"
"""On the images, and so on every container that is made of them, by whomever."""

_INSTALL_TIMEOUT_S = 600
_DRIVE_TIMEOUT_S = 240
_ERROR_LINES = 4


class PeerFailed(Exception):
    """A peer can't be run; the message has its error."""


@dataclass(frozen=True)
class Peer:
    """One peer: its name, and its folder here."""

    name: str

    @property
    def folder(self) -> Path:
        """What is installed, built and run."""
        return Path(__file__).parent / self.name

    @property
    def image(self) -> str:
        """The image that its containers are made of."""
        return f"ors-host-bench-{self.name.replace('_', '-')}:{self._digest}"

    @property
    def python(self) -> Path:
        """The Python that has its client."""
        return CACHE / f"{self.name}-{self._digest}" / "bin" / "python"

    @property
    def _drive(self) -> Path:
        return self.folder / "drive.py"

    @property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for file in sorted(self.folder.iterdir()):
            if file.is_file() and file != self._drive:
                digest.update(file.read_bytes())
        return digest.hexdigest()[:12]

    def is_prepared(self, engine: docker_client.APIClient) -> bool:
        """Return True if it can be run without anything being fetched or built."""
        return self._installed.exists() and bool(engine.images(name=self.image))

    @property
    def _installed(self) -> Path:
        return self.python.parent.parent / "installed"

    def prepare(self, engine: docker_client.APIClient, say: Callable[[str], None]) -> None:
        """Install its client in an environment of its own, and build its image.

        Raises:
            PeerFailed, host.build.BuildError, wheels.WheelsUnavailable: one of the two failed.
        """
        requirements = self.folder / "requirements.txt"
        if not self._installed.exists():
            say("installing its client")
            home = self.python.parent.parent
            _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)])
            pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
            _run([*pip, "install", "--quiet", "--no-input", "--requirement", str(requirements)])
            self._installed.touch()
        if not engine.images(name=self.image):
            with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder:
                base = tag()
                if inspect_image(engine, base) is None:  # whichever version it is of
                    ensure_base(engine, Steps())
                say("collecting what its image needs")
                wheels.collect(probe_python(engine, base), requirements, Path(folder))
                say("building its image")
                dockerfile = {"Dockerfile": (self.folder / "Dockerfile").read_text()}
                with open_context({"wheels": (Path(folder), []), "peer": (self.folder, [])}, dockerfile) as context:
                    label, _, value = PEER_LABEL.partition("=")
                    run_build(
                        engine, context, tag=self.image, detail=say, buildargs={"BASE": base}, labels={label: value}
                    )

    async def drive(self, *, starts: int, calls: int, clients: int, sessions: int) -> dict[str, Any]:
        """Play episodes; return what ``drive.py`` printed.

        Raises:
            PeerFailed: it ended with an error, or not in time.
        """
        words = [str(self._drive), self.image, *map(str, (starts, calls, clients, sessions))]
        process = await asyncio.create_subprocess_exec(
            str(self.python), *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(_DRIVE_TIMEOUT_S):
                output, errors = await process.communicate()
        except TimeoutError:
            raise PeerFailed(f"it was not done after {_DRIVE_TIMEOUT_S} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise PeerFailed(" ".join(errors.decode(errors="replace").split("\n")[-_ERROR_LINES:]).strip())
        result: dict[str, Any] = json.loads(output)
        return result


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S)
    if done.returncode:
        raise PeerFailed(f"{' '.join(command[1:4])}: {' '.join(done.stderr.splitlines()[-_ERROR_LINES:])}")
