"""``ors-host logs``: what a session's container writes, which is the environment's output, tracebacks included.

It was written inside, by whoever can: nothing of it is passed to a terminal that a terminal would obey.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from host.inventory import Inventory, find
from host.logs import printable
from host.options import Command, config_of, json_option, state_options
from host.state_view import StateView


@click.command("logs", cls=Command, short_help="Show what a session's container has written.")
@click.argument("session")
@state_options
@click.option("-f", "--follow", is_flag=True, help="Go on until the container ends.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@json_option
def logs_command(
    session: str, state_dir: str | None, config_file: Path | None, follow: bool, tail: int | None, as_json: bool
) -> None:
    """Show what the container of SESSION (an id, or its beginning) has written.

    That is what the environment's code prints. What the agent's commands print is their tools' result, and not here.
    Control characters are shown as \\x1b. It is there as long as the session lives.
    """
    view = StateView.of(config_of(config_file, {"state_dir": state_dir}).settings.state_dir)
    with Inventory.open() as inventory:
        entry = find(inventory.entries(view.server_id or None), session)
        try:
            for at, text in inventory.log(entry, follow=follow, tail=tail):
                click.echo(json.dumps({"time": at, "text": text}) if as_json else printable(text))
        except KeyboardInterrupt:
            return
