"""``ors-host build``: an image from a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from host import logs
from host.build import BuildError, build_environment, dockerfile_of
from host.options import config_of, config_option


@click.command("build", short_help="Build an environment image and prove that it answers.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@config_option
@click.option("-t", "--tag", metavar="TAG", help="Name of the image, e.g. my-env:latest.")
@click.option("--data", metavar="DIR", help="Folder to read at /orwd_data while it proves that it answers.")
@click.option("--ignore-dockerfile", is_flag=True, help="Generate a Dockerfile although the folder has its own.")
@click.option("--print-dockerfile", is_flag=True, help="Show the Dockerfile that would be used, and stop.")
def build_command(
    directory: Path,
    config_file: Path | None,
    tag: str | None,
    data: str | None,
    ignore_dockerfile: bool,
    print_dockerfile: bool,
) -> None:
    """Build an environment image from DIRECTORY and prove that it answers.

    DIRECTORY holds a Dockerfile, or just env.py or server.py (with requirements.txt beside it if it needs packages).
    """
    try:
        if print_dockerfile:
            click.echo(dockerfile_of(directory, ignore_dockerfile=ignore_dockerfile), nl=False)
            return
        if tag is None:
            name = directory.absolute().name.lower().replace("_", "-") or "my-env"
            raise click.UsageError(f"the image needs a name: ors-host build {directory} -t {name}:latest")
        settings = config_of(config_file, {}).settings
        build_environment(directory, tag, data=data, ignore_dockerfile=ignore_dockerfile, settings=settings)
    except BuildError as exc:
        sys.exit(logs.printable(f"ors-host: {exc}"))
