"""The host's own way to the internet, for what containers ask of the egress proxy: names to addresses, addresses to sockets.

A name is looked up once, every address that came back is judged, and the connection is made to an address that was: what the
name means a moment later (DNS rebinding) doesn't matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio

from host.egress_policy import is_outside

_LOOKUP_THREADS = 32
"""A lookup blocks for as long as somebody's name server likes; the host's other work has threads of its own."""

LOOKUP_TIMEOUT_S = 15
CONNECT_TIMEOUT_S = 10


class Unreachable(Exception):
    """No connection could be made; ``str()`` says no more than the container may know."""


class Network:
    """Connects to names outside. Tests put an internet of their own in its place."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="egress-dns")

    def close(self) -> None:
        """Let go of the threads; lookups under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def connect(self, name: str, port: int) -> socket.socket:
        """Return a socket connected to ``name``, which is a full host name.

        Raises:
            Unreachable: it has no address, none that is outside, or none that answers.
        """
        try:
            with anyio.fail_after(LOOKUP_TIMEOUT_S):
                addresses = await self.look_up(name)
        except (OSError, UnicodeError) as exc:  # TimeoutError is an OSError
            raise Unreachable(f"{name} can't be resolved") from exc
        outside = [address for address in addresses if self.is_outside(address)]
        if not outside:
            raise Unreachable(f"{name} has no address on the internet")
        for address in outside[:4]:
            with contextlib.suppress(OSError):
                with anyio.fail_after(CONNECT_TIMEOUT_S):
                    return await self.dial(address, port)
        raise Unreachable(f"{name} does not answer on port {port}")

    async def look_up(self, name: str) -> list[str]:
        """Return the addresses of a name. The final dot keeps the machine's search domains out of it."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def is_outside(self, address: str) -> bool:
        """Tell whether an address is on the internet, and not one of this machine's own."""
        return is_outside(address) and not _is_ours(address)

    async def dial(self, address: str, port: int) -> socket.socket:
        """Return a socket connected to an address.

        Raises:
            OSError: it can't be.
        """
        with _closed_on_error(_new_socket(address)) as sock:
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
            return sock


def _new_socket(address: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
    sock.setblocking(False)
    return sock


@contextlib.contextmanager
def _closed_on_error(sock: socket.socket) -> Iterator[socket.socket]:
    try:
        yield sock
    except BaseException:
        sock.close()
        raise


def _is_ours(address: str) -> bool:
    """Tell whether an address is this machine's: the way to those begins where it ends. Sends nothing."""
    with _new_socket(address, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((address, 9))
        except OSError:  # no way there: connecting will say so
            return False
        return bool(sock.getsockname()[0] == address)
