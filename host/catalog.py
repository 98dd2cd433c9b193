"""Which environments there are, and the questions about them that need no session.

Environment code never runs in the host, not even to list tools. Each image has one *catalog container*, made exactly as the
session containers are, which answers. If it dies it is replaced at the next question.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import anyio
import structlog

from host.answers import InvalidAnswer, as_json, as_value
from host.channel import RequestTimeout, RuntimeFault
from host.engine import LABEL_RUNTIME, EngineError, Image, ImageMissing
from host.errors import (
    EnvironmentFailed,
    Failure,
    InvalidRequest,
    QuestionLost,
    Reason,
    SandboxFailed,
    StartupError,
    UnknownEnvironment,
)
from host.sandbox import Role, Sandbox, SandboxHost
from sandbox_runtime.messages import Fault, ListToolsOutput, Method, Split

log = structlog.get_logger()
T = TypeVar("T")

_CALLERS_FAULT = frozenset({Fault.INVALID_SPLIT, Fault.INVALID_INDEX, Fault.NOT_SUPPORTED})


class _ImageCatalog:
    """One image's catalog container: there when it is asked, replaced when it died."""

    def __init__(self, host: SandboxHost, image: Image) -> None:
        self.image = image
        self.cancel_grace_s = host.settings.cancel_grace_s
        self._host = host
        self._stack = AsyncExitStack()
        self._sandbox: Sandbox | None = None
        self._opening = anyio.Lock()

    async def sandbox(self) -> Sandbox:
        """Return a living catalog container.

        Raises:
            SandboxFailed: none could be started.
        """
        async with self._opening:
            if self._sandbox is not None and self._sandbox.failed:
                failure = await self._sandbox.wait_failed()
                log.warning("catalog_container_died", image=self.image.tag, reason=failure.reason)
                await self.aclose()
            if self._sandbox is None:
                self._sandbox = await self._stack.enter_async_context(
                    Sandbox.open(self._host, self.image, role=Role.CATALOG)
                )
            return self._sandbox

    async def retire(self, sandbox: Sandbox) -> None:
        """Remove a container that can't be trusted to answer any more; what else it is asked is lost."""
        async with self._opening:
            if self._sandbox is sandbox:
                log.warning("catalog_container_stuck", image=self.image.tag)
                await self.aclose()

    async def aclose(self) -> None:
        self._sandbox = None
        await self._stack.aclose()


@dataclass(frozen=True)
class Environment:
    """One environment that is served. ``tools`` and ``splits`` don't change while the host runs."""

    name: str
    runtime_name: str
    tools: ListToolsOutput
    splits: tuple[Split, ...]
    _image: _ImageCatalog
    _timeout_s: float

    @property
    def image(self) -> Image:
        """What its sessions' containers are made from."""
        return self._image.image

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
        sandbox = await self._image.sandbox()
        try:
            return await _ask(self._image, sandbox, self.runtime_name, read, method, params, timeout_s=self._timeout_s)
        except SandboxFailed as exc:
            failure = exc.failure
            if failure.reason is Reason.DELETED:  # by retire()
                failure = Failure(Reason.CONTAINER_DIED, "the container that was asked is being replaced; ask again")
            raise QuestionLost(failure) from exc


async def _ask(
    catalog: _ImageCatalog,
    sandbox: Sandbox,
    env: str,
    read: Callable[[Method, Any], T],
    method: Method,
    params: Mapping[str, Any],
    *,
    timeout_s: float,
) -> T:
    try:
        value = await sandbox.request(
            method, {"env": env, **params}, timeout_s=timeout_s, cancel_grace_s=catalog.cancel_grace_s
        )
        return read(method, value)
    except RuntimeFault as exc:
        if exc.fault in _CALLERS_FAULT:
            raise InvalidRequest(str(exc)) from exc
        raise EnvironmentFailed(str(exc)) from exc
    except RequestTimeout as exc:
        if not exc.ended:  # it goes on in there, and questions like it would pile up
            await catalog.retire(sandbox)
        raise EnvironmentFailed(f"{method} took longer than {timeout_s:g} s") from exc
    except InvalidAnswer as exc:
        raise EnvironmentFailed(f"the answer to {method} is not valid: {exc}") from exc


class Catalog:
    """All environments by name (lower case, found without regard to case); the first is the default."""

    def __init__(self, environments: Sequence[Environment]) -> None:
        self._by_name = {environment.name: environment for environment in environments}

    @classmethod
    @asynccontextmanager
    async def open(cls, host: SandboxHost, tags: Sequence[str]) -> AsyncIterator[Self]:
        """Start a catalog container for each image and ask it what it has.

        Raises:
            StartupError: an image is missing, isn't built from our base, doesn't start, has an environment without tools or
                splits, or two environments share a name; the sentence names the image.
        """
        async with AsyncExitStack() as stack:
            catalogs = []
            for tag in dict.fromkeys(tags):
                catalog = _ImageCatalog(host, await _look_up(host, tag))
                stack.push_async_callback(catalog.aclose)
                catalogs.append(catalog)
            environments: dict[str, Environment] = {}
            for catalog in catalogs:
                for environment in await _discover(host, catalog):
                    if other := environments.get(environment.name):
                        raise StartupError(
                            f"two environments are named {environment.name!r}: "
                            f"one in image {other.image.tag!r} and one in image {catalog.image.tag!r}"
                        )
                    environments[environment.name] = environment
            yield cls(tuple(environments.values()))

    @property
    def names(self) -> list[str]:
        """All names, the default's first."""
        return list(self._by_name)

    @property
    def images(self) -> list[Image]:
        """What sessions' containers are made from, the default's first."""
        return list(dict.fromkeys(environment.image for environment in self._by_name.values()))

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
        raise UnknownEnvironment(f"unknown environment {name!r}; there are: {', '.join(self.names)}")


async def _look_up(host: SandboxHost, tag: str) -> Image:
    try:
        image = await host.engine.image(tag)
    except ImageMissing as exc:
        raise StartupError(
            f"image {tag!r} is not on this engine; build it (ors-host build DIR -t {tag}) or pull it (docker pull {tag})"
        ) from exc
    except EngineError as exc:
        raise StartupError(f"image {tag!r} can't be looked up: {exc}") from exc
    if LABEL_RUNTIME not in image.labels:
        raise StartupError(
            f"image {tag!r} is not built from the ors-host base (it has no label {LABEL_RUNTIME}); "
            f"build it with: ors-host build DIR -t {tag}"
        )
    return image


async def _discover(host: SandboxHost, catalog: _ImageCatalog) -> list[Environment]:
    tag = catalog.image.tag
    timeout_s = host.settings.discovery_timeout_s
    environments = []
    try:
        sandbox = await catalog.sandbox()
        if not sandbox.environments:
            raise StartupError(f"image {tag!r} has no environment")
        for runtime_name in sandbox.environments:
            tools = await _ask(catalog, sandbox, runtime_name, as_value, Method.LIST_TOOLS, {}, timeout_s=timeout_s)
            splits = await _ask(catalog, sandbox, runtime_name, as_value, Method.LIST_SPLITS, {}, timeout_s=timeout_s)
            for what, found in (("tool", tools.tools or tools.terminal_tool), ("split", splits)):
                if not found:
                    raise StartupError(
                        f"environment {runtime_name!r} in image {tag!r} has no {what}; it needs at least one"
                    )
            environments.append(
                Environment(runtime_name.lower(), runtime_name, tools, tuple(splits), catalog, timeout_s)
            )
    except (SandboxFailed, EnvironmentFailed, InvalidRequest) as exc:
        raise StartupError(f"image {tag!r} doesn't answer: {exc}") from exc
    return environments
