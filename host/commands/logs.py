"""``ors-host logs``: what a session's container writes, which is the environment's output, tracebacks included.

It was written inside, by whoever can: nothing of it is passed to a terminal that a terminal would obey.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import click

from host import kept_logs
from host.errors import StartupError
from host.inventory import Inventory, find
from host.kept_logs import KeptLog
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
    Control characters are shown as \\x1b. When the session has ended, the end of it is kept for a while (--log-keep of serve).
    """
    view = StateView.of(config_of(config_file, {"state_dir": state_dir}).settings.state_dir)
    try:
        with Inventory.open() as inventory:
            entry = find(inventory.entries(view.server_id or None), session)
            _print(inventory.log(entry, follow=follow, tail=tail), as_json=as_json)
    except StartupError:  # no such session any more, or no engine
        if (kept := kept_logs.find(view.path, session)) is None:
            raise
        _print_kept(kept, tail=tail, as_json=as_json)


def _print_kept(kept: KeptLog, *, tail: int | None, as_json: bool) -> None:
    ended = datetime.fromtimestamp(kept.ended_at, UTC).isoformat(timespec="seconds")
    click.echo(f"session {printable(kept.session)} ended at {ended}; the end of what its container wrote:", err=True)
    try:
        _print(deque(kept.lines(), tail), as_json=as_json)
    except OSError as exc:
        raise StartupError(f"what was kept of it is gone: {exc.strerror}") from exc


def _print(lines: Iterable[tuple[str, str]], *, as_json: bool) -> None:
    try:
        for at, text in lines:
            click.echo(json.dumps({"time": at, "text": text}) if as_json else printable(text))
    except KeyboardInterrupt:
        return
