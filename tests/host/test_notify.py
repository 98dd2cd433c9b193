"""What systemd is told, on a socket like systemd's."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

import pytest

from host.notify import notify


@pytest.fixture(params=["a file", "the kernel's own names"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """The socket that ``NOTIFY_SOCKET`` names."""
    name = str(tmp_path / "notify") if request.param == "a file" else f"@ors-host-{secrets.token_hex(8)}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    request.addfinalizer(sock.close)
    sock.bind(name if name.startswith("/") else f"\0{name[1:]}")
    sock.settimeout(10)
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    return sock


def test_a_word(systemd: socket.socket) -> None:
    notify("READY=1")
    assert systemd.recv(100) == b"READY=1"


def test_nobody_asked_or_listens(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd.close()
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")
