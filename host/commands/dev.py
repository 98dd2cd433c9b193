"""``ors-host dev``: a class served from its folder, without an image and without isolation, for whoever writes it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from host import event_loop, logs
from host.errors import StartupError
from host.options import Command
from host.process_engine import ProcessEngine
from host.serve import serve
from host.settings import Settings

_TAG = "dev"
_WARNING = (
    "NOTHING IS ISOLATED: the environment and the agent's commands run as you, on this machine, with your files and your "
    "network. This is for writing environments. Serve them from an image: ors-host build, ors-host --image."
)


@click.command("dev", cls=Command, short_help="Serve a class from its folder, without an image. NOTHING IS ISOLATED.")
@click.argument("environments", nargs=-1, required=True, metavar="MODULE:CLASS...")
@click.option(
    "-C",
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="The folder that the module is in.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port; 0 takes a free one."
)
def dev_command(environments: tuple[str, ...], directory: Path, port: int) -> None:
    """Serve MODULE:CLASS (or MODULE, for all in it) without an image, from a process, on 127.0.0.1. NOTHING IS ISOLATED.

    A changed file counts from the next session on, some seconds after it was saved; sessions that run go on with the old one.
    What the code prints is shown here. Each session has an empty work directory; no container's limits hold.
    """
    if not directory.is_dir():
        raise StartupError(f"{directory} is not a directory")
    click.secho(_WARNING, err=True, bold=True, fg="black", bg="yellow")
    logs.configure(format="human", level="info")
    with tempfile.TemporaryDirectory(prefix="ors-", dir="/tmp") as state_dir:  # short, for the sockets' paths
        settings = Settings(
            **{name: field.get_default(call_default_factory=True) for name, field in Settings.model_fields.items()}
            | {"image": (_TAG,), "port": port, "state_dir": Path(state_dir), "warm": 0}
        )
        try:
            event_loop.run(
                lambda: serve(settings, open_engine=lambda: ProcessEngine.over(directory.absolute(), environments))
            )
        except OSError as exc:
            sys.exit(logs.printable(f"ors-host: {exc}"))
