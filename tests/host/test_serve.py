"""The life of a server: what keeps it from starting, how it stops, and what it finds of the one before it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from structlog.testing import capture_logs

from host import serve as serve_module
from host.engine import EngineError, Role
from host.errors import StartupError
from host.placement import Mount, Placement
from host.sandbox import Sandbox
from host.sandbox_host import SandboxHost
from host.serve import serve
from host.settings import Settings
from host.state import StateDir
from tests.host.fakes import TAG, FakeEngine, Gate
from tests.host.served import until

Log = list[MutableMapping[str, Any]]


class Opener:
    """Stands where ``DockerEngine`` stands, and opens the fake."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def open(self) -> AsyncIterator[FakeEngine]:
        yield self._engine


@pytest.fixture(autouse=True)
def fake_engine(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "DockerEngine", Opener(engine))


@pytest.fixture
def log() -> Iterator[Log]:
    """What is logged meanwhile."""
    with capture_logs() as entries:
        yield entries


Options = Callable[..., Settings]


@pytest.fixture
def options(state_dir: Path) -> Options:
    """Settings for a host on a free port."""
    return lambda **limits: Settings(**{"image": (TAG,), "port": 0, "state_dir": state_dir, "warm": 0, **limits})


def events(log: Log) -> list[str]:
    return [entry["event"] for entry in log]


async def url(log: Log, serving: asyncio.Task[None]) -> str:
    """Wait until it serves; return where."""
    await until(lambda: serving.done() or "serving" in events(log))
    if serving.done():
        serving.result()
    return str(next(entry["url"] for entry in log if entry["event"] == "serving"))


async def refusal(settings: Settings) -> str:
    """Start, which fails; return the sentence."""
    with pytest.raises(StartupError) as caught:
        await serve(settings)
    return str(caught.value)


async def post(client: aiohttp.ClientSession, path: str, **kwargs: Any) -> int:
    async with client.post(path, headers={"X-Session-ID": "s1"}, **kwargs) as response:
        await response.read()
        return response.status


async def test_serve_and_stop(options: Options, engine: FakeEngine, log: Log) -> None:
    engine.script.handlers["call"] = Gate()
    stop = anyio.Event()
    serving = asyncio.create_task(serve(options(), stop=stop))
    async with aiohttp.ClientSession(await url(log, serving)) as client:
        assert await post(client, "/create", json={"task_spec": {}}) == 200
        body = {"name": "bash", "input": {}}
        async with client.post("/call", json=body, headers={"X-Session-ID": "s1"}) as response:
            await response.content.readuntil(b"\r\n\r\n")
            stop.set()
            assert b"data: host_shutdown: the server is shutting down" in await response.content.read()
        await serving
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.get("/health")
    assert engine.containers == {}
    assert events(log)[-1] == "stopped"


async def test_what_lets_an_agent_end_its_session_by_memory_is_said_once(
    options: Options, engine: FakeEngine, log: Log
) -> None:
    stop = anyio.Event()
    serving = asyncio.create_task(serve(options(memory="256MiB"), stop=stop))
    async with aiohttp.ClientSession(await url(log, serving)) as client:
        assert await post(client, "/create", json={"task_spec": {}}) == 200
        stop.set()
        await serving
    assert events(log).count("agent_can_outlast_runtime") == 1  # the fake runtime does not say that it can't
    (entry,) = [entry for entry in log if entry["event"] == "files_can_use_up_memory"]
    assert (entry["memory"], entry["enough"]) == ("256.0MiB", "560.0MiB")


async def test_nothing_is_said_of_memory_where_all_is_well(options: Options, engine: FakeEngine, log: Log) -> None:
    engine.script.hello["agent_goes_first"] = True
    stop = anyio.Event()
    serving = asyncio.create_task(serve(options(), stop=stop))
    await url(log, serving)
    stop.set()
    await serving
    assert {"agent_can_outlast_runtime", "files_can_use_up_memory"}.isdisjoint(events(log))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_stop_it(options: Options, engine: FakeEngine, log: Log, number: int) -> None:
    serving = asyncio.create_task(serve(options()))
    await url(log, serving)
    os.kill(os.getpid(), number)
    await serving
    assert engine.containers == {}


async def test_a_second_signal_stops_it_while_it_starts(
    options: Options, engine: FakeEngine, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.stopping._SAME_WORD_S", 0)
    engine.script.handlers["list_tools"] = Gate()
    serving = asyncio.create_task(serve(options()))
    await engine.wait_created(1)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
    await asyncio.wait_for(serving, 10)
    assert engine.containers == {}


async def test_grace_that_is_over(options: Options, engine: FakeEngine, log: Log) -> None:
    engine.script.handlers["teardown"] = Gate()
    stop = anyio.Event()
    serving = asyncio.create_task(serve(options(shutdown_grace_s=0.05, teardown_timeout_s=0.3), stop=stop))
    async with aiohttp.ClientSession(await url(log, serving)) as client:
        assert await post(client, "/create", json={"task_spec": {}}) == 200
        stop.set()
        await asyncio.wait_for(serving, 10)
    assert "shutdown_grace_over" in events(log)
    assert engine.containers == {}


async def test_what_waits_does_not_outlast_the_grace(options: Options, engine: FakeEngine, log: Log) -> None:
    """An engine that hangs keeps neither what waits for a session nor the catalog alive beyond it."""

    async def hang(name: str) -> None:
        await asyncio.sleep(60)

    stop = anyio.Event()
    serving = asyncio.create_task(serve(options(shutdown_grace_s=0.2, warm=2, warm_max=2), stop=stop))
    await url(log, serving)
    await until(lambda: len(engine.of(Role.SESSION)) == 2)
    engine.hooks["remove"] = hang
    stop.set()
    await asyncio.wait_for(serving, 5)
    assert "shutdown_grace_over" in events(log)
    assert len(engine.containers) == 3
    del engine.hooks["remove"]
    for name in tuple(engine.containers):
        await engine.remove(name)


# --- What keeps it from starting --------------------------------------------------------------------------------------


async def test_port_that_is_taken(options: Options, engine: FakeEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = await refusal(options(port=port))
    assert words == f"can't listen on 127.0.0.1:{port}: Address already in use; choose another with --port"
    assert engine.created == 0


async def test_address_that_is_none(options: Options, engine: FakeEngine) -> None:
    assert (await refusal(options(host="no such host"))).startswith("can't listen on 'no such host': ")
    words = await refusal(options(host="192.0.2.1"))
    assert words.startswith("can't listen on 192.0.2.1:0: ") and "choose one of its own with --host" in words
    assert engine.created == 0


async def test_state_directory_in_use(options: Options, state_dir: Path, engine: FakeEngine) -> None:
    with closing(StateDir.open(state_dir)):
        assert "another ors-host" in await refusal(options())
    assert engine.created == 0


async def test_state_directory_too_long(options: Options, state_dir: Path) -> None:
    assert "too long for a unix socket path" in await refusal(options(state_dir=state_dir / ("d" * 100)))


async def test_in_a_container_without_its_directories(options: Options, engine: FakeEngine, tmp_path: Path) -> None:
    """The engine would look for them on its own machine."""
    engine.placement = Placement((Mount(tmp_path, Path("/srv")),))
    inside = {"state_dir": Path("/tmp/ors-nowhere")}
    try:
        assert "the state directory /tmp/ors-nowhere is only in there" in await refusal(options(**inside))
    finally:
        shutil.rmtree(inside["state_dir"])
    engine.placement = Placement((Mount(options().state_dir, Path("/srv")),))
    assert f"the data folder {tmp_path} is only in there" in await refusal(options(data=(str(tmp_path),)))


async def test_systemd_is_told(options: Options, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(0)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        stop = anyio.Event()
        serving = asyncio.create_task(serve(options(), stop=stop))
        with pytest.raises(BlockingIOError):  # not before it serves
            systemd.recv(100)
        await url(log, serving)
        stop.set()
        await serving
        assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1", b"STOPPING=1"]


async def test_image_missing(options: Options) -> None:
    assert "'nosuch:1' is not on this engine" in await refusal(options(image=("nosuch:1",)))


async def test_engine_that_does_not_answer(options: Options, engine: FakeEngine) -> None:
    async def refuse(name: str) -> None:
        raise EngineError("Connection refused")

    engine.hooks["list_ours"] = refuse
    assert await refusal(options()) == "the Docker engine doesn't answer: Connection refused"


async def test_nothing_is_left_of_a_failed_start(options: Options, engine: FakeEngine, state_dir: Path) -> None:
    engine.script.handlers["list_splits"] = []
    assert "has no split" in await refusal(options())
    assert engine.containers == {}
    StateDir.open(state_dir).close()


# --- What it finds ----------------------------------------------------------------------------------------------------


async def test_leftovers_of_a_host_that_crashed_are_removed(
    options: Options, engine: FakeEngine, state_dir: Path, log: Log
) -> None:
    async def refuse(name: str) -> None:
        raise EngineError("busy")

    engine.hooks["remove"] = refuse
    with closing(StateDir.open(state_dir)) as state:
        crashed = SandboxHost(engine, state, Settings())  # type: ignore[arg-type]
        async with Sandbox.open(crashed, engine.images[TAG], role=Role.CATALOG):
            pass
        state.sandbox_dir("0123456789ab").mkdir()
    del engine.hooks["remove"]
    (left,) = engine.containers
    stop = anyio.Event()
    serving = asyncio.create_task(serve(options(), stop=stop))
    await url(log, serving)
    assert left not in engine.containers
    assert len(engine.containers) == len(list((state_dir / "s").iterdir())) == 1
    stop.set()
    await serving


async def test_identity_stays(options: Options, log: Log) -> None:
    for _ in range(2):
        stop = anyio.Event()
        serving = asyncio.create_task(serve(options(), stop=stop))
        await url(log, serving)
        stop.set()
        await serving
        await until(lambda: events(log)[-1] == "stopped")
    ids = [entry["server"] for entry in log if entry["event"] == "serving"]
    assert len(set(ids)) == 1


async def test_it_answers_that_it_starts(options: Options, engine: FakeEngine) -> None:
    """Before the first container answers it is healthy, and whoever asks for more is told to ask again."""
    gate = anyio.Event()

    async def wait(_name: str) -> None:
        await gate.wait()

    engine.hooks["start"] = wait
    with socket.create_server(("127.0.0.1", 0)) as free:
        settings = options(port=free.getsockname()[1])
    url, stop = f"http://127.0.0.1:{settings.port}", anyio.Event()
    async with anyio.create_task_group() as tasks, aiohttp.ClientSession(url) as client:
        tasks.start_soon(lambda: serve(settings, stop=stop))
        await until(lambda: engine.created > 0)
        for path, status in (("/health", 200), ("/ready", 503), ("/list_environments", 503)):
            async with client.get(path) as response:
                assert response.status == status
                assert status == 200 or response.headers["X-Backend-State"] == "starting"
        gate.set()
        with anyio.fail_after(10):
            while True:  # never refused, never lost: told to wait, then answered
                async with client.get("/list_environments") as response:
                    if response.status == 200:
                        assert await response.json() == ["bashenv"]
                        break
                    assert response.status == 503
        stop.set()
