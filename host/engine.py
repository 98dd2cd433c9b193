"""The Docker engine: create, start, remove, list what is ours, tell of deaths.

What the host knows about containers is in this file. docker-py blocks, so each call runs in a thread of a bounded number;
removing what is gone already is a success (404), and one that is under way is waited for (409 "removal in progress").
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import anyio
import anyio.to_thread
import structlog

from host import docker_client, tracing
from host.errors import Failure, Reason, SandboxFailed
from host.isolation import Confinement
from host.placement import Placement, own_container_ids

T = TypeVar("T")
log = structlog.get_logger()

LABEL_SERVER = "ors-host.server"
LABEL_SANDBOX = "ors-host.sandbox"
LABEL_ROLE = "ors-host.role"
LABEL_IMAGE = "ors-host.image"
"""The tag that it was served under: a host that comes after knows by it what holds for the container."""
RUNTIME_DIR = "/run/ors"
"""Where a sandbox's socket directory appears in its container."""

EGRESS_DIR = "/run/ors-net"
"""Where the directory with the proxy's socket appears, if there is a way out."""

_THREADS = 16
_PING_TIMEOUT_S = 5.0
_REMOVAL_WAIT_S = 0.5
"""From a container's death to its removal by "docker rm -f"."""

_REMOVAL_TIMEOUT_S = 10
_LOG_LIMITS = {"max-size": "1m", "max-file": "2"}
_OPEN_FILES = 4096
_NO_SOURCE = "bind source path does not exist"
_UNSEEN = (
    "; the engine looks for it on its own machine: the host must run there, or in a container of that engine with its state "
    "directory and data folders mounted"
)
_CPU_SHARES = 256
"""A quarter of what others get by default: where processors are short, containers wait for the host and the engine."""


@dataclass(frozen=True)
class Image:
    """An image as it was when looked up; containers are made from ``id``, so a new build under the tag changes nothing."""

    tag: str
    id: str
    labels: Mapping[str, str] = field(compare=False)


@dataclass(frozen=True)
class Limits:
    """What one container may use."""

    memory_bytes: int
    cpus: float
    quota_bytes: int | None = None
    """For what it writes, where the storage driver can hold it to that."""


@dataclass(frozen=True)
class ContainerSpec:
    """All that a container of ours is made from."""

    name: str
    image: Image
    socket_dir: Path | None
    """What appears at ``RUNTIME_DIR``, if anything does."""
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    limits: Limits
    confinement: Confinement
    extra_groups: tuple[int, ...] = ()
    mounts: Mapping[str, Path] = field(default_factory=dict)
    """Place in the container → directory of this machine that appears there, read-only."""


@dataclass(frozen=True)
class ContainerRef:
    """A container that exists, running or not."""

    id: str
    name: str
    labels: Mapping[str, str]
    running: bool


@dataclass(frozen=True)
class Death:
    """How a container ended; ``log`` is the end of its output."""

    exit_code: int
    out_of_memory: bool
    log: str = field(repr=False)
    outside: Literal["", "killed", "removed"] = ""
    """What somebody had the engine do to it, if that is how it ended."""


class EngineError(Exception):
    """The engine refused, or didn't answer."""


class EngineSilent(EngineError):
    """The engine didn't answer, or its answer was lost: whether it did what it was asked is not known."""


class NotThere(EngineError):
    """The engine has no such thing; or says so, for it may say so of anything that it is asked."""


class ImageMissing(EngineError):
    """The engine has no such image."""


class CreateUnclear(SandboxFailed):
    """No answer to a create: the container may be there, or may yet appear."""


class Engine:
    """One Docker engine. Opened with ``async with Engine.open()``."""

    confines: ClassVar[bool] = True
    """False if what it calls containers is neither shut in nor limited."""

    placement = Placement()
    """Where this process's paths are on the engine's machine."""

    def __init__(self, client: docker_client.APIClient, info: Mapping[str, Any]) -> None:
        self._client = client
        self._info = info
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._watched: dict[str, _Watched] = {}
        self._ids: dict[str, str] = {}  # of containers, by name; the event loop's alone
        self.on_request: Callable[[str, str, float], None] | None = None
        """Told of each request: its name, "ok" or what became of it, and how many seconds it took."""
        self.problem: str | None = None
        """What kept the engine from answering the last ``ping``."""

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """Connect (``DOCKER_HOST``, else the default socket) and watch for deaths until the block is left.

        Raises:
            docker_client.EngineUnavailable: no engine answers.
        """
        client = await anyio.to_thread.run_sync(lambda: docker_client.connect(max_pool_size=_THREADS + 1))
        try:
            info = await anyio.to_thread.run_sync(client.info)
            engine = cls(client, info)
            engine.placement = await anyio.to_thread.run_sync(placement_of, client)
            watcher = _DeathWatch(client, engine._told)
            watcher.start()
            try:
                yield engine
            finally:
                watcher.stop()
        finally:
            client.close()

    @property
    def remapped_root(self) -> tuple[int, int] | None:
        """The (uid, gid) on the host of a container's root under user-namespace remapping, else None."""
        if not any("name=userns" in option for option in self._info.get("SecurityOptions") or ()):
            return None
        uid, _, gid = str(self._info["DockerRootDir"]).rpartition("/")[2].partition(".")
        return int(uid), int(gid)

    @property
    def far(self) -> str | None:
        """Why the processes of its containers can't be this machine's, if that is known; else None."""
        if not self._client.base_url.startswith("http+docker://"):
            return "the Docker engine is asked over the network, and may be on another machine"
        options = self._info.get("SecurityOptions") or ()
        if any("name=rootless" in option for option in options):
            return "the Docker engine is rootless: its containers' networks belong to a user of its own"
        if "Docker Desktop" in str(self._info.get("OperatingSystem")):
            return "Docker Desktop runs its containers in a virtual machine"
        return None

    @property
    def oci_runtimes(self) -> tuple[str, ...]:
        """The names of the OCI runtimes that the engine can run a container with."""
        return tuple(self._info.get("Runtimes") or ())

    async def ping(self) -> None:
        """Ask whether the engine answers; ``problem`` says what came of it."""
        try:
            with anyio.fail_after(_PING_TIMEOUT_S):
                await anyio.to_thread.run_sync(self._client.ping, abandon_on_cancel=True)
        except TimeoutError:
            self.problem = f"no answer within {_PING_TIMEOUT_S:g} s"
        except docker_client.ERRORS as exc:
            self.problem = docker_client.explain(exc)
        else:
            self.problem = None

    @property
    def writes_to_files(self) -> bool:
        """True if what a container writes is in a directory of its own, which is what overlay2 does."""
        return bool(self._info.get("Driver") == "overlay2")

    @property
    def storage_dir(self) -> Path:
        """Where the engine keeps its containers' files, on its own machine."""
        return Path(self._info["DockerRootDir"])

    async def writable_dirs(self, name: str) -> tuple[Path, ...] | None:
        """Return where, on the engine's machine, what a container writes is kept; None if it isn't there, or not in files.

        Raises:
            EngineError: the engine failed.
        """
        try:
            data = await self._call(self._client.inspect_container, name)
        except NotThere:
            return None
        upper = (data["GraphDriver"].get("Data") or {}).get("UpperDir")
        if not upper:
            return None
        return (Path(upper), *(Path(mount["Source"]) for mount in data["Mounts"] if mount["Type"] == "volume"))

    async def written_bytes(self) -> dict[str, int]:
        """Return how much each container has written, by name. Slow: the engine looks at every file.

        Raises:
            EngineError: the engine failed.
        """
        found = await self._call(partial(self._client.containers, size=True, filters={"label": LABEL_SERVER}))
        return {item["Names"][0].lstrip("/"): int(item.get("SizeRw") or 0) for item in found}

    async def init_process(self, name: str) -> tuple[str, int] | None:
        """Return a container's id and, on the engine's machine, the process id of its init; None if it doesn't run.

        Raises:
            EngineError: the engine failed.
        """
        try:
            data = await self._call(self._client.inspect_container, name)
        except NotThere:
            return None
        state = data["State"]
        return (str(data["Id"]), int(state["Pid"])) if state["Running"] and state["Pid"] else None

    async def processes(self, name: str) -> list[int]:
        """Return the ids of a container's processes; none if it doesn't run, or if ids are others here than on its machine.

        Raises:
            EngineError: the engine failed.
        """
        if not self.placement.shares_processes:
            return []
        try:
            found = await self._call(self._client.top, name, "-o pid")
        except NotThere:
            return []
        return [int(row[0]) for row in found["Processes"] or ()]

    async def stats(self, name: str) -> Mapping[str, Any] | None:
        """Return what the engine counts for a container, as its API has it; None if there is no such container.

        Raises:
            EngineError: the engine failed.
        """
        try:
            return await self._call(partial(self._client.stats, stream=False, one_shot=True), name)
        except NotThere:
            return None

    async def has_quota(self, tag: str, labels: Mapping[str, str]) -> bool:
        """Tell whether the engine's storage driver can limit what a container writes, by making one of an image.

        Only overlay2 can (on xfs with ``pquota``); what others limit (btrfs, zfs) has the image in it.

        Raises:
            EngineError: the engine failed otherwise.
        """
        if not self.writes_to_files:
            return False
        host_config = self._client.create_host_config(network_mode="none", storage_opt={"size": "64M"})
        try:
            create = partial(self._client.create_container, labels=dict(labels), host_config=host_config)
            made = await self._call(create, tag)
        except NotThere as exc:
            raise EngineError(f"no image {tag!r}") from exc
        except EngineError as exc:
            if "storage-opt" in str(exc) or "quota" in str(exc).lower():
                return False
            raise
        await self.remove(made["Id"])
        return True

    async def image(self, tag: str) -> Image:
        """Look an image up.

        Raises:
            ImageMissing: there is none of that name.
            EngineError: the engine failed.
        """
        try:
            data = await self._call(self._client.inspect_image, tag)
        except NotThere as exc:
            raise ImageMissing(f"no image {tag!r}") from exc
        return Image(tag, data["Id"], data["Config"].get("Labels") or {})

    async def create(self, spec: ContainerSpec) -> None:
        """Create a container; from here on it carries its labels and ``remove(spec.name)`` removes it.

        A caller that is cancelled goes on at once, and so does the creation.

        Raises:
            SandboxFailed: the image is gone (``image_not_found``) or the engine refused (``start_failed``).
            CreateUnclear: the engine didn't answer (``start_failed``).
        """
        try:
            self._ids[spec.name] = await self._call(self._create, spec)
        except EngineSilent as exc:
            raise CreateUnclear(Failure(Reason.START_FAILED, str(exc))) from exc
        except EngineError as exc:
            failure = Failure(Reason.START_FAILED, f"{exc}{_UNSEEN if _NO_SOURCE in str(exc) else ''}")
            if isinstance(exc.__cause__, docker_client.ImageNotFound):
                message = f"the engine has no image {spec.image.tag!r} ({spec.image.id[:19]}) any more"
                failure = Failure(Reason.IMAGE_NOT_FOUND, message)
            raise SandboxFailed(failure) from exc

    async def start(self, name: str, *, on_death: Callable[[], None]) -> None:
        """Start a created container; ``on_death`` is called in the event loop when the engine tells of its death.

        Raises:
            SandboxFailed: the engine refused.
        """
        self.watch(name, on_death=on_death)
        try:
            await self._call(self._client.start, name)
        except EngineError as exc:
            raise SandboxFailed(Failure(Reason.START_FAILED, str(exc))) from exc

    def watch(self, name: str, *, on_death: Callable[[], None]) -> None:
        """Have ``on_death`` called in the event loop when the engine tells of a container's death."""
        self._watched[name] = _Watched(on_death)

    async def death(self, name: str, *, wait_s: float) -> Death | None:
        """Return how a container ended, waiting ``wait_s`` for it if it is only about to; None if it runs on.

        A container that is gone altogether was removed from outside: exit code 137, no log.

        Raises:
            EngineError: the engine failed.
        """
        watched = self._watched.get(name) or _Watched(lambda: None)
        with anyio.move_on_after(wait_s if name in self._watched else 0):
            await watched.died.wait()
        try:
            state = (await self._call(self._client.inspect_container, name))["State"]
            if state["Running"]:
                return None
            killed = int(state["ExitCode"]) - 128 in watched.signals
            if killed:  # perhaps by "docker rm -f", which goes on to remove it
                with anyio.move_on_after(_REMOVAL_WAIT_S):
                    await watched.removed.wait()
            log = await self._call(self._log_tail, name)
        except NotThere:
            return Death(137, False, "", "removed")
        return Death(int(state["ExitCode"]), bool(state["OOMKilled"]), log, "killed" if killed else "")

    def log_files(self, name: str) -> list[Path]:
        """Return where, on its own machine, the engine writes a container's output, as lines of JSON; the older part first."""
        if (container_id := self._ids.get(name)) is None:
            return []
        path = self.storage_dir / "containers" / container_id / f"{container_id}-json.log"
        return [path.with_name(f"{path.name}.1"), path]

    async def log(self, name: str, *, lines: int) -> bytes:
        """Return the last lines of a container's output, each with its time in front; nothing if there is no such container.

        Raises:
            EngineError: the engine failed.
        """
        try:
            return await self._call(self._log, name, lines)
        except NotThere:
            return b""

    async def log_tail(self, name: str) -> str:
        """Return the end of a container's output; empty if there is no such container."""
        try:
            return await self._call(self._log_tail, name)
        except NotThere:
            return ""

    async def remove(self, name: str) -> None:
        """Kill and remove a container, and wait until it is gone; success if it is gone already.

        Raises:
            EngineError: the engine failed; the container may still be there.
        """
        self._watched.pop(name, None)
        self._ids = {known: id_ for known, id_ in self._ids.items() if name not in (known, id_)}
        with contextlib.suppress(NotThere):
            await self._call(self._remove, name)

    async def list_ours(self, server_id: str) -> list[ContainerRef]:
        """Return all containers, running or not, that a host of this id made.

        Raises:
            EngineError: the engine failed.
        """
        ours = {"label": f"{LABEL_SERVER}={server_id}"}
        found = await self._call(partial(self._client.containers, all=True, filters=ours))
        self._ids.update((item["Names"][0].lstrip("/"), item["Id"]) for item in found if item["Names"])
        # One that is being removed may be listed without a name.
        return [
            ContainerRef(
                item["Id"],
                (item["Names"] or [item["Id"]])[0].lstrip("/"),
                item["Labels"],
                item["State"] == "running",
            )
            for item in found
        ]

    # In a thread

    def _create(self, spec: ContainerSpec) -> str:
        host_config = self._client.create_host_config(
            network_mode="none",
            cap_drop=["ALL"],
            cap_add=list(spec.confinement.capabilities),
            security_opt=list(spec.confinement.security_options),
            read_only=spec.confinement.read_only_root,
            runtime=spec.confinement.oci_runtime,
            init=True,
            restart_policy={"Name": "no"},
            mem_limit=spec.limits.memory_bytes,
            memswap_limit=spec.limits.memory_bytes,
            nano_cpus=int(spec.limits.cpus * 1e9),
            cpu_shares=_CPU_SHARES,
            pids_limit=spec.confinement.pids,
            tmpfs=dict(spec.confinement.tmpfs),
            sysctls=dict(spec.confinement.sysctls),
            storage_opt={"size": str(spec.limits.quota_bytes)} if spec.limits.quota_bytes else None,
            ulimits=[
                docker_client.Ulimit(name="core", soft=0, hard=0),
                docker_client.Ulimit(name="nofile", soft=_OPEN_FILES, hard=_OPEN_FILES),
            ],
            log_config=docker_client.LogConfig(type="json-file", config=_LOG_LIMITS),
            mounts=[
                docker_client.Mount(
                    place, str(self.placement.on_engine(directory) or directory), type="bind", read_only=True
                )
                for place, directory in {RUNTIME_DIR: spec.socket_dir, **spec.mounts}.items()
                if directory is not None
            ],
            group_add=[str(gid) for gid in spec.extra_groups],
        )
        made = self._client.create_container(
            spec.image.id,
            name=spec.name,
            hostname="sandbox",
            labels=dict(spec.labels),
            environment=dict(spec.environment),
            host_config=host_config,
            user=spec.confinement.user,
        )
        return str(made["Id"])

    def _remove(self, name: str) -> None:
        try:
            self._client.remove_container(name, force=True, v=True)
        except docker_client.NotFound:
            # Looked at again, for what is taken for gone makes room for another.
            state = self._client.inspect_container(name)["State"]["Status"]
            raise EngineError(f"it is not there to be removed, but it is {state}") from None
        except docker_client.APIError as exc:
            if exc.status_code != 409:
                raise
            # Somebody else's removal is under way, and may fail.
            self._client.wait(name, timeout=_REMOVAL_TIMEOUT_S, condition="removed")

    def _log(self, name: str, lines: int) -> bytes:
        output: bytes = self._client.logs(name, tail=lines, timestamps=True)
        return output

    def _log_tail(self, name: str) -> str:
        output: bytes = self._client.logs(name, tail=40, stdout=True, stderr=True)
        return output[-8192:].decode(errors="replace").strip()

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        """Run one blocking call in a thread. It ends there when its caller is cancelled, who doesn't wait for that."""
        asked_at, outcome = time.monotonic(), "given_up"
        name = (function.func if isinstance(function, partial) else function).__name__.strip("_")
        try:
            with tracing.span(f"engine {name}", "client"):
                value = await anyio.to_thread.run_sync(function, *args, limiter=self._threads, abandon_on_cancel=True)
            outcome = "ok"
            return value
        except docker_client.NotFound as exc:
            outcome = "not_found"
            raise NotThere(docker_client.explain(exc)) from exc
        except docker_client.APIError as exc:
            outcome = "refused"
            raise EngineError(docker_client.explain(exc)) from exc
        except docker_client.ERRORS as exc:
            outcome = "silent"
            raise EngineSilent(docker_client.explain(exc)) from exc
        finally:
            if self.on_request is not None:
                self.on_request(name, outcome, time.monotonic() - asked_at)

    def _told(self, action: str, attributes: Mapping[str, str]) -> None:
        watched = self._watched.get(attributes["name"])
        if watched is None:
            return
        match action:
            case "kill":
                watched.signals.add(int(attributes.get("signal", 0)))
            case "destroy":
                watched.removed.set()
            case "die":
                watched.died.set()
                watched.on_death()


def placement_of(client: docker_client.APIClient) -> Placement:
    """Return where this process's paths are on the engine's machine, by asking whether it is in a container of the engine's."""
    for own_id in own_container_ids():
        with contextlib.suppress(docker_client.NotFound):
            return Placement.in_container(client.inspect_container(own_id))
    return Placement()


@dataclass
class _Watched:
    on_death: Callable[[], None]
    died: asyncio.Event = field(default_factory=asyncio.Event)
    removed: asyncio.Event = field(default_factory=asyncio.Event)
    signals: set[int] = field(default_factory=set)
    """What somebody had the engine send."""


class _DeathWatch:
    """The engine's event stream, read by a thread of its own; calls back in the event loop."""

    _RETRY_S = 1.0
    _FILTERS: ClassVar = {"type": ["container"], "event": ["kill", "die", "destroy"], "label": [LABEL_SERVER]}

    def __init__(self, client: docker_client.APIClient, told: Callable[[str, Mapping[str, str]], None]) -> None:
        self._client = client
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="engine-events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._stream is not None:
            with contextlib.suppress(Exception):  # it may have ended by itself just now
                self._stream.close()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        since = int(time.time())
        while not self._stopped.is_set():
            try:
                self._stream = self._client.events(since=since, decode=True, filters=self._FILTERS)
                for event in self._stream:
                    # A stream that is opened again starts here: nothing that died meanwhile is missed.
                    since = int(event["time"])
                    self._loop.call_soon_threadsafe(self._told, event["Action"], event["Actor"]["Attributes"])
            except Exception as exc:  # whatever broke the stream, the answer is to open it again
                if not self._stopped.is_set():
                    log.warning("engine_events_lost", error=str(exc))
            self._stopped.wait(self._RETRY_S)
