"""What a client asks of the egress proxy: parsed strictly, and written anew for the server. Pure, around h11."""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11

from host.egress_policy import InvalidName, normalized

_ABSOLUTE = re.compile(rb"http://([^/?#]*)([/?][^#]*)?", re.IGNORECASE)

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    )
)
"""Headers that are for this proxy, or that it writes itself."""


class Refused(Exception):
    """The proxy's answer is an error: ``status`` and words that the container may know."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Target:
    """Where a request goes: ``tunnel`` for CONNECT (to port 443), else a plain request for ``path`` (at port 80)."""

    name: str
    port: int
    tunnel: bool
    path: bytes = b""


def target_of(request: h11.Request) -> Target:
    """Return where a request wants to go.

    Raises:
        Refused: nowhere that this proxy leads to, whatever the policy.
    """
    if request.method == b"CONNECT":
        return Target(*_authority(request.target, default_port=0, only_port=443), tunnel=True)
    match = _ABSOLUTE.fullmatch(request.target)
    if match is None:
        raise Refused(400, "this is a proxy: ask for http://NAME/…, or CONNECT to NAME:443")
    path = match[2] or b"/"
    name, port = _authority(match[1], default_port=80, only_port=80)
    return Target(name, port, tunnel=False, path=path if path.startswith(b"/") else b"/" + path)


def _authority(text: bytes, *, default_port: int, only_port: int) -> tuple[str, int]:
    name, colon, port = text.decode("latin-1").partition(":")
    if port != str(only_port) and not (default_port == only_port and not colon):
        raise Refused(403, f"only port {only_port} can be reached this way")
    try:
        return normalized(name), only_port
    except InvalidName as exc:
        raise Refused(403, f"only host names can be reached: {exc}") from exc


def request_to(target: Target, request: h11.Request) -> h11.Request:
    """Return the plain request as the server gets it: for the name that was checked, and the connection's only one."""
    named = {
        token.strip().lower() for key, value in request.headers if key == b"connection" for token in value.split(b",")
    }
    keys = {key for key, _ in request.headers}
    dropped = _HOP_BY_HOP | named | ({b"content-length"} if b"transfer-encoding" in keys else set())
    headers = [(key, value) for key, value in request.headers if key not in dropped - {b"transfer-encoding"}]
    return h11.Request(
        method=request.method,
        target=target.path,
        headers=[(b"Host", target.name.encode()), *headers, (b"Connection", b"close")],
    )
