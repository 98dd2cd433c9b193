"""``python -m bench``: measure, print the table, write the results file. Exit code 1 if a row could not be measured."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from bench import images, report
from bench.context import Bench, Group
from bench.floor import LABEL
from bench.machine import Machine
from bench.ours import remove_all
from bench.plan import FULL, QUICK
from bench.rows import GROUPS
from bench.table import ON_REQUEST, ROWS, Row
from host import docker_client
from host.build import BuildError
from host.progress import Steps

RESULTS = Path(__file__).parent / "results" / "latest.json"


@click.command()
@click.option("--quick", is_flag=True, help="Small numbers, in under three minutes: shows that every row runs.")
@click.option("--only", default="", metavar="ROW,…", help="Measure just these rows.")
@click.option("--list", "list_rows", is_flag=True, help="Show the rows' names and end.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default=RESULTS, help="The results file.")
def main(quick: bool, only: str, list_rows: bool, output: Path) -> None:
    """Measure ors-host against ors-sdk's own server and against the engine itself, side by side on this machine."""
    if list_rows:
        for spec in ROWS:
            click.echo(f"{spec.name:12} {spec.title}" + (f" ({spec.target})" if spec.target else ""))
        return
    chosen = _chosen(only)
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 140)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))  # both end it in the same order
    try:
        with contextlib.closing(docker_client.connect()) as engine:
            results = _run(engine, console, quick, chosen, output)
    except (docker_client.EngineUnavailable, BuildError) as exc:
        sys.exit(f"bench: {exc}")
    except KeyboardInterrupt:
        sys.exit("bench: stopped; nothing is left running")
    sys.exit(0 if all(not row.error and not row.failed for row in results) else 1)


def _chosen(only: str) -> set[str]:
    names = {spec.name for spec in ROWS}
    chosen = set(filter(None, only.replace(",", " ").split())) or names - {spec.name for spec in ON_REQUEST}
    if unknown := chosen - names:
        raise click.UsageError(f"no such row: {', '.join(sorted(unknown))}; --list shows them")
    return chosen


def _run(
    engine: docker_client.APIClient, console: Console, quick: bool, chosen: Collection[str], output: Path
) -> list[Row]:
    groups = [group for group in GROUPS if any(spec.name in chosen for spec in group.specs)]
    images.build(engine, {group.image for group in groups}, Steps(console))
    machine = Machine.look(engine)
    if machine.is_busy:
        load = " ".join(f"{each:.2f}" for each in machine.load_before)
        console.print(f"[yellow]the machine is busy (load {load}): figures are of little worth[/]")
    plan = QUICK if quick else FULL
    try:
        rows = [row for group in groups for row in _run_group(group, engine, console, quick) if row.spec.name in chosen]
    finally:
        remove_all(engine, f"{LABEL}={os.getpid()}")
    rows.sort(key=lambda row: ROWS.index(row.spec))
    report.write(output, report.as_json(machine, plan.name, rows))
    output_console = Console(width=None if sys.stdout.isatty() else 160)
    for table in (report.terminal_table(rows), report.scale_table(rows)):
        if table is not None:
            output_console.print(table)
    console.print(f"[dim]{machine.words()}; all of it: {output}[/]")
    return rows


def _run_group(group: Group, engine: docker_client.APIClient, console: Console, quick: bool) -> list[Row]:
    title = ", ".join(spec.name for spec in group.specs)
    with _progress(console, title) as say:
        bench = Bench(QUICK if quick else FULL, engine, say)
        try:
            rows = list(asyncio.run(group.run(bench)))
        except Exception as exc:  # one that can't be measured doesn't keep the others from it
            error = _explain(exc)
            console.print(f"{title}: {error}", markup=False)
            return [Row(spec, "", None, requests=0, error=error.splitlines()[0]) for spec in group.specs]
    for row in rows:
        console.print(f"{row.spec.name}: {row.measured or row.note} ({row.verdict})", markup=False, soft_wrap=True)
    return rows


def _explain(exc: BaseException) -> str:
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    root = str(Path(__file__).parent.parent)  # which says something only here
    return f"{type(exc).__name__}: {exc}".replace(root, ".")


@contextlib.contextmanager
def _progress(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Show what is going on: a line that changes on a terminal, one line a group elsewhere. Draws only when told to."""
    if not console.is_terminal:
        console.print(f"{title} …")
        yield lambda _: None
        return
    with Live(Text(title), console=console, auto_refresh=False, transient=True) as live:
        yield lambda text: live.update(Text(f"{title}: {text}"), refresh=True)


if __name__ == "__main__":
    main()
