"""A Docker engine of the tests' own, to be stopped and killed: the machine's is not to be touched.

It runs in a network namespace of its own, so that it can't disturb the other's bridge; our containers have no network anyway.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from host import docker_client

_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 60


class SecondEngine:
    """``dockerd`` with everything it has in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.url = f"unix://{directory}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, live_restore: bool) -> None:
        """Start it and wait until it answers."""
        command = ["unshare", "--net", "dockerd", "--host", self.url]
        for name in ("data-root", "exec-root"):
            command += [f"--{name}", str(self._directory / name)]
        command += ["--pidfile", str(self._directory / "pid"), "--bridge", "none", "--iptables=false"]
        command += ["--live-restore"] if live_restore else []
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.answers():
            assert self._process.poll() is None, (self._directory / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (self._directory / "log").read_text()[-3000:]
            time.sleep(0.1)

    def stop(self) -> None:
        """SIGTERM: without live-restore it ends its containers first."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL: what it had started goes on, and so does its containerd."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def answers(self) -> bool:
        """Tell whether it can be asked."""
        with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
            sock.settimeout(5)
            sock.connect(self.url.removeprefix("unix://"))
            sock.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b"200 OK" in sock.recv(4096)
        return False

    def load(self, image: str) -> None:
        """Give it an image of the machine's engine."""
        load = ["docker", "--host", self.url, "load"]
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as save:
            subprocess.run(load, stdin=save.stdout, check=True, stdout=subprocess.DEVNULL, timeout=120)
        assert save.returncode == 0


@contextmanager
def second_engine() -> Iterator[SecondEngine]:
    """An engine that is not started yet; at the end it is ended, with all it started, and its files are removed."""
    # Below /var/lib: overlay2 wants a real file system, and socket paths must be short.
    directory = Path(tempfile.mkdtemp(prefix="ors-e2-", dir="/var/lib"))
    engine = SecondEngine(directory)
    try:
        yield engine
    finally:
        if engine.answers():
            with contextlib.closing(docker_client.APIClient(base_url=engine.url, version="1.41")) as client:
                for container in client.containers(all=True):
                    client.remove_container(container["Id"], force=True)
            engine.stop()
        elif engine._process is not None and engine._process.poll() is None:
            engine.kill()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended by an orderly dockerd
            os.kill(int((directory / "exec-root" / "containerd" / "containerd.pid").read_text()), signal.SIGTERM)
        for mount in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if (place := mount.split()[1]).startswith(f"{directory}/"):
                subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(directory, ignore_errors=True)
