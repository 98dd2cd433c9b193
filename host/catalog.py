"""Which environments there are, and the questions about them that need no session.

Environment code never runs in the host, not even to list tools: each image has a *catalog container* that answers. An image
that is built anew under its tag is taken over as soon as its own catalog container answers; sessions that live go on as they
are, and one that can't be served is not taken over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup

from host.answers import as_json, as_value
from host.catalog_container import CatalogContainer
from host.engine import EngineError, Image, ImageMissing
from host.errors import EnvironmentFailed, InvalidRequest, QuestionLost, SandboxFailed, StartupError, UnknownEnvironment
from host.kinds import LABEL_RUNTIME, Kind, kind_of, port_of
from host.sandbox_host import SandboxHost
from sandbox_runtime.messages import ListToolsOutput, Method, Split

log = structlog.get_logger()
T = TypeVar("T")

_LOOK_S = 2.0
"""How often it is looked at whether an image was built anew."""

_AGAIN_S = 60.0
"""Until an image that could not be served is tried again: what was wrong may have been the engine."""


@dataclass(frozen=True)
class Environment:
    """One environment that is served. ``tools`` and ``splits`` are those of its image, and don't change."""

    name: str
    runtime_name: str
    tools: ListToolsOutput
    splits: tuple[Split, ...]
    _container: CatalogContainer

    @property
    def image(self) -> Image:
        """What its sessions' containers are made from."""
        return self._container.image

    async def tasks(self, split: str) -> bytes:
        """Return all tasks of a split, as a JSON array.

        Raises:
            InvalidRequest: no such split, or the environment can't list its tasks.
            EnvironmentFailed: the environment failed.
            SandboxFailed, QuestionLost: there is no container to ask, or it failed; asking again is right.
        """
        return await self._ask(as_json, Method.LIST_TASKS, {"split": self._checked(split)})

    async def num_tasks(self, split: str) -> int:
        """Return how many tasks a split has. Raises as ``tasks``."""
        return await self._ask(as_value, Method.NUM_TASKS, {"split": self._checked(split)})

    async def task(self, split: str, index: int) -> dict[str, Any]:
        """Return one task, a negative index counting from the end. Raises as ``tasks``."""
        return await self._ask(as_value, Method.GET_TASK, {"split": self._checked(split), "index": index})

    async def task_range(self, split: str, start: int | None, stop: int | None) -> bytes:
        """Return the tasks of a slice, as a JSON array. Raises as ``tasks``."""
        params = {"split": self._checked(split), "start": start, "stop": stop}
        return await self._ask(as_json, Method.GET_TASK_RANGE, params)

    def _checked(self, split: str) -> str:
        if not any(known.name == split for known in self.splits):
            raise InvalidRequest("Invalid split")
        return split

    async def _ask(self, read: Callable[[Method, Any], T], method: Method, params: Mapping[str, Any]) -> T:
        return await self._container.ask(self.runtime_name, read, method, params)


@dataclass(frozen=True)
class _Served:
    """One image's part of the catalog."""

    container: CatalogContainer
    environments: tuple[Environment, ...]


class Catalog:
    """All environments by name (lower case, found without regard to case); the first is the default."""

    def __init__(self, host: SandboxHost) -> None:
        self._host = host
        self._served: dict[str, _Served] = {}  # by tag, in the order given
        self._by_name: dict[str, Environment] = {}
        self._containers: list[CatalogContainer] = []
        self._put_off: dict[Image, float] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, host: SandboxHost, tags: Sequence[str]) -> AsyncIterator[Self]:
        """Start a catalog container for each image and ask it what it has.

        Raises:
            StartupError: an image is missing, isn't built from our base, doesn't start, has an environment without tools or
                splits, or two environments share a name; the sentence names the image.
        """
        catalog = cls(host)
        try:
            images = [await _look_up(host, tag) for tag in dict.fromkeys(tags)]
            for image in images:
                await catalog._serve(image)
            yield catalog
        finally:
            for container in tuple(catalog._containers):
                await container.aclose()

    @property
    def names(self) -> list[str]:
        """All names, the default's first."""
        return list(self._by_name)

    @property
    def images(self) -> list[Image]:
        """What sessions' containers are made from, the default's first."""
        return [served.container.image for served in self._served.values()]

    @property
    def default(self) -> Environment:
        """The first environment of the first image."""
        return next(iter(self._by_name.values()))

    def find(self, name: str) -> Environment | None:
        """Return the environment of that name, in any case, or None."""
        return self._by_name.get(name.lower())

    def get(self, name: str) -> Environment:
        """Return the environment of that name, in any case.

        Raises:
            UnknownEnvironment: there is none.
        """
        if environment := self.find(name):
            return environment
        raise UnknownEnvironment(name, self.names)

    async def follow(self) -> None:
        """Take over images that are built anew under their tags, until cancelled."""
        async with anyio.create_task_group() as draining:
            while True:
                await anyio.sleep(_LOOK_S)
                for tag in tuple(self._served):
                    await self._renew(tag, draining)

    async def _renew(self, tag: str, draining: TaskGroup) -> None:
        old = self._served[tag].container
        try:
            image = await self._host.engine.image(tag)
        except EngineError:  # without the tag, or the engine, what is served is served on
            return
        if image == old.image or anyio.current_time() < self._put_off.get(image, 0):
            return
        try:
            await self._serve(await _look_up(self._host, tag))
        except StartupError as exc:
            self._put_off = {image: anyio.current_time() + _AGAIN_S}
            log.warning("new_image_not_served", image=tag, error=str(exc), next="the one before is served on")
            return
        log.info("new_image_served", image=tag, environments=[each.name for each in self._served[tag].environments])
        draining.start_soon(self._drain, old)

    async def _serve(self, image: Image) -> None:
        """Start an image's catalog container, and serve what is in it, in place of what its tag had before.

        Raises:
            StartupError: as ``open``; nothing has changed then.
        """
        container = CatalogContainer(self._host, image)
        self._containers.append(container)
        try:
            served = {**self._served, image.tag: _Served(container, await _discover(container))}
            self._by_name = _by_name(served.values())
            self._served = served
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._drain(container)
            raise

    async def _drain(self, container: CatalogContainer) -> None:
        await container.drain()
        self._containers.remove(container)


def _by_name(served: Iterable[_Served]) -> dict[str, Environment]:
    by_name: dict[str, Environment] = {}
    for environment in (environment for each in served for environment in each.environments):
        if (other := by_name.setdefault(environment.name, environment)) is not environment:
            raise StartupError(
                f"two environments are named {environment.name!r}: "
                f"one in image {other.image.tag!r} and one in image {environment.image.tag!r}"
            )
    return by_name


async def _look_up(host: SandboxHost, tag: str) -> Image:
    try:
        image = await host.engine.image(tag)
    except ImageMissing as exc:
        raise StartupError(
            f"image {tag!r} is not on this engine; build it (ors-host build DIR -t {tag}) or pull it (docker pull {tag})"
        ) from exc
    except EngineError as exc:
        raise StartupError(f"image {tag!r} can't be looked up: {exc}") from exc
    rules = host.rules(tag)
    try:
        if kind_of(image.labels, rules.kind) is Kind.SERVER:
            port = port_of(image.labels, rules.server_port)
            await host.check_servers(tag)
            log.info("server_image", image=tag, port=port)
    except ValueError as exc:
        raise StartupError(f"image {tag!r}: {exc}") from None
    return image


async def _discover(container: CatalogContainer) -> tuple[Environment, ...]:
    tag = container.image.tag
    environments = []
    try:
        sandbox = await container.sandbox()
        if not sandbox.environments:
            raise StartupError(f"image {tag!r} has no environment")
        for runtime_name in sandbox.environments:
            tools = await container.ask(runtime_name, as_value, Method.LIST_TOOLS, {})
            splits = await container.ask(runtime_name, as_value, Method.LIST_SPLITS, {})
            for what, found in (("tool", tools.tools or tools.terminal_tool), ("split", splits)):
                if not found:
                    raise StartupError(
                        f"environment {runtime_name!r} in image {tag!r} has no {what}; it needs at least one"
                    )
            environments.append(Environment(runtime_name.lower(), runtime_name, tools, tuple(splits), container))
    except (SandboxFailed, QuestionLost, EnvironmentFailed, InvalidRequest) as exc:
        raise StartupError(f"image {tag!r} doesn't answer: {exc}{_stranger(container.image)}") from exc
    return tuple(environments)


def _stranger(image: Image) -> str:
    if LABEL_RUNTIME in image.labels:
        return ""
    return "\nThe image is not from the base of ors-host; it must run an ORS server of its own (--kind, --server-port)."
