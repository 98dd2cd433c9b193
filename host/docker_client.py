"""The one module that imports ``docker`` (docker-py): connecting, and the names that the rest of the host needs of it."""

from __future__ import annotations

import contextlib
import os

import requests.exceptions
from docker import APIClient
from docker.errors import APIError, BuildError, DockerException, ImageNotFound, NotFound
from docker.types import LogConfig, Mount, Ulimit
from docker.utils import exclude_paths, kwargs_from_env

from host.errors import StartupError
from host.placement import Placement, own_container_ids

__all__ = [
    "ERRORS",
    "APIClient",
    "APIError",
    "BuildError",
    "EngineUnavailable",
    "ImageNotFound",
    "LogConfig",
    "Mount",
    "NotFound",
    "Ulimit",
    "connect",
    "exclude_paths",
    "explain",
    "placement_of",
]

ERRORS = (DockerException, requests.exceptions.RequestException)
"""Everything docker-py raises when the engine refuses, breaks off or doesn't answer."""

REQUEST_TIMEOUT_S = 60
"""For one answer of the engine; a loaded engine takes seconds, a hung one should not hold a thread for ever."""


class EngineUnavailable(StartupError):
    """No Docker engine answers."""


def connect(*, timeout_s: int = REQUEST_TIMEOUT_S, max_pool_size: int = 10) -> APIClient:
    """Return a client of the engine at ``DOCKER_HOST`` (else the default socket) that has answered.

    Raises:
        EngineUnavailable: none answers; the sentence says where it was looked for and what to do.
    """
    where = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        return APIClient(version="auto", timeout=timeout_s, max_pool_size=max_pool_size, **kwargs_from_env())
    except ERRORS as exc:
        raise EngineUnavailable(
            f"no Docker engine answers at {where} ({explain(exc)}); start Docker, or set DOCKER_HOST to where it listens"
        ) from exc


def placement_of(client: APIClient) -> Placement:
    """Return where this process's paths are on the engine's machine, by asking whether it is in a container of the engine's."""
    for own_id in own_container_ids():
        with contextlib.suppress(NotFound):
            return Placement.in_container(client.inspect_container(own_id))
    return Placement()


def explain(exc: Exception) -> str:
    """Return in one line what the engine said, without docker-py's wrapping of it."""
    if isinstance(exc, APIError) and exc.explanation:
        return str(exc.explanation)
    text = str(exc)
    for words in ("No such file or directory", "Permission denied", "Connection refused", "Read timed out"):
        if words in text:
            return words
    return text.splitlines()[0] if text else type(exc).__name__
