"""Images that are not on this node's engine are pulled, one after the other, before its host starts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import closing

import structlog

from host import docker_client
from host.errors import Reason, StartupError

log = structlog.get_logger()

_PROBE_S = 20
_SILENCE_S = 300
"""Of a pull; a large layer that is unpacked says nothing for a while."""


def get_images(tags: Sequence[str], tell: Callable[[str], None]) -> None:
    """Make sure that all images are on the engine; ``tell`` is told of the pulls' progress. Blocks.

    Raises:
        StartupError: no engine answers; or an image is not there and can't be pulled (``image_not_found: …``).
    """
    with closing(docker_client.connect(timeout_s=_SILENCE_S)) as client:
        for tag in tags:
            try:
                client.inspect_image(tag)  # type: ignore[no-untyped-call]
            except docker_client.NotFound:
                _pull(client, tag, tell)
            except docker_client.ERRORS as exc:
                raise StartupError(f"image {tag!r} can't be looked up: {docker_client.explain(exc)}") from exc


def _pull(client: docker_client.APIClient, tag: str, tell: Callable[[str], None]) -> None:
    tell(f"image {tag} is not on this node's engine: pulling it")
    log.info("image_pulled", image=tag, state="begun")
    layers: set[str] = set()
    complete = 0
    try:
        with (
            docker_client.connect(timeout_s=_PROBE_S) as probe,
            contextlib.suppress(docker_client.NotFound),  # engines that are not Docker's don't know the question
        ):
            probe.inspect_distribution(tag)  # type: ignore[no-untyped-call]
        repository, name = _reference(tag)
        for event in client.pull(repository, tag=name, stream=True, decode=True):
            if "error" in event:
                raise _not_found(tag, str(event["error"]))
            if event.get("status") == "Pulling fs layer":
                layers.add(str(event.get("id")))
            elif event.get("status") == "Pull complete":
                complete += 1
                tell(f"pulling image {tag}: {complete} of {len(layers)} layers are here")
    except docker_client.ERRORS as exc:
        raise _not_found(tag, docker_client.explain(exc)) from exc
    log.info("image_pulled", image=tag, state="done")


def _reference(tag: str) -> tuple[str, str | None]:
    """Return repository and tag; a digest stays with the repository."""
    head, colon, name = tag.rpartition(":")
    if "@" in tag:
        return tag, None
    return (tag, "latest") if not colon or "/" in name else (head, name)


def _not_found(tag: str, why: str) -> StartupError:
    return StartupError(
        f"{Reason.IMAGE_NOT_FOUND}: image {tag!r} is not on this node's engine and can't be pulled ({why}); build it there "
        f"(ors-host build DIR -t {tag}), or push it to a registry that the node reaches"
    )
