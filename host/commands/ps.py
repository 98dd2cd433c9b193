"""``ors-host ps``: sessions and the other containers of a host.

A session's id is half a credential: on a host without keys, or with the agent's key, whoever knows it can play the session. Who
can ask the engine and read the state directory may know them all, so nothing is given away here; but tables are copied into
tickets and chats. So this prints as much of an id as tells it from the others, which the other commands take in its place.
``--json`` and ``--no-trunc``, for scripts, have the whole.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from pydantic import ByteSize
from rich.console import Console
from rich.table import Table
from rich.text import Text

from host.inventory import Entry, Inventory, Use, as_data, duration, short_ids
from host.logs import printable
from host.options import Command, config_of, json_option, state_options
from host.state_view import Life, StateView

_HOST_CHARS = 8
_PIPED_WIDTH = 400


@click.command("ps", cls=Command, short_help="List the sessions of a host.")
@state_options
@click.option("--all-hosts", is_flag=True, help="The containers of all hosts on this engine.")
@click.option("--no-trunc", is_flag=True, help="Show whole session ids.")
@json_option
def ps_command(state_dir: str | None, config_file: Path | None, all_hosts: bool, no_trunc: bool, as_json: bool) -> None:
    """List the sessions of a host, and its containers that wait for one (warm) or answer questions (catalog).

    It works whether or not the host lives. Session ids are cut to what tells them apart, as whoever knows one can play it
    where no key is set; the other commands take them so.
    """
    view = StateView.of(config_of(config_file, {"state_dir": state_dir}).settings.state_dir)
    with Inventory.open() as inventory:
        entries = inventory.entries(None if all_hosts else view.server_id) if all_hosts or view.server_id else []
        use = inventory.use(entries)
    if as_json:
        click.echo(json.dumps([as_data(entry, use.get(entry.name)) for entry in entries], indent=2))
        return
    if not all_hosts and not view.server_id:
        why = f": {view.problem}" if view.problem else ""
        click.echo(
            f"no host is known in {view.path}{why}; --state-dir names another, --all-hosts asks for all", err=True
        )
        return
    if not all_hosts and view.life is Life.DEAD:
        click.echo(f"the host of {view.path} is not running", err=True)
    _print(entries, use, all_hosts=all_hosts, no_trunc=no_trunc)


def _print(entries: Sequence[Entry], use: Mapping[str, Use], *, all_hosts: bool, no_trunc: bool) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ["session", "environment", "image", "state", "age", "idle", "memory", "cpu", "sandbox"]
    for column in (["host"] if all_hosts else []) + columns:
        table.add_column(column, no_wrap=True, justify="right" if column in ("memory", "cpu") else "left")
    short = short_ids(entries)
    for entry in entries:
        used = use.get(entry.name)
        sid = f"({entry.kind})" if entry.session is None else entry.session if no_trunc else short[entry.session]
        cells = [
            sid,
            entry.environment or "",
            entry.image,
            entry.state,
            duration(entry.age_s),
            duration(entry.idle_s),
            f"{ByteSize(used.memory_bytes).human_readable()}" if used else "",
            f"{used.cpus:.0%}" if used else "",
            entry.sandbox,
        ]
        if all_hosts:
            cells.insert(0, f"{entry.server_id[:_HOST_CHARS]} ({entry.host.life.name.lower()})")
        table.add_row(*(Text(printable(cell)) for cell in cells), style="dim" if entry.session is None else "")
    # Piped, a table is as wide as it needs to be: nothing of it is cut.
    Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)
