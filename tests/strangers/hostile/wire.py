"""HTTP by hand, so that it can also be done wrong."""

from __future__ import annotations

import json
import socket
from typing import Any


class Connection:
    """One connection: requests are read properly, answers written as told."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._file = sock.makefile("rb")
        self.path = ""
        self.headers: dict[str, str] = {}
        self.body: dict[str, Any] = {}

    @property
    def sid(self) -> str:
        return self.headers.get("x-session-id", "")

    def read(self) -> bool:
        """Read a request; tell whether there was one."""
        line = self._file.readline(65536)
        if not line:
            return False
        self.path = line.split()[1].decode().partition("?")[0]
        self.headers = {}
        while (line := self._file.readline(65536)) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            self.headers[name.strip().lower()] = value.strip()
        content = self._content()
        self.body = json.loads(content) if content.strip() else {}
        return True

    def _content(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self._file.read(int(self.headers.get("content-length", 0)))
        pieces = []
        while size := int(self._file.readline(), 16):
            pieces.append(self._file.read(size))
            self._file.readline()
        self._file.readline()
        return b"".join(pieces)

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self, status: int, content_type: str, headers: str = "") -> None:
        self.raw(f"HTTP/1.1 {status} Whatever\r\nContent-Type: {content_type}\r\n{headers}\r\n".encode())

    def json(self, status: int, value: Any, headers: str = "") -> None:
        self.text(status, json.dumps(value).encode(), "application/json", headers)

    def text(self, status: int, content: bytes, content_type: str, headers: str = "") -> None:
        self.head(status, content_type, f"Content-Length: {len(content)}\r\n{headers}")
        self.raw(content)

    def begin_events(self) -> None:
        self.head(200, "text/event-stream", "Transfer-Encoding: chunked\r\n")

    def chunk(self, data: bytes) -> None:
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, name: str, data: str) -> None:
        self.chunk(f"event: {name}\ndata: {data}\n\n".encode())

    def finish(self, data: bytes = b"") -> None:
        if data:
            self.chunk(data)
        self.raw(b"0\r\n\r\n")

    def events(self, *found: tuple[str, str]) -> None:
        self.begin_events()
        for name, data in found:
            self.event(name, data)
        self.finish()
