"""``ors-host nodes``: the nodes of a Ray cluster that take sessions, and how they are; ``--stop`` ends their agents."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from host import logs
from host.config import variable
from host.errors import StartupError
from host.logs import printable
from host.options import Command, config_of, config_option, json_option

if TYPE_CHECKING:
    from host.cluster.overview import NodeLine

_NODE_CHARS = 8
_PIPED_WIDTH = 400


@click.command("nodes", cls=Command, short_help="List the nodes of a Ray cluster that take sessions.")
@click.option(
    "--ray-address",
    metavar="HOST:PORT",
    help=f"The cluster that is meant [env: {variable('ray_address')}; default: auto].",
)
@config_option
@click.option(
    "--stop", is_flag=True, help="End the nodes' agents and hosts, in order. Sessions stay for the next ones."
)
@click.option("--remove", is_flag=True, help="With --stop: end all sessions first.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask before ending sessions.")
@json_option
def nodes_command(
    ray_address: str | None, config_file: Path | None, stop: bool, remove: bool, yes: bool, as_json: bool
) -> None:
    """List the nodes of a Ray cluster that take sessions (resource ors_sandbox): whether they can be used, and why not.

    With --stop, end their agents: a node's host goes, its containers stay, and the next front's agents go on with them.
    """
    if remove and not stop:
        raise click.UsageError("--remove goes with --stop")
    settings = config_of(config_file, {"ray_address": ray_address}).settings
    logs.configure(format=settings.log_format, level="warning")
    if remove and not yes:
        click.confirm("End all sessions of the cluster?", abort=True, err=True)
    with redirect_stdout(sys.stderr):  # where Ray prints what it finds worth telling whoever is connected
        lines = anyio.run(_run, settings.ray_address, stop, remove)
    if as_json:
        click.echo(json.dumps([line.as_data() for line in lines], indent=2))
    else:
        _print(lines)


async def _run(address: str, stop: bool, remove: bool) -> Sequence[NodeLine]:
    from host.cluster.front import stop_agents  # imports Ray, which few need
    from host.cluster.names import ClusterAway
    from host.cluster.overview import look_at_nodes
    from host.cluster.ray_cluster import RayCluster

    try:
        async with RayCluster.open(address) as cluster:
            if stop:
                click.echo(f"{await stop_agents(cluster, remove=remove)} agents ended", err=True)
            return await look_at_nodes(cluster)
    except ClusterAway as exc:
        raise StartupError(f"Ray's head doesn't answer: {exc}") from exc


def _print(lines: Sequence[NodeLine]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("node", "address", "state", "sessions", "capacity", "images", "words"):
        table.add_column(
            column, no_wrap=column != "words", justify="right" if column in ("sessions", "capacity") else "left"
        )
    for line in lines:
        cells = [
            line.node[:_NODE_CHARS],
            line.address,
            line.state,
            str(line.sessions),
            str(line.capacity),
            " ".join(line.images),
            line.words,
        ]
        table.add_row(*(Text(printable(cell)) for cell in cells), style="" if line.state == "ready" else "dim")
    Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)
