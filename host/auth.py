"""API keys: who may ask for what.

Two roles. The *trainer* (``--api-key``) may do everything. The *agent* (``--agent-key``, optional) is the side that plays an
episode: it may use sessions whose ids it was given (prompt, task tools, calls, ping) and nothing else, because task lists hold
answers, and whoever can create or delete sessions can spend or spoil them.

Without a key everybody is the trainer; then the host listens on a loopback address only, unless told that this is meant. A web
page that somebody on this machine looks at can send requests there too, by a name of its own that leads to 127.0.0.1 (DNS
rebinding): so without a key nobody is answered on a loopback address who calls it by a name of the internet.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware
from pydantic import SecretStr

from host.errors import Forbidden, StartupError, Unauthorized
from host.settings import Settings

_OPEN = frozenset({"health", "ready", "ui_file", "ui_redirect"})
"""For whoever watches that the server is up, and the dashboard's files, which ask for the key: they tell nothing else."""

_AGENTS = frozenset({"prompt", "task_tools", "call", "ping"})
"""What works on one session, whose id the asker must know."""

_MAX_KEY_CHARS = 4096
_SHOWN_CHARS = 100


class Role(StrEnum):
    """Who asks."""

    TRAINER = "trainer"
    AGENT = "agent"


@dataclass(frozen=True)
class Keys:
    """The digests of the keys, so that a comparison takes as long for any guess."""

    trainer: bytes | None = field(default=None, repr=False)
    agent: bytes | None = field(default=None, repr=False)
    operator: bytes | None = field(default=None, repr=False)
    """Of whoever can read the state directory: commands like ``ors-host kill``, which are told no other key."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Read the keys from the settings, or from the files that these name.

        Raises:
            StartupError: a file can't be read, a key is no word, or there is an agent's key without a trainer's.
        """
        trainer = _key(settings.api_key, settings.api_key_file, "--api-key")
        agent = _key(settings.agent_key, settings.agent_key_file, "--agent-key")
        if agent is not None and trainer is None:
            raise StartupError("--agent-key needs an --api-key beside it: without one everybody may do everything")
        if agent is not None and agent == trainer:
            raise StartupError("--agent-key and --api-key are the same key; give the agent's side one of its own")
        return cls(trainer, agent)

    def with_operator(self, key: str) -> Keys:
        """Return these keys and the operator's."""
        return replace(self, operator=_digest(key))

    @property
    def needed(self) -> bool:
        """True if there is a key at all."""
        return self.trainer is not None

    def role(self, given: str) -> Role | None:
        """Return whose key this is, in a time that tells nothing about how near it came."""
        digest = _digest(given)
        is_trainer = self.trainer is not None and hmac.compare_digest(digest, self.trainer)
        is_agent = self.agent is not None and hmac.compare_digest(digest, self.agent)
        is_operator = self.operator is not None and hmac.compare_digest(digest, self.operator)
        return Role.TRAINER if is_trainer or is_operator else Role.AGENT if is_agent else None


def guard(keys: Keys) -> Middleware:
    """Return the middleware that lets a request through, or raises ``Unauthorized`` or ``Forbidden``.

    It goes by the handler that the router has chosen, so that no spelling of a path is another path here than there.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = getattr(request.match_info.handler, "__name__", "")
        if keys.needed and name not in _OPEN:
            role = _role(request, keys)
            if role is Role.AGENT and name not in _AGENTS:
                raise Forbidden("this key is for the prompt, the tools and the calls of a session that was given to it")
        elif not keys.needed and name not in _OPEN and _comes_by_a_foreign_name(request):
            raise Forbidden(
                f"without a key, this address is not answered by the name {request.host[:_SHOWN_CHARS]!r}: use localhost or "
                "127.0.0.1 (a proxy: in its Host header), or set a key"
            )
        return await handler(request)

    return check


def check_exposure(keys: Keys, settings: Settings, address: str) -> None:
    """Refuse to be open to other machines by oversight.

    Raises:
        StartupError: ``address`` is not a loopback address, there is no key, and nobody said that this is meant.
    """
    if keys.needed or settings.allow_unauthenticated or ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return
    raise StartupError(
        f"listening on {settings.host} without a key would let everybody who reaches it run sessions and read tasks; set "
        "ORS_HOST_API_KEY (or --api-key-file), listen on 127.0.0.1, or say --allow-unauthenticated"
    )


def _comes_by_a_foreign_name(request: web.Request) -> bool:
    """Tell whether a request to a loopback address calls it by what may be somebody else's name in DNS."""
    address = request.transport.get_extra_info("sockname") if request.transport else None
    if not address:
        return False
    return _is_foreign(address[0], request.host)


@lru_cache(maxsize=64)
def _is_foreign(address: str, host: str) -> bool:
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return False
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if "." not in name.strip(".") and ":" not in name or name.rstrip(".").endswith(".localhost"):
            return False  # nobody gets such a name on the internet
        ipaddress.ip_address(name)
    except ValueError:
        return True
    return False


def _role(request: web.Request, keys: Keys) -> Role:
    given = list(_given(request))
    if not given:
        raise Unauthorized("a key is needed: send it as X-API-Key, or as Authorization: Bearer")
    # The clients send one; a proxy that adds its own must not lend it to whoever sent another.
    roles = {keys.role(key) for key in given}
    if len(roles) == 1 and (role := roles.pop()) is not None:
        return role
    raise Unauthorized("the key is not valid")


def _given(request: web.Request) -> Iterator[str]:
    yield from request.headers.getall("X-API-Key", ())
    for value in request.headers.getall(hdrs.AUTHORIZATION, ()):
        scheme, _, credentials = value.partition(" ")
        yield credentials.strip() if scheme.lower() == "bearer" else ""


def _key(value: SecretStr | None, path: Path | None, flag: str) -> bytes | None:
    if value is not None and path is not None:
        raise StartupError(f"give either {flag} or {flag}-file, not both")
    if path is not None:
        try:
            text = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise StartupError(
                f"{flag}-file {path} can't be read: {getattr(exc, 'strerror', 'it is not text')}"
            ) from None
    elif value is not None:
        text = value.get_secret_value()
    else:
        return None
    if not (0 < len(text) <= _MAX_KEY_CHARS and text.isascii() and text.isprintable() and " " not in text):
        raise StartupError(f"the key of {flag} must be one word of visible ASCII characters")
    return _digest(text)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()
