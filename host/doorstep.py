"""A sandbox's directory, with the socket that its runtime dials and the token that it must say: made, and guarded."""

from __future__ import annotations

import hmac
import os
import socket
import struct
from pathlib import Path

from pydantic import ValidationError

from host.channel import ProtocolViolation
from host.state import SOCKET_NAME, TOKEN_NAME
from sandbox_runtime import messages
from sandbox_runtime.messages import Hello, Request, Response


def shared_groups() -> tuple[int, ...]:
    """Return the groups that a container's root needs to reach the socket: ours, where this process isn't root itself."""
    return () if os.geteuid() == 0 else (os.getegid(),)


def bind(directory: Path, token: str, *, owner: tuple[int, int] | None, again: bool = False) -> socket.socket:
    """Make the directory with the token and a socket in it; return the socket, bound, not listening yet.

    With ``again`` the directory is there, of a container that an earlier host made, and only the socket is new.

    ``owner`` is the (uid, gid) the runtime has on the host under user-namespace remapping, else None. A host that is not
    root can't give files away: it shares them with the container's root through its own group instead.

    Raises:
        OSError: the directory or the socket can't be made.
    """
    shared = bool(shared_groups())
    token_path = directory / TOKEN_NAME
    path = directory / SOCKET_NAME
    if again:
        path.unlink(missing_ok=True)
    else:
        directory.mkdir(mode=0o700)
        token_path.touch(mode=0o600)
        token_path.write_text(token)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        for name, mode in ((path, 0o660 if shared else 0o600), (token_path, 0o440 if shared else 0o400)):
            os.chmod(name, mode)
        if owner is not None:
            for name in (path, token_path, directory):
                os.chown(name, *owner)
        os.chmod(directory, 0o750 if shared else 0o700)
    except BaseException:
        sock.close()
        raise
    return sock


def peer_uid(sock: socket.socket) -> int:
    """Return the uid of the process at the other end of a unix socket, as the kernel tells it."""
    _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)


def checked_hello(message: Request | Response, token: str) -> tuple[Hello, int]:
    """Return what a runtime's first message says, and the id that it is to be answered under.

    Raises:
        ProtocolViolation: it is not hello with this token, or of a runtime of another protocol.
    """
    if not isinstance(message, Request) or message.method != "hello" or message.id is None:
        raise ProtocolViolation("the first message is not hello")
    try:
        hello = Hello.model_validate(message.params)
    except ValidationError as exc:
        raise ProtocolViolation(f"hello: {messages.describe(exc)[:500]}") from exc
    if not hmac.compare_digest(hello.token.encode(errors="replace"), token.encode()):
        raise ProtocolViolation("hello with a wrong token")
    if hello.protocol != messages.PROTOCOL_VERSION:
        raise ProtocolViolation(
            f"the image's runtime speaks protocol {hello.protocol}, this host {messages.PROTOCOL_VERSION}: "
            "build the image again"
        )
    return hello, message.id
