"""The command line. ``ors-host --image X`` is ``ors-host serve --image X``; the other commands are in ``commands/``."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import click
import structlog

from host import __version__, event_loop, logs
from host.commands.build import build_command
from host.commands.config import config_command
from host.commands.dev import dev_command
from host.commands.doctor import doctor_command
from host.commands.init import init_command
from host.commands.inspect import inspect_command
from host.commands.kill import kill_command
from host.commands.logs import logs_command
from host.commands.nodes import nodes_command
from host.commands.play import play_command
from host.commands.prune import prune_command
from host.commands.ps import ps_command
from host.commands.test import test_command
from host.config import CONFIG_VARIABLE, DEFAULT, Config, unknown_variables, variable
from host.errors import StartupError
from host.options import SettingsCommand, config_of, settings_options
from host.priority import go_before_containers
from host.serve import serve

_THREADS_END_S = 1.0

_PARTS = {
    "Serving": ("serve", "config", "doctor"),
    "Writing environments": ("init", "dev", "build", "test", "play"),
    "Looking after a host": ("ps", "logs", "inspect", "kill", "prune", "nodes"),
}
_HELP = ("--help", "-h", "--version")


class _Commands(click.Group):
    """Commands in parts. The command may be left out: what begins with a flag is the arguments of ``serve``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        serves = args[0].startswith("-") and args[0] not in _HELP if args else _is_set_up()
        return super().parse_args(ctx, ["serve", *args] if serves else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            raise click.UsageError(f"{exc.message} To serve an image: ors-host --image {args[0]}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _PARTS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=100)) for name in names])


def _is_set_up() -> bool:
    """True if images may be named elsewhere than on the command line, so that a bare ``ors-host`` means to serve them."""
    return variable("image") in os.environ or CONFIG_VARIABLE in os.environ


_EPILOG = """\b
Exit codes: 0 done; 1 it failed, or something is wrong (doctor, test); 2 the command line or a setting is wrong.
Completion, e.g. for bash, in ~/.bashrc: eval "$(_ORS_HOST_COMPLETE=bash_source ors-host)"
"""


@click.group(
    cls=_Commands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="ors-host")
def main() -> None:
    """Serve Open Reward Standard environments, one Docker container per session.

    \b
    ors-host init my_env && ors-host build my_env -t my-env && ors-host test my-env
    ors-host --image my-env
    """


@main.command("serve", cls=SettingsCommand, short_help="Serve images' environments until told to stop.")
@settings_options
def serve_command(config_file: Path | None, **flags: Any) -> None:
    """Serve the environments of one or more images until told to stop (SIGTERM or Ctrl-C)."""
    config = config_of(config_file, flags)
    settings = config.settings
    if not settings.image:
        raise click.UsageError("nothing to serve: give at least one --image")
    logs.configure(format=settings.log_format, level=settings.log_level)
    _tell_of(config)
    others = threading.enumerate()
    try:
        go_before_containers()
        if settings.engine == "ray":
            _serve_cluster(config)
        else:
            event_loop.run(serve, settings)
    except StartupError as exc:
        sys.exit(logs.printable(f"ors-host: {exc}"))
    _leave_threads(others)


def _serve_cluster(config: Config) -> None:
    """Serve on a Ray cluster. Raises StartupError, also if Ray isn't installed."""
    from host.cluster.front import serve_cluster  # imports Ray, which few need

    settings = config.settings
    if config.origins["on_exit"] == DEFAULT:
        settings = settings.model_copy(update={"on_exit": "keep"})  # another front may be there, and nodes go on
    event_loop.run(serve_cluster, settings)


def _tell_of(config: Config) -> None:
    log = structlog.get_logger()
    if config.file is not None:
        log.info("config", file=str(config.file))
    if config.passed_over is not None:
        log.info("config_not_read", file=str(config.passed_over), help="--config names the file to read")
    if unknown := unknown_variables():
        log.warning("unknown_variables", names=unknown, help="ors-host serve --help lists those there are")


def _leave_threads(others: Collection[threading.Thread]) -> None:
    """End the process now if threads of the server don't end: calls that an engine never answered would hold it up."""
    deadline = time.monotonic() + _THREADS_END_S
    for thread in threading.enumerate():
        if thread not in others and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)


for command in (
    build_command,
    config_command,
    dev_command,
    doctor_command,
    init_command,
    inspect_command,
    kill_command,
    logs_command,
    nodes_command,
    play_command,
    prune_command,
    ps_command,
    test_command,
):
    main.add_command(command)

if __name__ == "__main__":
    main()
