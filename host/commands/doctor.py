"""``ors-host doctor``: whether this machine is fit for a host with these settings, and what to do where it isn't."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from host.diagnosis import Finding, Level, diagnose
from host.logs import printable
from host.machine import Machine
from host.options import SettingsCommand, config_of, json_option, settings_options

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_WIDTH = 18


@click.command(
    "doctor", cls=SettingsCommand, short_help="What on this machine is fine for a host, what isn't, and what to do."
)
@settings_options
@json_option
def doctor_command(as_json: bool, config_file: Path | None, **flags: Any) -> None:
    """Look at this machine, as it is for `ors-host serve` with the same flags: what is fine, what isn't, what to do.

    It changes nothing. Exit code 1 if something keeps a host from working; warnings don't.
    """
    settings = config_of(config_file, flags).settings
    findings = diagnose(Machine.look(settings), settings)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for finding in findings:
            words = (f"{finding.level:<8} ", _STYLES[finding.level]), f"{finding.check:<{_WIDTH}} "
            console.print(Text.assemble(*words, printable(finding.found)))
            if finding.advice:
                console.print(Text(f"{'':<9}{'':<{_WIDTH}} → {printable(finding.advice)}"))
        console.print(", ".join(_count(findings, level) for level in ("problem", "warning")))
    if any(finding.level == "problem" for finding in findings):
        sys.exit(1)


def _count(findings: Sequence[Finding], level: Level) -> str:
    number = sum(finding.level == level for finding in findings)
    return f"{number or 'no'} {level}{'' if number == 1 else 's'}"
