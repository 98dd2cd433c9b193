"""Flags made from the settings, in the parts of the help; and the settings that come of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import ByteSize

from host import logs
from host.config import CONFIG_VARIABLE, Config, ConfigError, flag, load, variable
from host.errors import StartupError
from host.isolation import Profile
from host.kinds import Kind
from host.settings import OPTIONS, SECTIONS

REPEATABLE = ("image", "data", "allow_host")

_METAVARS = {
    "image": "TAG",
    "data": "[TAG=]DIR",
    "state_dir": "DIR",
    "engine": "docker|ray",
    "ray_address": "HOST:PORT",
    "node_port": "PORT",
    "api_key": "KEY",
    "api_key_file": "FILE",
    "agent_key": "KEY",
    "agent_key_file": "FILE",
    "host": "ADDRESS",
    "isolation": "|".join(Profile),
    "kind": "|".join(Kind),
    "network": "none|internet",
    "allow_host": "NAME",
    "on_exit": "remove|keep",
    "log_keep": "on|off",
    "log_format": "human|json",
    "log_level": "debug|info|warning|error",
}


class Command(click.Command):
    """A command that says in one sentence why it can't do what it is asked to, with exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StartupError as exc:
            sys.exit(logs.printable(f"ors-host: {exc}"))


class SettingsCommand(Command):
    """A command with a flag for each setting, listed by what they are about."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parts: dict[str, list[tuple[str, str]]] = {"Options": []}
        settings: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            name = parameter.name or ""
            if name in SECTIONS:
                settings = parts.setdefault(SECTIONS[name], [])
            (settings if name in OPTIONS else parts["Options"]).append(record)
        for title, records in parts.items():
            with formatter.section(title):
                formatter.write_dl(records)


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a flag for each setting, and ``--config``; ``config_of`` reads them."""
    for name, field in reversed(OPTIONS.items()):
        default = field.get_default(call_default_factory=True)
        shown = default.human_readable() if isinstance(default, ByteSize) else default
        help_text = f"{field.description} [env: {variable(name)}]"
        if shown is not None and name not in REPEATABLE:
            help_text = f"{help_text[:-1]}; default: {shown}]"
        if field.annotation is bool:
            option = click.option(flag(name), name, is_flag=True, default=None, help=help_text)
        else:
            option = click.option(flag(name), name, multiple=name in REPEATABLE, metavar=_metavar(name), help=help_text)
        command = option(command)
    return config_option(command)


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--config``."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"Settings in TOML [env: {CONFIG_VARIABLE}; default: ors-host.toml in ~/.config/ors-host or /etc/ors-host].",
    )(command)


def state_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--state-dir`` and ``--config``: which host it is about."""
    described = f"State directory of the host that is meant [env: {variable('state_dir')}]."
    return config_option(click.option("--state-dir", metavar="DIR", help=described)(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def config_of(config_file: Path | None, flags: Mapping[str, Any]) -> Config:
    """Return the settings in effect under these flags, of which those not given are None or empty.

    Raises:
        click.UsageError: one is unknown or wrong; the words say where it stands.
    """
    try:
        return load({name: value for name, value in flags.items() if value not in (None, ())}, config_file)
    except ConfigError as exc:
        raise click.UsageError(str(exc)) from None


def _metavar(name: str) -> str:
    if name.endswith("_s"):
        return "SECONDS"
    return _METAVARS.get(name, "SIZE" if OPTIONS[name].annotation is ByteSize else "N")
