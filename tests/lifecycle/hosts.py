"""One host that is killed, stopped and started again, on the same port and state directory; and what of it is measured."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.docker.harness import RunningHost, free_port

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 60


@dataclass(frozen=True)
class Usage:
    """What the host's process holds, at ``at_s`` seconds of the monotonic clock."""

    at_s: float
    rss_bytes: int
    descriptors: int
    threads: int


class RestartableHost:
    """``ors-host`` in ``directory``, in front of an engine (``DOCKER_HOST``)."""

    def __init__(self, image: str, directory: Path, docker_host: str | None, **settings: Any) -> None:
        self.port = free_port()
        self.directory = directory
        self._log = directory / "host.log"
        self._environ = {**os.environ, **({"DOCKER_HOST": docker_host} if docker_host else {})}
        self._command = [str(Path(sys.executable).with_name("ors-host")), "--image", image, "--port", str(self.port)]
        self._command += ["--state-dir", str(directory / "state")]
        for name, value in settings.items():
            self._command += ["--" + name.replace("_", "-"), str(value)]
        self.up = asyncio.Event()
        self.starts = 0

    async def start(self) -> None:
        """Start it, and wait until it serves."""
        process = await asyncio.to_thread(self._popen)
        self.running = RunningHost(process, self.port, self.directory / "state", self._log)
        self.starts += 1
        async with asyncio.timeout(START_TIMEOUT_S):
            while self.running.log.count(" serving ") < self.starts:
                assert process.poll() is None, f"the host ended with exit code {process.returncode}:\n{self.tail}"
                await asyncio.sleep(0.05)
        self.up.set()

    def _popen(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as output:
            return subprocess.Popen(self._command, stdout=output, stderr=output, env=self._environ)

    @property
    def tail(self) -> str:
        """The end of its log."""
        return self.running.log[-6000:]

    async def kill(self) -> None:
        """``kill -9``."""
        self.up.clear()
        await asyncio.to_thread(self.running.kill)

    async def stop(self) -> None:
        """SIGTERM; it must end in order."""
        self.up.clear()
        self.running.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(self.running.process.wait, STOP_TIMEOUT_S)
        assert code == 0, f"exit code {code}:\n{self.tail}"

    def usage(self) -> Usage:
        """Measure the process."""
        return measure(self.running.process.pid)


def measure(pid: int) -> Usage:
    """Measure a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Usage(
        at_s=time.monotonic(),
        rss_bytes=int(status["VmRSS"].split()[0]) * 1024,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=int(status["Threads"]),
    )
