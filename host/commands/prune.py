"""``ors-host prune``: remove what hosts left that are no more. What a living host has is never touched.

Whether one lives is told by the lock of its state directory, which is held here while what it left is removed. Containers whose
state directory is not to be seen from here (it was deleted; it is another machine's or another user's) may be a living host's:
they are only listed, unless told that no host is behind them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from host.errors import StartupError
from host.inventory import Entry, Inventory, duration
from host.logs import printable
from host.options import Command, config_of, json_option, state_options
from host.state import StateDir
from host.state_view import Life, StateView

_NOBODY = "none"
"""No host's id."""


@dataclass(frozen=True)
class _Left:
    """What one host left: containers, and directories of sandboxes."""

    view: StateView
    server_id: str
    entries: Sequence[Entry]
    sandboxes: frozenset[str]
    is_orphan: bool = False


@click.command("prune", cls=Command, short_help="Remove what a host left that doesn't run any more.")
@state_options
@click.option("--all-hosts", is_flag=True, help="What all hosts on this engine left, not only the one of --state-dir.")
@click.option(
    "--orphans", is_flag=True, help="Also containers whose host can't be looked for; be sure that it is gone."
)
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@json_option
def prune_command(
    state_dir: str | None, config_file: Path | None, all_hosts: bool, orphans: bool, yes: bool, as_json: bool
) -> None:
    """Remove the containers and directories that a host left which doesn't run any more.

    Sessions that the next host on the same state directory could go on with are among them. What a living host has is never
    touched: the lock of its state directory tells.
    """
    own = StateView.of(config_of(config_file, {"state_dir": state_dir}).settings.state_dir)
    with Inventory.open() as inventory:
        entries = inventory.entries(None if all_hosts or orphans else own.server_id or _NOBODY)
        dead, doubtful = _sort(entries, own, all_hosts=all_hosts)
        removable = [*dead, *(doubtful if orphans else [])]
        if removable and not yes:
            for left in removable:
                click.echo(printable(_describe(left)), err=True)
            click.confirm("Remove all this?", abort=True, err=True)
        removed = [left for left in removable if _remove(left, inventory)]
    kept = [] if orphans else doubtful
    if as_json:
        click.echo(json.dumps({"removed": [*map(_as_data, removed)], "doubtful": [*map(_as_data, kept)]}, indent=2))
        return
    containers, directories = (sum(map(len, parts)) for parts in zip(*_parts(removed), strict=True))
    click.echo(f"removed {containers} containers and {directories} directories")
    for left in kept:
        why = left.view.problem or "it is another host's now"
        click.echo(
            printable(
                f"not removed: {len(left.entries)} containers of the host in {left.view.path}, of which it can't be told "
                f"whether it lives ({why}); --orphans removes them"
            ),
            err=True,
        )


def _parts(removed: Sequence[_Left]) -> list[tuple[Sequence[Any], Sequence[Any]]]:
    return [((), ()), *((left.entries, [*left.sandboxes]) for left in removed)]


def _sort(entries: Sequence[Entry], own: StateView, *, all_hosts: bool) -> tuple[list[_Left], list[_Left]]:
    """Return what dead hosts left, and what is somebody's of whom nothing can be told."""
    by_host: dict[tuple[Path, str], list[Entry]] = {}
    views = {own.path: own}
    for entry in entries:
        by_host.setdefault((entry.host.path, entry.server_id), []).append(entry)
        views[entry.host.path] = entry.host
    if own.server_id:
        by_host.setdefault((own.path, own.server_id), [])
    dead, doubtful = [], []
    for (path, server_id), its in by_host.items():
        view = views[path]
        if view.server_id != server_id:  # not to be seen, or made anew since
            doubtful.append(_Left(view, server_id, its, frozenset(), is_orphan=True))
        elif view.life is Life.DEAD and (all_hosts or view == own) and (its or view.sandbox_ids()):
            dead.append(_Left(view, server_id, its, frozenset(view.sandbox_ids())))
    return dead, doubtful


def _remove(left: _Left, inventory: Inventory) -> bool:
    """Remove it; return whether that was right, for a host may have come since."""
    if left.is_orphan:
        for entry in left.entries:
            inventory.remove(entry)
        return True
    try:
        state = StateDir.open(left.view.path)
    except StartupError:
        return False
    with closing(state):
        for entry in left.entries:
            inventory.remove(entry)
        for sandbox in left.sandboxes:
            state.forget(sandbox)
    return True


def _describe(left: _Left) -> str:
    lines = [f"{left.view.path} ({'no host to be seen' if left.is_orphan else 'its host does not run'}):"]
    for entry in left.entries:
        lines.append(f"  {entry.kind} {entry.name}, {entry.state}, {duration(entry.age_s)} old, of {entry.image}")
    if spare := left.sandboxes - {entry.sandbox for entry in left.entries}:
        lines.append(f"  {len(spare)} directories without a container")
    return "\n".join(lines)


def _as_data(left: _Left) -> dict[str, Any]:
    return {
        "state_dir": str(left.view.path),
        "server": left.server_id,
        "containers": [entry.name for entry in left.entries],
        "directories": sorted(left.sandboxes),
    }
