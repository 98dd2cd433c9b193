"""The Docker engine: what the host knows of Docker's containers.

Removing what is gone already is a success (404), and one that is under way is waited for (409 "removal in progress").
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread

from host import docker_client, docker_container
from host.docker_calls import THREADS, DockerCalls
from host.docker_events import DockerEvents
from host.engine import (
    LABEL_SERVER,
    ContainerRef,
    ContainerSpec,
    CreateUnclear,
    Death,
    EngineError,
    EngineSilent,
    Image,
    ImageMissing,
    NotThere,
)
from host.errors import Failure, Reason, SandboxFailed
from host.placement import Placement

_PING_TIMEOUT_S = 5.0
_REMOVAL_WAIT_S = 0.5
"""From a container's death to its removal by "docker rm -f"."""

_REMOVAL_TIMEOUT_S = 10
_CONFLICT = 409
_TAIL_LINES, _TAIL_BYTES = 40, 8192
_NO_SOURCE = "bind source path does not exist"
_UNSEEN = (
    "; the engine looks for it on its own machine: the host must run there, or in a container of that engine with its state "
    "directory and data folders mounted"
)


class DockerEngine:
    """One Docker engine, as ``Engine`` describes it. Opened with ``async with DockerEngine.open()``."""

    confines = True
    placement = Placement()

    def __init__(self, client: docker_client.APIClient, info: Mapping[str, Any]) -> None:
        self.problem: str | None = None
        self._client = client
        self._info = info
        self._call = DockerCalls()
        self._events = DockerEvents(client)
        self._ids: dict[str, str] = {}  # of containers, by name; the event loop's alone

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """Connect (``DOCKER_HOST``, else the default socket) and watch for deaths until the block is left.

        Raises:
            docker_client.EngineUnavailable: no engine answers.
        """
        client = await anyio.to_thread.run_sync(lambda: docker_client.connect(max_pool_size=THREADS + 1))
        try:
            info = await anyio.to_thread.run_sync(client.info)
            engine = cls(client, info)
            engine.placement = await anyio.to_thread.run_sync(docker_client.placement_of, client)
            engine._events.start()
            try:
                yield engine
            finally:
                engine._events.stop()
        finally:
            client.close()

    # --- What it is like ---

    @property
    def on_request(self) -> Callable[[str, str, float], None] | None:
        """Told of each request."""
        return self._call.on_request

    @on_request.setter
    def on_request(self, told: Callable[[str, str, float], None] | None) -> None:
        self._call.on_request = told

    @property
    def remapped_root(self) -> tuple[int, int] | None:
        """The (uid, gid) that Docker names its directory after, if it remaps users."""
        if not any("name=userns" in option for option in self._info.get("SecurityOptions") or ()):
            return None
        uid, _, gid = str(self._info["DockerRootDir"]).rpartition("/")[2].partition(".")
        return int(uid), int(gid)

    @property
    def far(self) -> str | None:
        """Why its containers' processes can't be this machine's: it is asked over a network, rootless, or Docker Desktop."""
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
        """The names of the OCI runtimes that are registered in it."""
        return tuple(self._info.get("Runtimes") or ())

    @property
    def writes_to_files(self) -> bool:
        """True for overlay2, where what a container writes is in a directory of its own."""
        return bool(self._info.get("Driver") == "overlay2")

    @property
    def storage_dir(self) -> Path:
        """Where it keeps its containers' files, on its own machine."""
        return Path(self._info["DockerRootDir"])

    async def ping(self) -> None:
        """Ask whether it answers; ``problem`` says what came of it."""
        try:
            with anyio.fail_after(_PING_TIMEOUT_S):
                await anyio.to_thread.run_sync(self._client.ping, abandon_on_cancel=True)
        except TimeoutError:
            self.problem = f"no answer within {_PING_TIMEOUT_S:g} s"
        except docker_client.ERRORS as exc:
            self.problem = docker_client.explain(exc)
        else:
            self.problem = None

    async def has_quota(self, tag: str, labels: Mapping[str, str]) -> bool:
        """Tell whether its storage driver can limit what a container writes, by making one of an image.

        Only overlay2 can (on xfs with ``pquota``); what others limit (btrfs, zfs) has the image in it.
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

    # --- Containers, from their images to their removal ---

    async def image(self, tag: str) -> Image:
        """Look an image up."""
        try:
            data = await self._call(self._client.inspect_image, tag)
        except NotThere as exc:
            raise ImageMissing(f"no image {tag!r}") from exc
        return Image(tag, data["Id"], (data.get("Config") or {}).get("Labels") or {})

    async def create(self, spec: ContainerSpec) -> None:
        """Create a container."""
        try:
            self._ids[spec.name] = await self._call(docker_container.create, self._client, spec, self.placement)
        except EngineSilent as exc:
            raise CreateUnclear(Failure(Reason.START_FAILED, str(exc))) from exc
        except EngineError as exc:
            failure = Failure(Reason.START_FAILED, f"{exc}{_UNSEEN if _NO_SOURCE in str(exc) else ''}")
            if isinstance(exc.__cause__, docker_client.ImageNotFound):
                message = f"the engine has no image {spec.image.tag!r} ({spec.image.id[:19]}) any more"
                failure = Failure(Reason.IMAGE_NOT_FOUND, message)
            raise SandboxFailed(failure) from exc

    async def start(self, name: str, *, on_death: Callable[[], None]) -> None:
        """Start a created container, and watch it."""
        self.watch(name, on_death=on_death)
        try:
            await self._call(self._client.start, name)
        except EngineError as exc:
            raise SandboxFailed(Failure(Reason.START_FAILED, str(exc))) from exc

    def watch(self, name: str, *, on_death: Callable[[], None]) -> None:
        """Have ``on_death`` called in the event loop when Docker tells of a container's death."""
        self._events.watch(name, on_death)

    async def death(self, name: str, *, wait_s: float) -> Death | None:
        """Return how a container ended; who had Docker kill it is known only of those that are watched."""
        fate = self._events.fate(name)
        if fate is not None:
            with anyio.move_on_after(wait_s):
                await fate.died.wait()
        try:
            state = (await self._call(self._client.inspect_container, name))["State"]
            if state["Running"]:
                return None
            killed = fate is not None and int(state["ExitCode"]) - 128 in fate.signals
            if fate is not None and killed:  # perhaps by "docker rm -f", which goes on to remove it
                with anyio.move_on_after(_REMOVAL_WAIT_S):
                    await fate.removed.wait()
            log = await self._call(self._log_tail, name)
        except NotThere:
            return Death(137, False, "", "removed")
        return Death(int(state["ExitCode"]), bool(state["OOMKilled"]), log, "killed" if killed else "")

    async def remove(self, name: str) -> None:
        """Kill and remove a container, and wait until it is gone."""
        self._events.unwatch(name)
        self._ids = {known: id_ for known, id_ in self._ids.items() if name not in (known, id_)}
        with contextlib.suppress(NotThere):
            await self._call(self._remove, name)

    async def list_ours(self, server_id: str) -> list[ContainerRef]:
        """Return all containers, running or not, with this host's label."""
        ours = {"label": f"{LABEL_SERVER}={server_id}"}
        known = set(self._ids)
        found = await self._call(partial(self._client.containers, all=True, filters=ours))
        listed = {item["Names"][0].lstrip("/"): item["Id"] for item in found if item["Names"]}
        # What was made meanwhile stays known, what was removed meanwhile is forgotten with the next list.
        self._ids = {name: id_ for name, id_ in self._ids.items() if name not in known or name in listed} | listed
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

    # --- What they write and use ---

    def log_files(self, name: str) -> list[Path]:
        """Return the files of its json-file log driver."""
        if (container_id := self._ids.get(name)) is None:
            return []
        path = self.storage_dir / "containers" / container_id / f"{container_id}-json.log"
        return [path.with_name(f"{path.name}.1"), path]

    async def log(self, name: str, *, lines: int) -> bytes:
        """Return the last lines of a container's output, each with its time in front."""
        try:
            return await self._call(self._log, name, lines)
        except NotThere:
            return b""

    async def log_tail(self, name: str) -> str:
        """Return the end of a container's output."""
        try:
            return await self._call(self._log_tail, name)
        except NotThere:
            return ""

    async def writable_dirs(self, name: str) -> tuple[Path, ...] | None:
        """Return a container's own layer, and its volumes."""
        try:
            data = await self._call(self._client.inspect_container, name)
        except NotThere:
            return None
        upper = (data["GraphDriver"].get("Data") or {}).get("UpperDir")
        if not upper:
            return None
        return (Path(upper), *(Path(mount["Source"]) for mount in data["Mounts"] if mount["Type"] == "volume"))

    async def written_bytes(self) -> dict[str, int]:
        """Return how much each container of any host has written, by name."""
        found = await self._call(partial(self._client.containers, size=True, filters={"label": LABEL_SERVER}))
        # One that is being removed may be listed without a name.
        return {item["Names"][0].lstrip("/"): int(item.get("SizeRw") or 0) for item in found if item["Names"]}

    async def init_process(self, name: str) -> tuple[str, int] | None:
        """Return a container's id and the process id of its init."""
        try:
            data = await self._call(self._client.inspect_container, name)
        except NotThere:
            return None
        state = data["State"]
        return (str(data["Id"]), int(state["Pid"])) if state["Running"] and state["Pid"] else None

    async def processes(self, name: str) -> list[int]:
        """Return the ids of a container's processes."""
        if not self.placement.shares_processes:
            return []
        try:
            found = await self._call(self._client.top, name, "-o pid")
        except NotThere:
            return []
        except EngineError as exc:
            if isinstance(exc.__cause__, docker_client.APIError) and exc.__cause__.status_code == _CONFLICT:
                return []  # it doesn't run
            raise
        return [int(row[0]) for row in found["Processes"] or ()]

    async def stats(self, name: str) -> Mapping[str, Any] | None:
        """Return what Docker counts for a container."""
        try:
            return await self._call(partial(self._client.stats, stream=False, one_shot=True), name)
        except NotThere:
            return None

    # --- In a thread ---

    def _remove(self, name: str) -> None:
        try:
            self._client.remove_container(name, force=True, v=True)
        except docker_client.NotFound:
            # Looked at again, for what is taken for gone makes room for another.
            state = self._client.inspect_container(name)["State"]["Status"]
            raise EngineError(f"it is not there to be removed, but it is {state}") from None
        except docker_client.APIError as exc:
            if exc.status_code != _CONFLICT:
                raise
            # Somebody else's removal is under way, and may fail.
            self._client.wait(name, timeout=_REMOVAL_TIMEOUT_S, condition="removed")

    def _log(self, name: str, lines: int) -> bytes:
        output: bytes = self._client.logs(name, tail=lines, timestamps=True)
        return output

    def _log_tail(self, name: str) -> str:
        output: bytes = self._client.logs(name, tail=_TAIL_LINES, stdout=True, stderr=True)
        return output[-_TAIL_BYTES:].decode(errors="replace").strip()
