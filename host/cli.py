"""The command line. ``ors-host --image X`` is ``ors-host serve --image X``; flags of ``serve`` are made from ``Settings``."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import anyio
import click
import structlog
from pydantic import ByteSize, ValidationError

from host import __version__, logs
from host.errors import StartupError
from host.isolation import Profile
from host.serve import serve
from host.settings import ENV_PREFIX, Settings

REPEATABLE = ("image", "data", "allow_host")
SECRET = ("api_key", "agent_key")
_THREADS_END_S = 1.0


class _DefaultToServe(click.Group):
    """A group whose command may be left out: whatever isn't a command's name begins the arguments of ``serve``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names_command = args and (args[0] in self.commands or args[0] in ("--help", "-h", "--version"))
        if not names_command and (args or f"{ENV_PREFIX}IMAGE" in os.environ):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DefaultToServe, context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120})
@click.version_option(__version__, prog_name="ors-host")
def main() -> None:
    """Serve Open Reward Standard environments, one Docker container per session.

    \b
    ors-host build examples/bash_env -t bash-env:latest
    ors-host --image bash-env:latest
    """


def flag(name: str) -> str:
    """Return a setting's flag: a unit in its name is left to the help text."""
    return "--" + name.removesuffix("_s").replace("_", "-")


def _settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, field in reversed(Settings.model_fields.items()):
        default = field.get_default(call_default_factory=True)
        shown = default.human_readable() if isinstance(default, ByteSize) else default
        help_text = f"{field.description} [env: {ENV_PREFIX}{name.upper()}]"
        if name not in REPEATABLE:
            help_text = f"{help_text[:-1]}; default: {shown}]"
        if field.annotation is bool:
            option = click.option(flag(name), name, is_flag=True, default=None, help=help_text)
        else:
            option = click.option(flag(name), name, multiple=name in REPEATABLE, metavar=_metavar(name), help=help_text)
        command = option(command)
    return command


def _metavar(name: str) -> str:
    if name.endswith("_s"):
        return "SECONDS"
    return {
        "image": "TAG",
        "data": "[TAG=]DIR",
        "state_dir": "DIR",
        "api_key": "KEY",
        "api_key_file": "FILE",
        "agent_key": "KEY",
        "agent_key_file": "FILE",
        "host": "ADDRESS",
        "isolation": "|".join(Profile),
        "network": "none|internet",
        "allow_host": "NAME",
        "on_exit": "remove|keep",
        "log_format": "human|json",
        "log_level": "debug|info|warning|error",
    }.get(name, "SIZE" if Settings.model_fields[name].annotation is ByteSize else "N")


@main.command("serve")
@_settings_options
def serve_command(**flags: Any) -> None:
    """Serve the environments of one or more images until told to stop (SIGTERM or Ctrl-C)."""
    settings = _settings({name: value for name, value in flags.items() if value not in (None, ())})
    if not settings.image:
        raise click.UsageError("nothing to serve: give at least one --image")
    logs.configure(format=settings.log_format, level=settings.log_level)
    if unknown := _unknown_variables():
        structlog.get_logger().warning(
            "unknown_variables", names=unknown, help="ors-host serve --help lists those there are"
        )
    others = threading.enumerate()
    try:
        anyio.run(serve, settings)
    except StartupError as exc:
        sys.exit(logs.printable(f"ors-host: {exc}"))
    _leave_threads(others)


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


def _unknown_variables() -> list[str]:
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    return sorted(name for name in os.environ if name.startswith(ENV_PREFIX) and name not in known)


def _settings(given: dict[str, Any]) -> Settings:
    try:
        return Settings(**given)
    except ValidationError as exc:
        lines = []
        for error in exc.errors(include_url=False, include_context=False):
            name = str(error["loc"][0])
            where = flag(name) if name in given else f"{ENV_PREFIX}{name.upper()}"
            got = "" if name in SECRET else f" (got {error['input']!r})"
            lines.append(f"{where}: {error['msg']}{got}")
        raise click.UsageError("; ".join(lines)) from None


@main.command("build")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("-t", "--tag", required=True, metavar="TAG", help="Name of the image, e.g. my-env:latest.")
@click.option("--data", metavar="DIR", help="Folder to read at /orwd_data while it proves that it answers.")
@click.option("--ignore-dockerfile", is_flag=True, help="Generate a Dockerfile although the folder has its own.")
@click.option("--print-dockerfile", is_flag=True, help="Show the Dockerfile that would be used, and stop.")
def build_command(directory: Path, tag: str, data: str | None, ignore_dockerfile: bool, print_dockerfile: bool) -> None:
    """Build an environment image from DIRECTORY and prove that it answers.

    DIRECTORY holds a Dockerfile, or just env.py or server.py (with requirements.txt beside it if it needs packages).
    """
    from host.build import BuildError, build_environment, dockerfile_of

    try:
        if print_dockerfile:
            click.echo(dockerfile_of(directory, ignore_dockerfile=ignore_dockerfile), nl=False)
        else:
            build_environment(directory, tag, data=data, ignore_dockerfile=ignore_dockerfile)
    except BuildError as exc:
        sys.exit(logs.printable(f"ors-host: {exc}"))


if __name__ == "__main__":
    main()
