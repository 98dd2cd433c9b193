"""Secrets are taken out of what is kept of an episode: wherever one occurs verbatim, there are three stars in its place.

Only what is verbatim is found: an environment that prints a secret backwards, or in pieces, has given it away.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json, to_json

from host.answers import is_light

STARS = "***"

_OURS = frozenset(
    ("blocks", "data", "detail", "error", "finished", "metadata", "mimeType", "ok", "output")
    + ("reason", "reward", "scores", "text", "type")
)
"""Names that the protocol gives to fields: they hold no secret, and without them nothing could be read."""


class Mask:
    """The secrets of one session."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # The longest first: one may be the beginning of another.
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        forms = {form for secret in self._secrets for form in (_escaped(secret), json.dumps(secret)[1:-1].encode())}
        self._escaped = tuple(forms)

    def text(self, text: str) -> str:
        """Return a text without the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, STARS)
        return text

    def value(self, value: Any) -> Any:
        """Return a JSON value without the secrets; a number that holds one becomes stars as a whole."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {(key if key in _OURS else self.text(key)): self.value(item) for key, item in value.items()}
            case list():
                return [self.value(item) for item in value]
            case int() | float() if not isinstance(value, bool) and any(s in repr(value) for s in self._secrets):
                return STARS
        return value

    def json(self, raw: bytes) -> bytes | None:
        """Return a JSON text without the secrets: the same bytes where none is in it.

        None if one may be in it and it is too much to look through, or can't be read.
        """
        if not any(form in raw for form in self._escaped):
            return raw
        if not is_light(raw):
            return None
        try:
            return to_json(self.value(from_json(raw)))
        except ValueError:
            return None


def _escaped(secret: str) -> bytes:
    """Return a text as it stands within a JSON string."""
    try:
        return to_json(secret)[1:-1]
    except ValueError:  # half of a surrogate pair, which no UTF-8 has
        return json.dumps(secret)[1:-1].encode()
