"""``ors-host inspect``: all that is known of one session from outside. Of variables the names are shown, not the values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from host.inventory import Inventory, as_data, find
from host.logs import printable
from host.options import Command, config_of, json_option, state_options
from host.state_view import StateView


@click.command("inspect", cls=Command, short_help="Show what is known of a session.")
@click.argument("session")
@state_options
@json_option
def inspect_command(session: str, state_dir: str | None, config_file: Path | None, as_json: bool) -> None:
    """Show what is known of SESSION (an id, or its beginning): its container, limits, mounts, and what it uses.

    The task, the secrets and what was said are nobody's but the container's: they are not here.
    """
    view = StateView.of(config_of(config_file, {"state_dir": state_dir}).settings.state_dir)
    with Inventory.open() as inventory:
        entry = find(inventory.entries(view.server_id or None), session)
        data = as_data(entry, inventory.use([entry]).get(entry.name)) | _details(inventory.inspect(entry))
    if as_json:
        click.echo(json.dumps(data, indent=2))
        return
    for name, value in _flat(data):
        click.echo(printable(f"{name:<24} {'' if value is None else value}"))


def _details(container: Mapping[str, Any]) -> dict[str, Any]:
    state, limits = container["State"], container["HostConfig"]
    return {
        "image_id": container["Image"],
        "container_id": container["Id"],
        "pid": state["Pid"] or None,
        "started_at": state["StartedAt"],
        "finished_at": None if state["Running"] else state["FinishedAt"],
        "exit_code": None if state["Running"] else state["ExitCode"],
        "out_of_memory": state["OOMKilled"],
        "limits": {
            "memory_bytes": limits["Memory"],
            "cpus": limits["NanoCpus"] / 1e9,
            "pids": limits["PidsLimit"],
            "writable_root": not limits["ReadonlyRootfs"],
            "in_memory": sorted(limits.get("Tmpfs") or ()),
        },
        "oci_runtime": limits["Runtime"],
        "network": limits["NetworkMode"],
        "mounts": {mount["Destination"]: mount["Source"] for mount in container["Mounts"]},
        "variables": sorted(text.partition("=")[0] for text in container["Config"]["Env"] or ()),
    }


def _flat(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    lines: list[tuple[str, Any]] = []
    for name, value in data.items():
        if isinstance(value, Mapping):
            lines += _flat(value, f"{prefix}{name}.")
        else:
            lines.append((prefix + name, ", ".join(map(str, value)) if isinstance(value, list) else value))
    return lines
