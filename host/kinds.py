"""What an image holds: a runtime of ours that dials out, or an ORS server of its own that listens. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

LABEL_RUNTIME = "ors-host.runtime"
"""On images: the version of the runtime in the base they were built from."""

LABEL_PORT = "ors-host.port"
"""On images: where their server listens."""

LABEL_KIND = "ors-host.kind"
"""On containers: which kind they were made as."""

LABEL_STATE = "ors-host.state"
"""On containers of servers, in which nothing of their host's state directory is mounted: where that is."""

DEFAULT_PORT = 8080
"""Whatever EXPOSE says: many images say 8000 there, while the server listens where both public SDKs do."""


class Kind(StrEnum):
    """What an image holds."""

    RUNTIME = "runtime"
    SERVER = "server"


def kind_of(labels: Mapping[str, str], told: Kind | None = None) -> Kind:
    """Return what an image with these labels holds; ``told`` counts more."""
    return told or (Kind.RUNTIME if LABEL_RUNTIME in labels else Kind.SERVER)


def port_of(labels: Mapping[str, str], told: int | None = None) -> int:
    """Return where the server in an image with these labels listens; ``told`` counts more.

    Raises:
        ValueError: the label says no port.
    """
    if told is not None:
        return told
    text = labels.get(LABEL_PORT, str(DEFAULT_PORT))
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536):
        raise ValueError(f"the label {LABEL_PORT} says {text[:40]!r}, which is no port")
    return int(text)
