"""Tells systemd what becomes of this process (``Type=notify``): one datagram to the socket that ``NOTIFY_SOCKET`` names."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send ``READY=1``, ``STOPPING=1`` and the like; nothing where nobody asked for it, or listens any more."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # A name that begins with @ is in the kernel's own space of names, and begins with NUL there.
    name = address if address.startswith("/") else "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock, contextlib.suppress(OSError):
        sock.setblocking(False)  # systemd reads it at once; who doesn't is not waited for
        sock.sendto(state.encode(), name)
