"""``ors-host init``: the folder of a new environment, from a template."""

from __future__ import annotations

import json
import keyword
import re
from importlib.resources import files
from pathlib import Path

import click

from host.errors import StartupError
from host.options import Command, json_option

_TEMPLATES = {
    "bash": "tasks done with a shell, graded by looking at the files",
    "code": "a function to write, graded by hidden tests",
    "plain": "a question to answer, nothing to run",
}
_CLASS, _TAG = "MyEnv", "my-env"
"""What the templates call the environment and its image."""


@click.command("init", cls=Command, short_help="Make a new environment that works as it is.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "-t",
    "--template",
    type=click.Choice(list(_TEMPLATES)),
    default="bash",
    show_default=True,
    help="; ".join(f"{name}: {words}" for name, words in _TEMPLATES.items()) + ".",
)
@json_option
def init_command(directory: Path, template: str, as_json: bool) -> None:
    """Make DIRECTORY with a new environment that works as it is: env.py, a test, episodes to play, a README.

    Nothing is overwritten.
    """
    tag = re.sub(r"[^a-z0-9]+", "-", directory.absolute().name.lower()).strip("-")
    name = "".join(word.capitalize() for word in tag.split("-"))
    if not name.isidentifier() or keyword.iskeyword(name):
        raise StartupError(f"{directory} gives no name to a class: let its last part begin with a letter")
    texts = {
        file.name: file.read_text(encoding="utf-8").replace(_CLASS, name).replace(_TAG, tag)
        for file in sorted((files("host") / "templates" / template).iterdir(), key=lambda file: file.name)
        if file.is_file()
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if there := [file for file in texts if (directory / file).exists()]:
            raise StartupError(f"{directory} has {', '.join(there)} already; nothing was written")
        for file, text in texts.items():
            with (directory / file).open("x", encoding="utf-8") as output:
                output.write(text)
    except OSError as exc:
        raise StartupError(f"{directory} can't be written: {exc.strerror}") from None
    if as_json:
        click.echo(json.dumps({"directory": str(directory), "class": name, "image": tag, "files": list(texts)}))
        return
    click.echo(f"made {directory}: {', '.join(texts)}")
    click.echo(f"next: ors-host build {directory} -t {tag} && ors-host test {tag}")
