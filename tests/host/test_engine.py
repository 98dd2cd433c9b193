"""The engine over a docker-py client with answers set by hand: what Docker is asked, and what is made of its answers."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import requests
from requests.exceptions import ReadTimeout

from host import docker_client
from host.docker_client import APIClient, APIError, ImageNotFound, NotFound
from host.docker_engine import DockerEngine
from host.engine import (
    ContainerRef,
    ContainerSpec,
    Death,
    EngineError,
    EngineSilent,
    Image,
    ImageMissing,
    Limits,
)
from host.errors import Reason, SandboxFailed
from host.isolation import Profile, Sizes, confine
from tests.host.fakes import FakeEngine

IMAGE = Image("env:1", "sha256:abc", {})


def api_error(status: int, words: str, kind: type[APIError] = APIError) -> APIError:
    """Return what docker-py raises for an answer of the engine."""
    response = requests.Response()
    response.status_code = status
    return kind("message", response, explanation=words)


class Events:
    """An event stream that gives what a test puts in; None breaks it off."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def put(self, item: dict[str, Any] | None) -> None:
        self._queue.put(item)

    def close(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._queue.get, None)


class Client(APIClient):
    """A client of no engine: methods answer from ``answers`` (a value, or an exception to raise), calls are kept."""

    def __init__(self) -> None:
        super().__init__(base_url="http://127.0.0.1:1", version="1.41")
        self.answers: dict[str, Any] = {}
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.streams: queue.SimpleQueue[tuple[Events, dict[str, Any]]] = queue.SimpleQueue()

    def _answer(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((method, args, kwargs))
        answer = self.answers.get(method)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer

    def inspect_image(self, *args: Any) -> Any:
        return self._answer("inspect_image", *args)

    def create_container(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer("create_container", *args, **kwargs) or {"Id": "made"}

    def start(self, *args: Any) -> Any:
        return self._answer("start", *args)

    def inspect_container(self, *args: Any) -> Any:
        return self._answer("inspect_container", *args)

    def logs(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer("logs", *args, **kwargs)

    def remove_container(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer("remove_container", *args, **kwargs)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer("wait", *args, **kwargs)

    def top(self, *args: Any) -> Any:
        return self._answer("top", *args)

    def containers(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer("containers", *args, **kwargs)

    def info(self) -> Any:
        return self._answer("info") or {}

    def events(self, **kwargs: Any) -> Any:  # type: ignore[override]
        stream = Events()
        self.streams.put((stream, kwargs))
        return stream


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.close()


@pytest.fixture
def engine(client: Client) -> DockerEngine:
    """An engine that watches for nothing."""
    return DockerEngine(client, {})


def spec(tmp_path: Path) -> ContainerSpec:
    return ContainerSpec(
        name="ors-a-b",
        image=IMAGE,
        socket_dir=tmp_path,
        labels={"ors-host.server": "a"},
        environment={"PYTHONHASHSEED": "0"},
        limits=Limits(memory_bytes=1 << 30, cpus=1.5),
        confinement=confine(Profile.STANDARD, Sizes(1 << 20, 1 << 20, inodes=1000, pids=64, memory_bytes=1 << 28)),
        extra_groups=(5,),
    )


@pytest.mark.parametrize("method", ["image", "create", "start", "death", "log_tail", "remove", "list_ours", "watch"])
def test_the_fake_has_the_same_face(method: str) -> None:
    def face(function: Callable[..., Any]) -> list[tuple[str, Any]]:
        return [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]

    assert face(getattr(FakeEngine, method)) == face(getattr(DockerEngine, method))


# --- Images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [{"ors-host.runtime": "1"}, None])
async def test_image(engine: DockerEngine, client: Client, labels: dict[str, str] | None) -> None:
    client.answers["inspect_image"] = {"Id": "sha256:abc", "Config": {"Labels": labels}}
    assert await engine.image("env:1") == Image("env:1", "sha256:abc", labels or {})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (api_error(404, "No such image", ImageNotFound), ImageMissing),
        (api_error(500, "broken"), EngineError),
        (requests.exceptions.ConnectionError("Connection refused"), EngineSilent),
        (ReadTimeout("Read timed out."), EngineSilent),
    ],
)
async def test_image_that_is_not_found(
    engine: DockerEngine, client: Client, error: Exception, expected: type[Exception]
) -> None:
    client.answers["inspect_image"] = error
    with pytest.raises(expected) as caught:
        await engine.image("env:1")
    assert type(caught.value) is expected


# --- Containers -------------------------------------------------------------------------------------------------------


async def test_a_container_is_shut_in(engine: DockerEngine, client: Client, tmp_path: Path) -> None:
    await engine.create(spec(tmp_path))
    ((_method, (image,), asked),) = client.calls
    assert image == IMAGE.id, "by id: a new build under the tag changes nothing"
    assert asked["name"] == "ors-a-b"
    assert asked["labels"] == {"ors-host.server": "a"}
    assert asked["user"] == "0:0"
    config = asked["host_config"]
    assert config["NetworkMode"] == "none"
    assert config["CapDrop"] == ["ALL"]
    assert config["CapAdd"] == ["SETUID", "SETGID", "KILL"]
    assert config["SecurityOpt"] == ["no-new-privileges:true"]
    assert config["RestartPolicy"] == {"Name": "no"}
    assert config["Init"] is True
    assert config["Memory"] == config["MemorySwap"] == 1 << 30
    assert config["NanoCpus"] == 1_500_000_000
    assert config["CpuShares"] == 256
    assert config["PidsLimit"] == 64
    assert "size=1048576" in config["Tmpfs"]["/tmp"]
    assert config["LogConfig"]["Config"]["max-size"] == "1m"
    assert not config.get("Privileged") and "Binds" not in config
    (mount,) = config["Mounts"]
    assert (mount["Target"], mount["Source"], mount["ReadOnly"]) == ("/run/ors", str(tmp_path), True)
    assert config["GroupAdd"] == ["5"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (api_error(404, "No such image: sha256:abc", ImageNotFound), Reason.IMAGE_NOT_FOUND),
        (api_error(404, "no such something", NotFound), Reason.START_FAILED),
        (api_error(409, "name in use"), Reason.START_FAILED),
        (api_error(500, "no space left on device"), Reason.START_FAILED),
        (requests.exceptions.ConnectionError("Connection refused"), Reason.START_FAILED),
    ],
)
async def test_create_that_is_refused(
    engine: DockerEngine, client: Client, tmp_path: Path, error: Exception, reason: Reason
) -> None:
    client.answers["create_container"] = error
    with pytest.raises(SandboxFailed) as caught:
        await engine.create(spec(tmp_path))
    assert caught.value.failure.reason is reason
    assert reason is Reason.IMAGE_NOT_FOUND or caught.value.failure.message != ""


@pytest.mark.parametrize("error", [api_error(404, "gone", NotFound), api_error(500, "oci runtime error")])
async def test_start_that_is_refused(engine: DockerEngine, client: Client, error: Exception) -> None:
    client.answers["start"] = error
    with pytest.raises(SandboxFailed) as caught:
        await engine.start("x", on_death=lambda: None)
    assert caught.value.failure.reason is Reason.START_FAILED


@pytest.mark.parametrize("error", [None, api_error(404, "gone", NotFound)])
async def test_removing_what_is_gone_is_fine(engine: DockerEngine, client: Client, error: Exception | None) -> None:
    client.answers["remove_container"] = error
    client.answers["inspect_container"] = api_error(404, "gone", NotFound)
    await engine.remove("x")
    assert client.calls[0] == ("remove_container", ("x",), {"force": True, "v": True})


async def test_what_is_said_to_be_gone_and_is_not(engine: DockerEngine, client: Client) -> None:
    client.answers["remove_container"] = api_error(404, "gone", NotFound)
    client.answers["inspect_container"] = {"State": {"Status": "running"}}
    with pytest.raises(EngineError, match="it is running"):
        await engine.remove("x")


@pytest.mark.parametrize("gone", [{"StatusCode": 137}, api_error(404, "gone", NotFound)])
async def test_a_removal_under_way_is_waited_for(engine: DockerEngine, client: Client, gone: Any) -> None:
    client.answers["remove_container"] = api_error(409, "removal in progress")
    client.answers["wait"] = gone
    await engine.remove("x")
    assert [(method, asked.get("condition")) for method, _args, asked in client.calls] == [
        ("remove_container", None),
        ("wait", "removed"),
    ]
    client.answers["wait"] = ReadTimeout("Read timed out.")
    with pytest.raises(EngineError, match="timed out"):
        await engine.remove("x")


async def test_removal_that_fails(engine: DockerEngine, client: Client) -> None:
    client.answers["remove_container"] = api_error(500, "device or resource busy")
    with pytest.raises(EngineError, match="device or resource busy"):
        await engine.remove("x")


@pytest.mark.parametrize("error", [api_error(404, "injected", NotFound), api_error(500, "injected")])
async def test_whatever_is_said_to_a_look_around_is_an_error_of_the_engines(
    engine: DockerEngine, client: Client, error: Exception
) -> None:
    """Also "not found", which nothing that is asked for everything can mean: it ended the host once."""
    client.answers["containers"] = error
    for look in (lambda: engine.list_ours("a"), engine.written_bytes):
        with pytest.raises(EngineError, match="injected"):
            await look()


async def test_list_ours(engine: DockerEngine, client: Client) -> None:
    client.answers["containers"] = [
        {"Id": "1", "Names": ["/ors-a-b"], "Labels": {"ors-host.server": "a"}, "State": "running"},
        {
            "Id": "2",
            "Names": None,
            "Labels": {"ors-host.server": "a"},
            "State": "removing",
        },  # as the engine lists one half removed
    ]
    labels = {"ors-host.server": "a"}
    assert await engine.list_ours("a") == [
        ContainerRef("1", "ors-a-b", labels, running=True),
        ContainerRef("2", "2", labels, running=False),
    ]
    ((_method, _args, asked),) = client.calls
    assert asked == {"all": True, "filters": {"label": "ors-host.server=a"}}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"Running": True, "ExitCode": 0, "OOMKilled": False}, None),
        ({"Running": False, "ExitCode": 3, "OOMKilled": False}, Death(3, False, "the � end")),
        ({"Running": False, "ExitCode": 137, "OOMKilled": True}, Death(137, True, "the � end")),
        (api_error(404, "gone", NotFound), Death(137, False, "", "removed")),
    ],
)
async def test_death(engine: DockerEngine, client: Client, state: Any, expected: Death | None) -> None:
    client.answers["inspect_container"] = state if isinstance(state, Exception) else {"State": state}
    client.answers["logs"] = b"the \xff end\n"
    assert await engine.death("x", wait_s=0) == expected


async def test_log_tail_is_bounded_and_of_nobody_is_empty(engine: DockerEngine, client: Client) -> None:
    client.answers["logs"] = b"x" * 100_000
    assert len(await engine.log_tail("x")) == 8192
    client.answers["logs"] = api_error(404, "gone", NotFound)
    assert await engine.log_tail("x") == ""


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({}, None),
        ({"SecurityOptions": None}, None),
        ({"SecurityOptions": ["name=seccomp,profile=default"], "DockerRootDir": "/var/lib/docker"}, None),
        ({"SecurityOptions": ["name=userns"], "DockerRootDir": "/var/lib/docker/231072.231073"}, (231072, 231073)),
    ],
)
def test_remapped_root(client: Client, info: dict[str, Any], expected: tuple[int, int] | None) -> None:
    assert DockerEngine(client, info).remapped_root == expected


# --- Deaths -----------------------------------------------------------------------------------------------------------


def died(name: str, time: int = 5) -> dict[str, Any]:
    return {"time": time, "Action": "die", "Actor": {"Attributes": {"name": name}}}


@asynccontextmanager
async def opened(client: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DockerEngine]:
    """Open the engine as the host does, over our client."""
    monkeypatch.setattr(docker_client, "connect", lambda **_kwargs: client)
    async with DockerEngine.open() as engine:
        yield engine


async def test_deaths_are_told_to_whom_they_concern(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(client, monkeypatch) as engine:
        told = asyncio.Event()
        await engine.start("mine", on_death=told.set)
        stream, asked = await anyio.to_thread.run_sync(client.streams.get)
        assert asked["filters"]["event"] == ["kill", "die", "destroy"]
        stream.put(died("somebody else's"))
        stream.put(died("mine"))
        await asyncio.wait_for(told.wait(), 10)
        client.answers["inspect_container"] = {"State": {"Running": False, "ExitCode": 1, "OOMKilled": False}}
        client.answers["logs"] = b""
        assert await engine.death("mine", wait_s=10) == Death(1, False, "")


async def test_a_broken_event_stream_is_opened_again_from_where_it_broke(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.docker_events._RETRY_S", 0.01)
    async with opened(client, monkeypatch) as engine:
        told = asyncio.Event()
        await engine.start("mine", on_death=told.set)
        first, _asked = await anyio.to_thread.run_sync(client.streams.get)
        first.put(died("other", time=1234))
        first.put({"unexpected": "shape"})
        second, asked = await anyio.to_thread.run_sync(client.streams.get)
        assert asked["since"] == 1234
        second.put(died("mine"))
        await asyncio.wait_for(told.wait(), 10)


async def test_a_stream_that_opens_as_the_engine_is_let_go_of_is_closed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its thread would read from it for ever, and who closes the engine waits for that."""
    opening, closing, stream = threading.Event(), threading.Event(), Events()

    def open_late(**_asked: Any) -> Events:
        opening.set()
        closing.wait(10)
        return stream

    monkeypatch.setattr(client, "events", open_late)
    async with opened(client, monkeypatch) as engine:
        await anyio.to_thread.run_sync(opening.wait)
        monkeypatch.setattr(engine._events, "_stopped", closing)
    assert not engine._events._thread.is_alive()


async def test_an_engine_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(docker_client.EngineUnavailable) as caught:
        async with DockerEngine.open():
            pass
    assert str(caught.value) == (
        "no Docker engine answers at tcp://127.0.0.1:1 (Connection refused); "
        "start Docker, or set DOCKER_HOST to where it listens"
    )


# --- What the engine says of what ends just now ----------------------------------------------------------------------


async def test_what_one_half_removed_has_written_is_not_asked_after(engine: DockerEngine, client: Client) -> None:
    client.answers["containers"] = [{"Names": ["/ors-a-b"], "SizeRw": 5}, {"Names": None, "SizeRw": 7}]
    assert await engine.written_bytes() == {"ors-a-b": 5}


async def test_one_that_has_ended_has_no_processes(engine: DockerEngine, client: Client) -> None:
    client.answers["top"] = {"Processes": [["17"], ["21"]]}
    assert await engine.processes("x") == [17, 21]
    client.answers["top"] = api_error(409, "container x is not running")
    assert await engine.processes("x") == []
    client.answers["top"] = api_error(500, "broken")
    with pytest.raises(EngineError, match="broken"):
        await engine.processes("x")


async def test_ids_of_what_was_removed_while_it_was_listed_are_forgotten(engine: DockerEngine, client: Client) -> None:
    engine._info = {"DockerRootDir": "/var/lib/docker"}
    one = {"Id": "1", "Names": ["/one"], "Labels": {}, "State": "running"}
    two = {"Id": "2", "Names": ["/two"], "Labels": {}, "State": "running"}
    client.answers["containers"] = [one, two]  # as it was before "one" was removed
    await engine.list_ours("a")
    client.answers["containers"] = [two]
    await engine.list_ours("a")
    assert engine.log_files("one") == []
    assert engine.log_files("two") != []


async def test_an_image_labelled_as_an_event_is(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine puts an image's labels among the attributes of an event, over its own."""
    async with opened(client, monkeypatch) as engine:
        told, wrong = asyncio.Event(), []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: wrong.append(context))
        await engine.start("mine", on_death=told.set)
        stream, _asked = await anyio.to_thread.run_sync(client.streams.get)
        for signal in ("nonsense", "9" * 5000, "9"):
            stream.put({"time": 5, "Action": "kill", "Actor": {"Attributes": {"name": "mine", "signal": signal}}})
        stream.put(died("mine"))
        await asyncio.wait_for(told.wait(), 10)
        assert wrong == []
        client.answers["inspect_container"] = {"State": {"Running": False, "ExitCode": 137, "OOMKilled": False}}
        client.answers["logs"] = b""
        monkeypatch.setattr("host.docker_engine._REMOVAL_WAIT_S", 0)
        assert await engine.death("mine", wait_s=10) == Death(137, False, "", "killed")
