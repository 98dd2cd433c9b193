"""A real ``ors-host`` process on real containers, and the two public clients pointed at it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp

from host import docker_client
from tests.docker import on_ray

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 60


@dataclass
class Reply:
    """What a stream ended with: its events, by name, in order."""

    call_id: str | None
    event: str
    data: str
    chunks: int

    @property
    def result(self) -> dict[str, Any]:
        """The JSON of the ``end`` event."""
        assert self.event == "end", self.data
        value = json.loads(self.data)
        assert isinstance(value, dict)
        return value

    @property
    def text(self) -> str:
        """The first block's text of a successful call."""
        assert self.result["ok"], self.result
        return str(self.result["output"]["blocks"][0]["text"])


class StreamCut(AssertionError):
    """A stream ended without an ``end`` or an ``error``."""


class RunningHost:
    """One host process. Its state directory is its own, so no other host's containers are its."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, state_dir: Path, log: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.state_dir = state_dir
        self.log_path = log

    @property
    def server_id(self) -> str:
        return (self.state_dir / "server-id").read_text()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") + on_ray.node_log(self.state_dir)

    def containers(self, role: str | None = None) -> list[dict[str, Any]]:
        """The containers that carry this host's label, running or not."""
        labels = [f"ors-host.server={self.server_id}"] + ([f"ors-host.role={role}"] if role else [])
        with contextlib.closing(docker_client.connect()) as client:
            found: list[dict[str, Any]] = client.containers(all=True, filters={"label": labels})
            return found

    def container(self, sid: str) -> dict[str, Any]:
        """A session's container, as the engine lists it. Raises LookupError if it has none."""
        found = [c for c in self.containers(role="session") if self._sid(c) == sid]
        if len(found) != 1:
            raise LookupError(f"{len(found)} containers for session {sid}")
        return found[0]

    def session_containers(self) -> list[dict[str, Any]]:
        """The containers that sessions have: without those that only wait for one."""
        return [c for c in self.containers(role="session") if self._sid(c) is not None]

    def _sid(self, container: dict[str, Any]) -> str | None:
        note = self.state_dir / "sessions" / container["Labels"]["ors-host.sandbox"]
        with contextlib.suppress(FileNotFoundError):
            return str(json.loads(note.read_text())["session"])
        return None

    def inspect(self, sid: str) -> dict[str, Any]:
        """``docker inspect`` of a session's container."""
        container = self.container(sid)
        with contextlib.closing(docker_client.connect()) as client:
            data: dict[str, Any] = client.inspect_container(container["Id"])
            return data

    def directories(self) -> list[Path]:
        return list((self.state_dir / "s").iterdir())

    @contextmanager
    def tidied(self) -> Iterator[Self]:
        """Check at the end that it has no session's container and no directory but the catalog's."""
        yield self
        assert self.containers(role="session") == []
        assert len(self.directories()) == 1

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with aiohttp.ClientSession(self.url, timeout=aiohttp.ClientTimeout(120)) as http:
            yield Client(http)

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Client:
    """The raw protocol."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http

    async def create(self, task: dict[str, Any] | None = None, **fields: Any) -> Session:
        """Create a session and check that it could be."""
        session = Session(self.http, str(uuid.uuid4()))
        status, body = await session.post("/create", {"task_spec": task or {}, **fields})
        assert status == 200, body
        return session

    def session(self, sid: str | None = None) -> Session:
        return Session(self.http, sid or str(uuid.uuid4()))


class Session:
    """One session id, used with the raw protocol."""

    def __init__(self, http: aiohttp.ClientSession, sid: str) -> None:
        self.http = http
        self.sid = sid
        self.headers = {"X-Session-ID": sid}

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        async with self.http.post(path, json=body, headers={**self.headers, **headers}) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(path, headers=self.headers) as response:
            return response.status, await response.json()

    @asynccontextmanager
    async def calling(self, name: str, call_id: str | None = None, **tool_input: Any) -> AsyncIterator[CallStream]:
        """A call whose stream is open: its ``task_id`` has arrived."""
        body: dict[str, Any] = {"name": name, "input": tool_input}
        if call_id is not None:
            body["task_id"] = call_id
        headers = {**self.headers, "Accept": "text/event-stream"}
        async with self.http.post("/any/call", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            stream = CallStream(response)
            await stream.start()
            yield stream

    async def call(self, name: str, call_id: str | None = None, **tool_input: Any) -> Reply:
        async with self.calling(name, call_id, **tool_input) as stream:
            return await stream.reply()

    async def bash(self, command: str, **fields: Any) -> str:
        return (await self.call("bash", command=command, **fields)).text

    async def delete(self) -> None:
        status, body = await self.post("/delete")
        assert (status, body) == (200, {"sid": self.sid})


class CallStream:
    """The event stream of one call, read strictly: unlike the clients', this parser strips nothing."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._chunks: list[str] = []
        self._first: tuple[str, str] | None = None
        self.call_id: str | None = None

    async def start(self) -> None:
        event, data = await self._event()
        if event == "task_id":
            self.call_id = data
        else:
            self._first = (event, data)

    async def reply(self) -> Reply:
        while True:
            event, data = self._first or await self._event()
            self._chunks.append(data)
            if event != "chunk":
                return Reply(self.call_id, event, "".join(self._chunks), len(self._chunks))

    async def _event(self) -> tuple[str, str]:
        name, lines = None, []
        async for raw in self._response.content:
            line = raw.decode().rstrip("\r\n")
            if line.startswith(":"):
                continue
            if line:
                field, value = line.split(": ", 1)
                if field == "event":
                    name = value
                else:
                    lines.append(value)
            elif name is not None:
                return name, "\n".join(lines)
        raise StreamCut(f"the stream ended in the middle, after {name} {lines}")


@contextmanager
def running_host(
    *images: str,
    env: dict[str, str] | None = None,
    state_dir: Path | None = None,
    port: int | None = None,
    prefix: Sequence[str] = (),
    **settings: Any,
) -> Iterator[RunningHost]:
    """Start a host and wait until it serves; at the end stop it if it runs, and check that it left nothing behind.

    ``settings`` are flags: ``max_sessions=4`` is ``--max-sessions 4``. Unless told otherwise no container is started
    beforehand: most tests count them. ``prefix`` is a command that runs the host, its words before the host's.
    """
    settings = {"warm": 0, **settings}
    directory = Path(tempfile.mkdtemp(prefix="ors-", dir="/tmp"))
    state = state_dir or directory / "state"
    own_state = state
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        if on_ray.IS_CHOSEN and "engine" not in settings:
            settings = stack.enter_context(on_ray.ray_instead(state, env or {}, settings))
            own_state = directory / "front"
        port = port or free_port()
        log = directory / "host.log"
        command = [*prefix, str(Path(sys.executable).with_name("ors-host")), "--port", str(port)]
        command += ["--state-dir", str(own_state)]
        for image in images:
            command += ["--image", image]
        for name, value in settings.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **(env or {})})
        host = RunningHost(process, port, state, log)
        try:
            _wait_serving(host)
            yield host
            if process.poll() is None:
                assert host.stop() == 0, host.log
            assert host.containers() == []
            assert host.directories() == []
        except BaseException:
            print(host.log)
            raise
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            with contextlib.closing(docker_client.connect()) as client:
                for container in host.containers() if (state / "server-id").exists() else []:
                    client.remove_container(container["Id"], force=True)


def _wait_serving(host: RunningHost) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while " serving " not in host.log_path.read_text(errors="replace"):
        assert host.process.poll() is None, f"the host ended with exit code {host.process.returncode}"
        assert time.monotonic() < deadline, "the host does not serve"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def until(condition: Any, timeout_s: float = 20) -> None:
    """Wait until a condition that nothing announces is true, or fail."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the engine sets no event
            await asyncio.sleep(0.02)
