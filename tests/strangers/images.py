"""The images that strangers bring."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from host import docker_client
from host.base_image import inspect_image, starting_image
from host.build import build_environment
from host.build_context import Folders, open_context
from host.image_builder import run_build
from host.progress import Steps
from tests.conformance.servers import IMAGES

HERE = Path(__file__).parent

NODE = "ors-host-test-node:latest"
HOSTILE = "ors-host-test-stranger:latest"

_SDK_SERVER = """
ARG BASE
FROM ${BASE}
COPY --from=%s /usr/local/ /usr/local/
COPY server/ /srv/
WORKDIR /srv
EXPOSE 8000
CMD ["python", "server.py"]
"""
"""As an author would write it, but for where the packages are from: the image of conformance's that has them already."""


def build_hostile() -> str:
    """Build the server that misbehaves, and return its name."""
    with closing(docker_client.connect()) as client:
        folder = HERE / "hostile"
        _build(client, {"": (folder, ["**/__pycache__"])}, (folder / "Dockerfile").read_text(), HOSTILE)
    return HOSTILE


def build_sdk_servers(folders: Mapping[str, Path]) -> dict[str, str]:
    """Build an image of each of conformance's folders that runs its ``server.py`` as it is; return their names."""
    tags = {name: f"ors-host-test-server:{name}" for name in folders}
    with closing(docker_client.connect()) as client:
        for name, folder in folders.items():
            source = "openreward" if name == "tutor" else name
            if inspect_image(client, IMAGES[source]) is None:
                build_environment(folders[source], IMAGES[source])
            dockerfile = _SDK_SERVER % IMAGES[source]
            _build(client, {"server": (folder, ["Dockerfile", "**/__pycache__"])}, dockerfile, tags[name])
    return tags


def _build(client: docker_client.APIClient, folders: Folders, dockerfile: str, tag: str) -> None:
    arguments = {"BASE": starting_image(client, Steps())}
    with open_context(folders, {"Dockerfile": dockerfile}) as context:
        run_build(client, context, tag=tag, detail=lambda _: None, buildargs=arguments)
