"""``ors-host test``: an image played through the protocol on a host of its own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from host import event_loop, logs
from host.logs import printable
from host.options import Command, config_of, config_option, json_option
from host.private import private_host
from host.settings import Settings
from host.trial import Line, ScriptedEpisode, Trial, as_data, read_script

_STYLES = {"environment": "bold", "reward": "cyan", "check": "green", "note": "yellow", "failure": "bold red"}
_MARKS = {"check": "✓ ", "note": "! ", "failure": "✗ "}
_LABELS = {"task", "prompt", "tools", "call"}
_LABEL_WIDTH = 8
_SHOWN_CHARS = 1000


@click.command("test", cls=Command, short_help="Play an image through the protocol, and check its guarantees.")
@click.argument("image")
@config_option
@click.option("--data", metavar="DIR", help="Folder to read at /orwd_data.")
@click.option(
    "--script",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Episodes to play in place of made-up calls: a JSON array of {split, index, calls: [{tool, input}], reward}.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="For the calls that are made up.")
@json_option
def test_command(
    image: str, config_file: Path | None, data: str | None, script: Path | None, seed: int, as_json: bool
) -> None:
    """Play IMAGE's environments through the protocol, and check its guarantees on the way.

    The first task of each split is played with calls made up from the tools' schemas, or a script's episodes are, whose
    rewards must be as it says. Checked: results are there again by task_id and tools run once; unknown ids start nothing; an
    episode that is finished stays so; deleting is final, and leaves nothing. Exit code 1 if one doesn't hold.
    """
    settings = config_of(config_file, {"image": (image,), "data": () if data is None else (data,)}).settings
    episodes = None if script is None else read_script(script)
    logs.configure(format="human", level="error")
    lines: list[Line] = []
    console = Console(highlight=False)

    def tell(line: Line) -> None:
        lines.append(line)
        if not as_json:
            _print(console, line)

    started = time.monotonic()
    trial = event_loop.run(_run, settings, tell, seed, episodes)
    if as_json:
        click.echo(json.dumps({"failures": trial.failures, "transcript": [*map(as_data, lines)]}, indent=2))
    else:
        checks = sum(line.kind == "check" for line in lines)
        words = f"{trial.episodes} episodes, {checks} checks passed, {trial.failures} failed"
        style = "bold red" if trial.failures else "bold green"
        console.print(Text(f"{image}: {words} ({time.monotonic() - started:.1f} s)", style=style))
    if trial.failures:
        sys.exit(1)


async def _run(
    settings: Settings, tell: Callable[[Line], None], seed: int, episodes: Sequence[ScriptedEpisode] | None
) -> Trial:
    async with private_host(settings) as host:
        trial = Trial(host, tell, seed)
        await trial.run(episodes)
        return trial


def _print(console: Console, line: Line) -> None:
    text = printable(line.text if len(line.text) <= _SHOWN_CHARS else f"{line.text[:_SHOWN_CHARS]} …")
    if line.kind in _LABELS:
        first, *rest = text.splitlines() or [""]
        console.print(Text.assemble((f"  {line.kind:<{_LABEL_WIDTH}}", "dim"), first), soft_wrap=True)
        for more in rest:
            console.print(Text(" " * (_LABEL_WIDTH + 2) + more), soft_wrap=True)
    else:
        indent = "" if line.kind == "environment" else "  "
        console.print(Text(f"{indent}{_MARKS.get(line.kind, '')}{text}", style=_STYLES[line.kind]), soft_wrap=True)
