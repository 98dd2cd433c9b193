"""Sockets inside a container's network: made by a thread that enters it, used by everybody.

A socket stays in the network namespace that its thread was in when it was made. So the container needs no network, and nobody
else can reach what listens in it. The event loop's thread never enters one.

1. A namespace is held by a descriptor, which can't become another container's; what a process id names can.
2. All descriptors are used and closed by the one thread, in order: none is closed, and its number used again, under a
   socket that is being made.
3. It must be the container's: not this process's own, and of a process that the kernel says is in that container.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_OWN = "/proc/self/ns/net"


class NoEntry(Exception):
    """A container's network can't be entered from here; ``str()`` says why."""


class Namespaces:
    """The thread. It is started when it is first needed, and ended by ``close()``."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="netns")
        self._own = -1

    async def check(self) -> None:
        """See whether this process may enter network namespaces at all.

        Raises:
            NoEntry: it may not.
        """
        await asyncio.wrap_future(self._thread.submit(self._check))

    async def enter(self, pid: int, container_id: str) -> Namespace:
        """Take hold of the network of a container whose init process has this id now.

        Whether it still had it afterwards is for the caller to ask the engine: only then was it the container's.

        Raises:
            NoEntry: there is no such process here, or it is not that container's.
        """
        taking = self._thread.submit(self._enter, pid, container_id)
        try:
            return await asyncio.wrap_future(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_let_go)
            raise

    def close(self) -> None:
        """End the thread; what was made by it lives on."""
        if self._own >= 0:
            self._thread.submit(os.close, self._own)
            self._own = -1
        self._thread.shutdown(wait=False)

    # In the thread

    def _check(self) -> None:
        if self._own < 0:
            self._own = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_namespace(self._own)
        except OSError as exc:
            needs = "needs root (CAP_SYS_ADMIN) on this machine" if exc.errno == errno.EPERM else str(exc.strerror)
            raise NoEntry(f"entering a container's network {needs}") from None

    def _enter(self, pid: int, container_id: str) -> Namespace:
        self._check()
        try:
            fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise NoEntry(f"the container's process {pid} can't be seen from here ({exc.strerror})") from None
        try:
            if os.path.samestat(os.fstat(fd), os.fstat(self._own)):
                raise NoEntry("the container has no network of its own")
            if container_id not in _cgroups(pid):
                raise NoEntry(f"process {pid} of this machine is not the container's: the engine runs on another one")
            return Namespace(self, fd)
        except BaseException:
            os.close(fd)
            raise

    def _socket(self, fd: int, family: socket.AddressFamily) -> socket.socket:
        _set_namespace(fd)
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        finally:
            _set_namespace(self._own)
        sock.setblocking(False)
        return sock


class Namespace:
    """One container's network, held until ``close()``."""

    def __init__(self, namespaces: Namespaces, fd: int) -> None:
        self._namespaces = namespaces
        self._fd = fd

    async def socket(self, family: socket.AddressFamily) -> socket.socket:
        """Return a new TCP socket in it, not connected, and non-blocking.

        Raises:
            OSError: it can't be made, or the namespace was let go of.
        """
        if self._fd < 0:
            raise OSError(errno.EBADF, "the container's network was let go of")
        making = self._namespaces._thread.submit(self._namespaces._socket, self._fd, family)
        try:
            return await asyncio.wrap_future(making)
        except asyncio.CancelledError:
            making.add_done_callback(_let_go)
            raise

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            try:
                self._namespaces._thread.submit(os.close, self._fd)
            except RuntimeError:  # the thread has ended
                os.close(self._fd)
            self._fd = -1


def _let_go(made: Future[Namespace] | Future[socket.socket]) -> None:
    """Close what nobody waits for any more."""
    if not made.cancelled() and made.exception() is None:
        made.result().close()


def _cgroups(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


def _set_namespace(fd: int) -> None:
    if hasattr(os, "setns"):  # Python 3.12
        os.setns(fd, _CLONE_NEWNET)
    elif _libc.setns(fd, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_libc = ctypes.CDLL(None, use_errno=True)
