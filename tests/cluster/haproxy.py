"""HAProxy with the configuration of ``deploy/cluster``; in CI it is fetched from Debian's packages."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docker.harness import free_port

CONFIG = Path(__file__).parents[2] / "deploy" / "cluster" / "haproxy.cfg"
_CACHE = Path.home() / ".cache" / "ors-host-tests" / "haproxy"
_PACKAGES = ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
"""All but the first are what that one needs and a small system has not."""
_START_TIMEOUT_S = 20


def haproxy() -> tuple[str, dict[str, str]]:
    """Return the program and the variables it needs; nothing is installed, so no service is started."""
    if (found := shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")) is not None:
        return found, {}
    program = _CACHE / "usr" / "sbin" / "haproxy"
    if not program.exists() and os.environ.get("CI") and shutil.which("apt-get"):
        _CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True, timeout=100)
        for package in _PACKAGES:
            subprocess.run(["apt-get", "download", "-qq", package], cwd=_CACHE, capture_output=True, timeout=100)
        for archive in _CACHE.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", archive, _CACHE], check=True, timeout=60)
            archive.unlink()
    if not program.exists():
        pytest.skip("HAProxy is not installed (on Debian: apt-get install haproxy)")
    return str(program), {"LD_LIBRARY_PATH": ":".join(map(str, (_CACHE / "usr" / "lib").glob("*-linux-gnu*")))}


@contextmanager
def balancing(log: Path, *fronts: str) -> Iterator[str]:
    """HAProxy in front of two hosts (their URLs); its own URL is given."""
    program, needed = haproxy()
    port = free_port()
    places = {f"ORS_FRONT_{n}": url.removeprefix("http://") for n, url in enumerate(fronts, 1)}
    environ = {**os.environ, **needed, **places, "ORS_BIND": f"127.0.0.1:{port}"}
    with log.open("wb") as output:
        process = subprocess.Popen([program, "-db", "-f", str(CONFIG)], stdout=output, stderr=output, env=environ)
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
