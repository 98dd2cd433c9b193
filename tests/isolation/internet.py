"""An internet of our own for the egress proxy: names and addresses in a table, servers on loopback ports."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from host.network import Network


@dataclass
class Served:
    """What a server on the internet saw and says."""

    name: str
    heard: list[bytes] = field(default_factory=list)
    listen_on_s: float = 0
    """How long it listens for more after its answer."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heard.append(head)
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            self.heard.append(await reader.readexactly(length))
            body = f"this is {self.name}".encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.listen_on_s):
                    self.heard.append(await reader.read())
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()


class FakeInternet(Network):
    """``names``: name → addresses, in the order of the lookups; the last stays. A dialled address is a port here."""

    def __init__(self, names: dict[str, list[list[str]]], ports: dict[tuple[str, int], int]) -> None:
        super().__init__()
        self.names = names
        self.ports = ports
        self.looked_up: list[str] = []
        self.dialled: list[tuple[str, int]] = []

    async def look_up(self, name: str) -> list[str]:
        self.looked_up.append(name)
        answers = self.names.get(name)
        if not answers:
            raise socket.gaierror("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def dial(self, address: str, port: int) -> socket.socket:
        self.dialled.append((address, port))
        if (address, port) not in self.ports:
            raise ConnectionRefusedError
        return await super().dial("127.0.0.1", self.ports[address, port])


@dataclass
class Internet:
    """A running one: ``good.example.com`` (1.1.1.1) is good, ``evil.example.org`` (2.2.2.2) is not, ports 80 and 443."""

    network: FakeInternet
    good: Served
    evil: Served
    ca_pem: Path


GOOD, EVIL = "good.example.com", "evil.example.org"


@asynccontextmanager
async def running_internet(directory: Path) -> AsyncIterator[Internet]:
    """Start both servers, with certificates of one authority, whose certificate is in ``ca_pem``."""
    authority = trustme.CA()
    ca_pem = directory / "ca.pem"
    authority.cert_pem.write_to_path(ca_pem)
    ports = {}
    served = {}
    async with AsyncExitStack() as stack:
        for name, address in ((GOOD, "1.1.1.1"), (EVIL, "2.2.2.2")):
            served[name] = Served(name)
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            authority.issue_cert(name).configure_cert(context)
            for port, tls in ((80, None), (443, context)):
                server = await asyncio.start_server(served[name], "127.0.0.1", 0, ssl=tls)
                await stack.enter_async_context(server)
                ports[address, port] = server.sockets[0].getsockname()[1]
        names = {GOOD: [["1.1.1.1"]], EVIL: [["2.2.2.2"]]}
        yield Internet(FakeInternet(names, ports), served[GOOD], served[EVIL], ca_pem)
