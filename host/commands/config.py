"""``ors-host config show``: the settings in effect, and where each comes from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from host.config import DEFAULT, Config, shown, unknown_variables
from host.options import SettingsCommand, config_of, json_option, settings_options
from host.settings import SECRET

_PIPED_WIDTH = 400


@click.group("config")
def config_command() -> None:
    """Settings: what is in effect, and why."""


@config_command.command("show", cls=SettingsCommand)
@settings_options
@json_option
def show_command(as_json: bool, config_file: Path | None, **flags: Any) -> None:
    """Show the settings as `ors-host serve` would have them with the same flags, and where each comes from.

    Keys are not shown, only that there is one. Secrets' files are named, never read.
    """
    config = config_of(config_file, flags)
    if as_json:
        click.echo(json.dumps(_as_json(config), indent=2))
    else:
        _print(config, Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH))


def _value(config: Config, name: str) -> Any:
    value = getattr(config.settings, name)
    return "(hidden)" if name in SECRET and value is not None else shown(value)


def _as_json(config: Config) -> dict[str, Any]:
    return {
        "file": None if config.file is None else str(config.file),
        "settings": {name: {"value": _value(config, name), "from": origin} for name, origin in config.origins.items()},
        "image": {
            tag: {
                name: {key: shown(item) for key, item in value.items()} if isinstance(value, dict) else shown(value)
                for name, value in section
                if value is not None and value != {}
            }
            for tag, section in config.settings.images.items()
        },
        "unknown_variables": unknown_variables(),
    }


def _print(config: Config, console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    data = _as_json(config)
    for name, setting in data["settings"].items():
        style = "dim" if setting["from"] == DEFAULT else ""
        table.add_row(name, Text(_words(setting["value"])), Text(setting["from"]), style=style)
    for tag, section in data["image"].items():
        for name, value in section.items():
            table.add_row(Text(f'[image."{tag}"] {name}'), Text(_words(value)), Text(str(config.file)))
    console.print(table)
    console.print(Text(f"file: {config.file or 'none'}", style="dim"))
    if config.passed_over is not None:
        console.print(Text(f"{config.passed_over} is not read unasked: --config {config.passed_over.name}"))
    for name in data["unknown_variables"]:
        console.print(Text(f"{name} is set, and is no setting", style="yellow"))


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={text}" for name, text in value.items())
    return "" if value is None else str(value)
