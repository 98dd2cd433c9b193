"""What a container may reach by name, and which addresses count as outside. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)+(?!\d+$|0x)({_LABEL})")
"""At least two labels, the last no number: what resolvers would take for an address (``127.1``, ``0x7f.1``) is no name."""

_MAX_NAME_CHARS = 253

_NOT_OUTSIDE = tuple(
    ip_network(text)
    for text in (
        "168.63.129.16/32",  # Azure's metadata and DNS, at a public address
        "192.0.0.0/24",  # special purposes, one cloud's metadata among them
        "192.88.99.0/24",  # relays to IPv6 that may lead anywhere
        "2001::/23",  # Teredo and other special purposes
        "2002::/16",  # 6to4: an IPv4 address in disguise
        "3fff::/20",  # documentation
    )
)
_NAT64 = ip_network("64:ff9b::/96")
_IPV6_UNICAST = ip_network("2000::/3")
"""All of IPv6 that the internet is made of so far."""


class InvalidName(ValueError):
    """Not a host name."""


def normalized(name: str) -> str:
    """Return a host name in lower case and without the final dot.

    Raises:
        InvalidName: it is none: an address, a single label, or characters that no name has.
    """
    found = name.lower().removesuffix(".")
    if len(found) > _MAX_NAME_CHARS or not _NAME.fullmatch(found):
        raise InvalidName(f"{name[:80]!r} is not a full host name")
    return found


@dataclass(frozen=True)
class EgressPolicy:
    """Which names may be reached: those in ``allowed`` (``*.example.com``: any name below it, not itself), or any if None."""

    allowed: tuple[str, ...] | None

    @classmethod
    def allow(cls, names: tuple[str, ...]) -> EgressPolicy:
        """Return the policy that allows these names and patterns.

        Raises:
            InvalidName: one is neither a host name nor ``*.`` and one.
        """
        return cls(
            tuple(dict.fromkeys("*." * name.startswith("*.") + normalized(name.removeprefix("*.")) for name in names))
        )

    def allows(self, name: str) -> bool:
        """Tell whether a normalized name may be reached."""
        if self.allowed is None:
            return True
        parents = name.split(".")
        return name in self.allowed or any("*." + ".".join(parents[n:]) in self.allowed for n in range(1, len(parents)))


def is_outside(address: str) -> bool:
    """Tell whether an address is of the public internet: not private, local, reserved, multicast, or a way around these."""
    try:
        found = ip_address(address)
    except ValueError:  # e.g. with a zone: fe80::1%eth0
        return False
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return is_outside(str(found.ipv4_mapped))
        if found in _NAT64:
            return is_outside(str(IPv4Address(int(found) & 0xFFFFFFFF)))
        if found not in _IPV6_UNICAST:
            return False
    special = any(found in network for network in _NOT_OUTSIDE if network.version == found.version)
    return found.is_global and not found.is_multicast and not special
