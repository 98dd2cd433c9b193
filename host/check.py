"""The proof that an image answers: it is started as the host would start it and asked what it has."""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import anyio

from host.catalog import Catalog, Environment
from host.docker_engine import DockerEngine
from host.errors import HostError
from host.sandbox_host import SandboxHost
from host.settings import Settings
from host.state import StateDir

_TASK_TIMEOUT_S = 15.0
"""For one task of a split, which is only warned of: a build should not wait as long as a server may."""


@dataclass(frozen=True)
class EnvironmentReport:
    """One environment found in an image."""

    name: str
    tools: tuple[str, ...]
    splits: tuple[str, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """What an image was found to serve."""

    environments: tuple[EnvironmentReport, ...]


async def check_image(tag: str, data: str | None = None, settings: Settings | None = None) -> CheckReport:
    """Start a container from the image, as a host with these settings would, with ``data``, and return what is in it.

    Raises:
        StartupError: the image doesn't answer as it must; the text has the end of the container's output (a traceback, if
            the author's code raised).
    """
    settings = (settings or Settings()).model_copy(
        update={"image": (tag,), "data": () if data is None else (f"{tag}={data}",)}
    )
    with (
        tempfile.TemporaryDirectory(prefix="ors-", dir="/tmp") as directory,  # short, for the socket's path
        closing(StateDir.open(Path(directory))) as state,
    ):
        async with DockerEngine.open() as engine:
            with closing(SandboxHost(engine, state, settings)) as host:
                async with Catalog.open(host, [tag]) as catalog:
                    return CheckReport(tuple([await _report(catalog.get(name)) for name in catalog.names]))


async def _report(environment: Environment) -> EnvironmentReport:
    problems = []
    for split in environment.splits:
        try:
            with anyio.fail_after(_TASK_TIMEOUT_S):
                if await environment.num_tasks(split.name):
                    await environment.task(split.name, 0)
        except TimeoutError:
            problems.append(f"split {split.name!r} gives no task within {_TASK_TIMEOUT_S:g} s")
        except HostError as exc:  # it may need data that only the machine it is served on has
            problems.append(f"split {split.name!r} gives no task: {exc}")
    return EnvironmentReport(
        environment.name,
        tuple(tool.name for tool in environment.tools.tools),
        tuple(split.name for split in environment.splits),
        tuple(problems),
    )
