"""What of a front's settings the nodes' hosts get, what is each node's own, and what all fronts must agree on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_settings import EnvSettingsSource

from host.settings import OPTIONS, Settings

_FRONTS_OWN = frozenset(
    {
        *("host", "port", "state_dir", "allow_unauthenticated"),
        *("api_key", "api_key_file", "agent_key", "agent_key_file"),
        *("engine", "ray_address", "replace_agents"),
        *("max_sessions", "queue_size", "queue_timeout_s", "max_connections", "on_exit"),
    }
)
"""Not a node's business: keys above all."""

_MAY_DIFFER = frozenset({"log_format", "log_level"})
"""Given to nodes, but no reason to refuse a front."""

_NODES_OWN = frozenset(OPTIONS) - _FRONTS_OWN | {"state_dir"}
"""What a node's environment may say otherwise."""


def for_nodes(settings: Settings) -> dict[str, Any]:
    """Return what all nodes' hosts are told, as JSON has it."""
    values: dict[str, Any] = settings.model_dump(mode="json", exclude=set(_FRONTS_OWN))
    return values


def on_node(given: Mapping[str, Any], own: Mapping[str, Any]) -> Settings:
    """Return the settings of a node's host: what it was given, then the node's ``ORS_HOST_…`` variables, then ``own``.

    Raises:
        pydantic.ValidationError: one can't be.
    """
    defaults = {name: field.get_default(call_default_factory=True) for name, field in Settings.model_fields.items()}
    variables = {name: value for name, value in EnvSettingsSource(Settings)().items() if name in _NODES_OWN}
    return Settings(**{**defaults, **given, **variables, **own})


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings in which two fronts' nodes would differ."""
    names = (ours.keys() | theirs.keys()) - _MAY_DIFFER
    return sorted(name for name in names if _text(ours.get(name)) != _text(theirs.get(name)))


def _text(value: Any) -> str:
    return json.dumps(
        value, sort_keys=True, default=lambda other: str(other) if isinstance(other, Path) else repr(other)
    )
