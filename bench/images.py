"""The images of the benchmark's environment, in both spellings."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from host import docker_client
from host.base_image import inputs_digest, inspect_image
from host.build import build_environment, dockerfile_of
from host.progress import Steps

ENVIRONMENTS = Path(__file__).parent / "environments"
SDK_FOLDER = ENVIRONMENTS / "sdk"
SDK_IMAGE = "ors-host-bench:sdk"
NATIVE_IMAGE = "ors-host-bench:native"
SERVER_IMAGE = "ors-host-bench:server"
_FOLDERS = {
    SDK_IMAGE: (SDK_FOLDER,),
    NATIVE_IMAGE: (ENVIRONMENTS / "native",),
    SERVER_IMAGE: (ENVIRONMENTS / "server", SDK_FOLDER),
}
"""What is built, and what else is in it."""


def build(engine: docker_client.APIClient, names: Collection[str], steps: Steps) -> None:
    """Build the images of these names, unless they are there and of the same inputs.

    Raises:
        host.build.BuildError: one can't be built, or doesn't answer.
    """
    for name in sorted({*names, *([SDK_IMAGE] if SERVER_IMAGE in names else [])}):  # which has the other's packages
        mark = f"{name}-{_inputs(*_FOLDERS[name])}"
        built, marked = inspect_image(engine, name), inspect_image(engine, mark)
        if built is None or marked is None or built["Id"] != marked["Id"]:
            build_environment(_FOLDERS[name][0], name, steps=steps)
            repository, _, tag = mark.partition(":")
            engine.tag(name, repository, tag)


def _inputs(*folders: Path) -> str:
    digest = hashlib.sha256((inputs_digest() + dockerfile_of(folders[0])).encode())
    for file in sorted(file for folder in folders for file in folder.iterdir()):
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
