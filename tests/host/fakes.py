"""Stand-ins for what the host talks to: an engine without Docker, and the runtime that its containers run.

``FakeEngine`` has the methods of ``host.engine.Engine`` that the host uses. A container that it starts is a ``FakeRuntime``: a
task in this process that really dials the socket in the sandbox's directory with the token found there, and answers from the
engine's ``Script``. Faults are put in by ``FakeEngine.hooks`` (before a method does its work), by the script, or by the raw
bytes that a runtime can be made to send.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import anyio

from host.engine import LABEL_ROLE, LABEL_SERVER, ContainerRef, ContainerSpec, Death, Image, ImageMissing, Role
from host.errors import Failure, Reason, SandboxFailed
from host.kinds import LABEL_RUNTIME
from host.placement import Placement
from sandbox_runtime import frames, messages
from sandbox_runtime.messages import Fault

TAG = "fake-env:1"

NO_ANSWER = object()
"""What a handler returns whose request is never answered."""


class Faulty(Exception):
    """Raised by a handler: the runtime answers with this fault."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Gate:
    """A handler that answers when it is let to."""

    def __init__(self, answer: Any = None) -> None:
        self.opened = asyncio.Event()
        self.answer = answer

    async def __call__(self, runtime: FakeRuntime, params: dict[str, Any]) -> Any:
        await self.opened.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def raising(fault: Fault, message: str) -> Any:
    """Return a handler that answers with a fault."""

    def handler(runtime: FakeRuntime, params: dict[str, Any]) -> None:
        raise Faulty(fault, message)

    return handler


def ok(text: str = "done", **fields: Any) -> dict[str, Any]:
    """Return the result of a call that succeeded."""
    return {"ok": True, "output": {"blocks": [{"type": "text", "text": text}], **fields}}


def default_handlers() -> dict[str, Any]:
    """Return the answers of a small environment: one tool, two splits, three tasks in each."""
    tasks = [{"id": index} for index in range(3)]
    return {
        "list_tools": {"tools": [{"name": "bash", "description": "run", "input_schema": {"type": "object"}}]},
        "list_splits": [{"name": "train", "type": "train"}, {"name": "test", "type": "test"}],
        "list_tasks": tasks,
        "num_tasks": len(tasks),
        "get_task": lambda runtime, params: tasks[params["index"]],
        "get_task_range": lambda runtime, params: tasks[slice(params["start"], params["stop"])],
        "create": None,
        "setup": None,
        "prompt": [{"type": "text", "text": "do it"}],
        "task_tools": {"tools": [{"name": "bash", "description": "run", "input_schema": None}]},
        "call": ok(),
        "teardown": None,
    }


@dataclass
class Script:
    """What the runtimes of one image do. A handler is an answer, or a function of (runtime, params), async or not."""

    environments: list[str] = field(default_factory=lambda: ["BashEnv"])
    handlers: dict[str, Any] = field(default_factory=default_handlers)
    hello: dict[str, Any] = field(default_factory=dict)
    """Fields of ``hello`` that differ from the right ones."""
    on_connect: Callable[[FakeRuntime], Awaitable[None]] | None = None
    """In place of ``hello`` and serving: a runtime that misbehaves from the start. Not for catalog containers."""
    ends_cancelled: bool = True
    """Whether a cancelled request ends and is answered; if not, the runtime only takes note."""


class FakeRuntime:
    """One container's runtime. ``received`` are the methods it was asked, ``cancelled`` the ids it was told to cancel."""

    def __init__(self, container: FakeContainer, script: Script) -> None:
        self.container = container
        self.script = script
        self.received: list[str] = []
        self.params: dict[str, dict[str, Any]] = {}
        self.cancelled: list[int] = []
        self.changed = asyncio.Condition()
        self._writer: asyncio.StreamWriter | None = None
        self._running: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Dial, say hello and serve until the host hangs up; then the container ends with code 0."""
        directory = self.container.spec.socket_dir
        assert directory is not None
        reader, self._writer = await asyncio.open_unix_connection(str(directory / "host.sock"))
        try:
            if self.script.on_connect is not None and self.container.role is Role.SESSION:
                await self.script.on_connect(self)
            else:
                self.send(self.hello_message(directory))
            await self._serve(reader)
        finally:
            self.hang_up()  # first: the dead don't answer
            for task in tuple(self._running.values()):
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    def hello_message(self, directory: Path | None) -> dict[str, Any]:
        """Return the hello that this runtime would say."""
        assert directory is not None
        hello = {
            "protocol": messages.PROTOCOL_VERSION,
            "token": (directory / "token").read_text(),
            "runtime_version": "0",
            "environments": self.script.environments,
        }
        return messages.request(0, "hello", {**hello, **self.script.hello})

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message, whatever it is."""
        self.send_raw(frames.encode_frame(message))

    def send_raw(self, data: bytes) -> None:
        """Send bytes."""
        assert self._writer is not None
        if not self._writer.is_closing():
            self._writer.write(data)

    def hang_up(self) -> None:
        """Close the connection while the container goes on."""
        if self._writer is not None:
            self._writer.close()

    async def wait_received(self, method: str, *, times: int = 1) -> None:
        """Wait until the runtime was asked ``method`` so often."""
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(lambda: self.received.count(method) >= times), 10)

    async def wait_cancelled(self) -> None:
        """Wait until the host cancelled a request."""
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(lambda: bool(self.cancelled)), 10)

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        decoder = frames.FrameDecoder()
        while data := await reader.read(1 << 16):
            for message in decoder.feed(data):
                if "method" not in message:
                    continue  # the welcome
                if message["method"] == "cancel":
                    await self._cancel(message["params"]["id"])
                else:
                    async with self.changed:
                        self.received.append(message["method"])
                        self.params[message["method"]] = message["params"]
                        self.changed.notify_all()
                    self._running[message["id"]] = asyncio.create_task(self._answer(message))

    async def _cancel(self, request_id: int) -> None:
        if self.script.ends_cancelled and (task := self._running.get(request_id)):
            task.cancel()
        async with self.changed:
            self.cancelled.append(request_id)
            self.changed.notify_all()

    async def _answer(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message["params"]
        try:
            value = self.script.handlers[method]
            if callable(value):
                value = value(self, params)
            if inspect.isawaitable(value):
                value = await value
        except Faulty as exc:
            self.send(messages.error(message["id"], exc.fault, str(exc)))
        except asyncio.CancelledError:
            self.send(messages.error(message["id"], Fault.CANCELLED, "cancelled"))
        except Exception as exc:
            self.send(messages.error(message["id"], Fault.ENVIRONMENT_RAISED, f"{type(exc).__name__}: {exc}"))
        else:
            if value is not NO_ANSWER:
                self.send(messages.result(message["id"], value))
        finally:
            del self._running[message["id"]]


@dataclass
class FakeContainer:
    """A container: its runtime's task while it runs, its exit code afterwards."""

    spec: ContainerSpec
    script: Script
    runtime: FakeRuntime = field(init=False)
    task: asyncio.Task[None] | None = None
    on_death: Callable[[], None] | None = None
    exit_code: int | None = None
    out_of_memory: bool = False
    log: str = ""

    def __post_init__(self) -> None:
        self.runtime = FakeRuntime(self, self.script)

    @property
    def role(self) -> Role:
        return Role(self.spec.labels[LABEL_ROLE])

    async def die(self, exit_code: int = 137, *, out_of_memory: bool = False, log: str = "") -> None:
        """End as a killed container does: everything in it is gone, the engine tells of it."""
        self.log = log or self.log
        self.exit_code, self.out_of_memory = exit_code, out_of_memory
        if self.task is not None:
            self.task.cancel()
            if self.task is not asyncio.current_task():
                await asyncio.wait((self.task,))
        if self.on_death is not None:
            self.on_death()


class FakeEngine:
    """An engine whose containers are tasks. ``hooks`` by method name run first: they may wait, or raise."""

    confines = True
    placement = Placement()
    far: str | None = None

    def __init__(self, remapped_root: tuple[int, int] | None = None) -> None:
        self.remapped_root = remapped_root
        self.images: dict[str, Image] = {}
        self.scripts: dict[str, Script] = {}
        self.containers: dict[str, FakeContainer] = {}
        self.hooks: dict[str, Callable[[str], Awaitable[None]]] = {}
        self.created = 0
        self.problem: str | None = None
        self.oci_runtimes: tuple[str, ...] = ("runc",)
        self.storage_dir = Path("/nonexistent")  # its containers' files are nowhere here
        self.writes_to_files = False
        self.crashes: list[BaseException] = []
        """What ended a runtime's task by surprise; a fault of the test."""
        self.calls: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """Give an engine with one image, ``TAG``; end whatever still runs when the block is left."""
        engine = cls()
        engine.add_image(TAG)
        try:
            yield engine
        finally:
            for name in tuple(engine.containers):
                await engine._remove(name)

    def add_image(self, tag: str, script: Script | None = None, *, ours: bool = True) -> Script:
        """Add an image built from our base (or not); return what its containers do."""
        self.images[tag] = Image(tag, f"sha256:{tag}", {LABEL_RUNTIME: "0"} if ours else {})
        self.scripts[tag] = script or Script()
        return self.scripts[tag]

    @property
    def script(self) -> Script:
        """What the containers of ``TAG`` do."""
        return self.scripts[TAG]

    def of(self, role: Role) -> list[FakeContainer]:
        """Return the containers of one kind, oldest first."""
        return [container for container in self.containers.values() if container.role is role]

    async def wait_created(self, count: int) -> None:
        """Wait until so many containers were created."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: self.created >= count), 10)

    # --- What the host calls ----------------------------------------------------------------------------------------

    async def image(self, tag: str) -> Image:
        await self._hook("image", tag)
        if tag not in self.images:
            raise ImageMissing(f"no image {tag!r}")
        return self.images[tag]

    async def create(self, spec: ContainerSpec) -> None:
        with anyio.CancelScope(shield=True):  # as the real one: a cancelled caller waits
            await self._hook("create", spec.name)
            if spec.image.tag not in self.images:
                raise SandboxFailed(Failure(Reason.IMAGE_NOT_FOUND, f"no image {spec.image.tag!r} any more"))
            self.containers[spec.name] = FakeContainer(spec, self.scripts[spec.image.tag])
            async with self._changed:
                self.created += 1
                self._changed.notify_all()

    async def start(self, name: str, *, on_death: Callable[[], None]) -> None:
        with anyio.CancelScope(shield=True):
            container = self.containers[name]
            container.on_death = on_death
            await self._hook("start", name)
            container.task = asyncio.create_task(self._run(container))

    async def ping(self) -> None:
        await self._hook("ping", "")

    def watch(self, name: str, *, on_death: Callable[[], None]) -> None:
        self.containers[name].on_death = on_death

    async def death(self, name: str, *, wait_s: float) -> Death | None:
        await self._hook("death", name)
        container = self.containers.get(name)
        if container is None:
            return Death(137, False, "", "removed")
        if container.exit_code is None:
            return None
        return Death(container.exit_code, container.out_of_memory, container.log)

    def log_files(self, name: str) -> list[Path]:
        return []

    async def log(self, name: str, *, lines: int) -> bytes:
        await self._hook("log", name)
        log = self.containers[name].log if name in self.containers else ""
        return "".join(f"2030-01-01T00:00:00Z {line}\n" for line in log.splitlines()[-lines:]).encode()

    async def log_tail(self, name: str) -> str:
        await self._hook("log_tail", name)
        return self.containers[name].log if name in self.containers else ""

    async def remove(self, name: str) -> None:
        await self._hook("remove", name)  # as the real one: a cancelled caller doesn't wait
        with anyio.CancelScope(shield=True):
            await self._remove(name)

    async def has_quota(self, tag: str, labels: Mapping[str, str]) -> bool:
        return False

    async def written_bytes(self) -> dict[str, int]:
        return {}

    async def processes(self, name: str) -> list[int]:
        return []

    async def stats(self, name: str) -> None:
        return None

    async def list_ours(self, server_id: str) -> list[ContainerRef]:
        await self._hook("list_ours", server_id)
        return [
            ContainerRef(f"id-{name}", name, container.spec.labels, running=container.exit_code is None)
            for name, container in self.containers.items()
            if container.spec.labels[LABEL_SERVER] == server_id
        ]

    # --- Its own ----------------------------------------------------------------------------------------------------

    async def _hook(self, method: str, name: str) -> None:
        self.calls[method] += 1
        if hook := self.hooks.get(method):
            await hook(name)

    async def _run(self, container: FakeContainer) -> None:
        with suppress(ConnectionError, FileNotFoundError):
            await container.runtime.run()

    async def _remove(self, name: str) -> None:
        container = self.containers.pop(name.removeprefix("id-"), None)
        if container is None or container.task is None:
            return
        container.task.cancel()
        await asyncio.wait((container.task,))
        if not container.task.cancelled() and (crash := container.task.exception()):
            self.crashes.append(crash)
