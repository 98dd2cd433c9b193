"""A unix socket in front of the engine's that can be cut and restored: an engine that goes away, but for one host only."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENGINE_SOCKET = Path("/var/run/docker.sock")


class EngineProxy:
    """Forwards connections from ``restore`` on, until ``cut``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    def restore(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        self._run(self._accept)

    def cut(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._path.unlink()
        for pair in tuple(self._pairs):
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _run(self, target: Any, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with self._listener as listener, contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._run(self._forward, client)

    def _forward(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as engine:
            engine.connect(str(ENGINE_SOCKET))
            pair = (client, engine)
            self._pairs.add(pair)
            back = threading.Thread(target=_pump, args=(engine, client), daemon=True)
            back.start()
            _pump(client, engine)
            back.join()
            self._pairs.discard(pair)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def engine_proxy(directory: Path) -> Iterator[EngineProxy]:
    """An open proxy, cut at the end."""
    assert "DOCKER_HOST" not in os.environ, "the proxy stands in front of the default socket"
    proxy = EngineProxy(directory / "docker.sock")
    proxy.restore()
    try:
        yield proxy
    finally:
        proxy.cut()
