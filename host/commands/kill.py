"""``ors-host kill``: end sessions. By their host if it lives, as it tells the clients why; else by removing the containers."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import click

from host.errors import StartupError
from host.inventory import Entry, Inventory, find
from host.logs import printable
from host.options import Command, config_of, json_option, state_options
from host.state import StateDir
from host.state_view import Life, StateView

_TIMEOUT_S = 120
"""For a session to end: its teardown, and the removal of its container."""

_AT_ONCE = 8


@click.command("kill", cls=Command, short_help="End a session, or all.")
@click.argument("session", required=False)
@state_options
@click.option("--all", "all_sessions", is_flag=True, help="All sessions of the host.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask before ending all.")
@json_option
def kill_command(
    session: str | None, state_dir: str | None, config_file: Path | None, all_sessions: bool, yes: bool, as_json: bool
) -> None:
    """End SESSION (an id, or its beginning): its teardown runs, its clients are told, its container is removed.

    If the host doesn't run, the container is removed. Exit code 1 if one could not be ended.
    """
    if (session is None) != all_sessions:
        raise click.UsageError("give a session's id, or --all")
    view = StateView.of(config_of(config_file, {"state_dir": state_dir}).settings.state_dir)
    if not view.server_id:
        raise StartupError(f"no host is known in {view.path}: {view.problem}; --state-dir names another")
    with Inventory.open() as inventory:
        entries = inventory.entries(view.server_id)
        chosen = [find(entries, session)] if session else [entry for entry in entries if entry.session is not None]
        if session and chosen[0].session is None:
            raise StartupError(f"{chosen[0].name} is no session's, but the host's own ({chosen[0].kind})")
        if all_sessions and chosen and not yes:
            click.confirm(f"End {len(chosen)} sessions?", abort=True, err=True)
        problems = _end_all(chosen, view, inventory)
    ended = [entry.session for entry in chosen if entry.session not in problems]
    if as_json:
        click.echo(json.dumps({"ended": ended, "failed": problems}, indent=2))
    else:
        for sid in ended:
            click.echo(f"ended {printable(sid or '')}")
        for sid, problem in problems.items():
            click.echo(printable(f"ors-host: {sid} was not ended: {problem}"), err=True)
    if problems:
        sys.exit(1)


def _end_all(entries: Sequence[Entry], view: StateView, inventory: Inventory) -> dict[str, str]:
    """End sessions; return those that were not, with why."""
    if view.life is not Life.ALIVE:
        with closing(StateDir.open(view.path)) as state:  # held, so that no host comes and takes them over meanwhile
            for entry in entries:
                inventory.remove(entry)
                state.forget(entry.sandbox)
        return {}
    try:
        address = view.address()
    except OSError as exc:
        raise StartupError(f"{view.path} can't be read: {exc.strerror}") from None
    if address is None:
        raise StartupError("the host is starting, or stopping; try again when it serves")
    sids = [entry.session or "" for entry in entries]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        problems = threads.map(lambda sid: _delete(*address, sid), sids)
        return {sid: problem for sid, problem in zip(sids, problems, strict=True) if problem is not None}


def _delete(url: str, key: str, sid: str) -> str | None:
    """Have the host end a session; return what it says if it doesn't."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT_S)
    with closing(connection):
        try:
            connection.request(
                "POST", "/delete", headers={"X-Session-ID": sid, "X-API-Key": key, "Content-Length": "0"}
            )
            answer = connection.getresponse()
            body = answer.read()
        except OSError as exc:
            return f"the host doesn't answer at {url}: {exc}"
    return None if answer.status == 200 else f"the host answers {answer.status}: {body.decode(errors='replace')[:500]}"
