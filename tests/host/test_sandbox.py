"""Sandboxes are removed whatever happens, and what could not be removed is swept up later, by nobody but its owner."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from host.engine import ContainerRef, EngineError, Role
from host.errors import Reason, SandboxFailed
from host.kinds import LABEL_PORT
from host.netns import NoEntry
from host.runtime_channel import RuntimeChannel
from host.sandbox import Sandbox
from host.sandbox_channel import channel_of
from host.sandbox_host import SandboxHost
from host.settings import Settings
from host.state import StateDir
from sandbox_runtime.messages import Method
from tests.host.fakes import NO_ANSWER, TAG, FakeEngine, FakeRuntime
from tests.host.served import until


@pytest.fixture
async def host(state_dir: Path, engine: FakeEngine) -> AsyncIterator[SandboxHost]:
    """What sandboxes share, over the fake engine."""
    with closing(StateDir.open(state_dir)) as state:
        yield SandboxHost(engine, state, Settings(start_timeout_s=5))  # type: ignore[arg-type]


def directories(host: SandboxHost) -> int:
    return len(host.state.sandbox_ids())


async def test_open_and_gone(host: SandboxHost, engine: FakeEngine) -> None:
    async with Sandbox.open(host, engine.images[TAG], role=Role.SESSION) as sandbox:
        assert sandbox.environments == ("BashEnv",)
        assert not sandbox.failed
        assert await sandbox.request(Method.NUM_TASKS, {}, timeout_s=5) == 3
        assert (len(engine.containers), directories(host)) == (1, 1)
    assert (len(engine.containers), directories(host)) == (0, 0)


async def test_gone_after_an_error(host: SandboxHost, engine: FakeEngine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Sandbox.open(host, engine.images[TAG], role=Role.SESSION):
            raise ZeroDivisionError
    assert (len(engine.containers), directories(host)) == (0, 0)


async def test_gone_after_cancellation_even_if_removal_is_slow(host: SandboxHost, engine: FakeEngine) -> None:
    go_on = asyncio.Event()

    async def slow(name: str) -> None:
        await go_on.wait()

    engine.hooks["remove"] = slow
    engine.script.handlers["call"] = NO_ANSWER
    async with anyio.create_task_group() as tasks:

        async def live() -> None:
            async with Sandbox.open(host, engine.images[TAG], role=Role.SESSION) as sandbox:
                await sandbox.request(Method.CALL, {}, timeout_s=60)

        tasks.start_soon(live)
        await engine.wait_created(1)
        await next(iter(engine.containers.values())).runtime.wait_received("call")
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await until(lambda: engine.calls["remove"] == 1)
            go_on.set()
    assert (len(engine.containers), directories(host)) == (0, 0)


async def test_socket_directory_that_cannot_be_made(host: SandboxHost, engine: FakeEngine) -> None:
    (host.state.path / "s").rmdir()
    with pytest.raises(SandboxFailed) as caught:
        async with Sandbox.open(host, engine.images[TAG], role=Role.SESSION):
            pass
    assert caught.value.failure.reason is Reason.START_FAILED
    assert str(caught.value) == "start_failed: the socket directory could not be made: No such file or directory"
    assert engine.created == 0
    (host.state.path / "s").mkdir()


async def test_starts_at_the_same_time_are_bounded(state_dir: Path, engine: FakeEngine) -> None:
    now = most = 0

    async def count(name: str) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.wait_all_tasks_blocked()
        now -= 1

    engine.hooks["start"] = count
    with closing(StateDir.open(state_dir)) as state:
        host = SandboxHost(engine, state, Settings(start_concurrency=2))  # type: ignore[arg-type]

        async def live() -> None:
            async with Sandbox.open(host, engine.images[TAG], role=Role.SESSION):
                pass

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(live)
    assert most == 2


async def test_owner_of_the_socket_under_remapping(state_dir: Path) -> None:
    async with FakeEngine.open() as engine:
        engine.remapped_root = (os.geteuid(), os.getegid())
        with closing(StateDir.open(state_dir)) as state:
            host = SandboxHost(engine, state, Settings())  # type: ignore[arg-type]
            async with Sandbox.open(host, engine.images[TAG], role=Role.SESSION):
                (directory,) = (state_dir / "s").iterdir()
                assert (directory / "host.sock").stat().st_uid == os.geteuid()


async def test_gone_although_its_channel_fails_to_close(
    host: SandboxHost, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = RuntimeChannel.aclose

    async def fail(channel: RuntimeChannel) -> None:
        await close(channel)
        raise ZeroDivisionError

    monkeypatch.setattr(RuntimeChannel, "aclose", fail)
    with pytest.raises(ZeroDivisionError):
        async with Sandbox.open(host, engine.images[TAG], role=Role.SESSION):
            pass
    assert (len(engine.containers), directories(host)) == (0, 0)


async def test_what_an_image_of_ours_says_of_a_port_is_nothing_to_us(
    host: SandboxHost, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels are the image's author's: one that makes no sense ended the host that took the image over."""
    ours = engine.images[TAG]
    image = replace(ours, labels={**ours.labels, LABEL_PORT: "nonsense"})
    async with Sandbox.open(host, image, role=Role.SESSION) as sandbox:
        (container,) = engine.containers.values()
        left = ContainerRef("1", sandbox.name, {**container.spec.labels, LABEL_PORT: "nonsense"}, running=True)
        monkeypatch.setattr("host.sandbox._ADOPT_TIMEOUT_S", 0)
        with pytest.raises(
            SandboxFailed, match="did not come back"
        ):  # a container has an engine's and its image's labels
            async with Sandbox.adopt(host, left):
                pass
    assert (len(engine.containers), directories(host)) == (0, 0)


# --- A server's network ---


class HalfwayEngine:
    """An engine that says once which process a container's is, and then fails as it is told."""

    def __init__(self, then: Callable[[], Awaitable[None]]) -> None:
        self._answers = [None, then]

    async def init_process(self, name: str) -> tuple[str, int]:
        if (then := self._answers.pop(0)) is not None:
            await then()
        return "id", 1


class Network:
    """What stands for a container's network."""

    def __init__(self) -> None:
        self.open = True

    def close(self) -> None:
        self.open = False


async def _refuse() -> None:
    raise EngineError("Connection refused")


async def _hang() -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("then", [_refuse, _hang])
async def test_a_network_that_is_not_known_to_be_the_containers_is_let_go_of(
    host: SandboxHost, then: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network()

    async def enter(pid: int, container_id: str) -> Network:
        return network

    monkeypatch.setattr(host.namespaces, "enter", enter)
    monkeypatch.setattr(host, "engine", HalfwayEngine(then))
    channel = channel_of(host, "x", "0123456789ab", 8080)
    await channel.listen(owner=None)
    with pytest.raises((SandboxFailed, TimeoutError)), anyio.fail_after(0.05):
        await channel.wait_hello()
    await channel.aclose()
    host.state.forget("0123456789ab")
    assert not network.open


async def test_what_all_sandboxes_share_ends_with_the_host(host: SandboxHost) -> None:
    def threads() -> int:
        return sum(thread.name.startswith("netns") for thread in threading.enumerate())

    before = threads()
    with suppress(NoEntry):
        await host.namespaces.check()
    assert threads() == before + 1
    host.close()
    await until(lambda: threads() == before)


# --- Sweeping ---------------------------------------------------------------------------------------------------------


async def leave_behind(host: SandboxHost, engine: FakeEngine) -> None:
    """Open and close a sandbox whose removal the engine refuses."""

    async def refuse(name: str) -> None:
        raise EngineError("device or resource busy")

    engine.hooks["remove"] = refuse
    async with Sandbox.open(host, engine.images[TAG], role=Role.SESSION):
        pass
    del engine.hooks["remove"]


async def test_refused_removal_is_swept_up(host: SandboxHost, engine: FakeEngine) -> None:
    async with Sandbox.open(host, engine.images[TAG], role=Role.SESSION) as alive:
        await leave_behind(host, engine)
        assert (len(engine.containers), directories(host)) == (2, 1)
        assert await host.sweep() == 1
        assert list(engine.containers) == [alive.name]
        assert await host.sweep() == 0
        assert directories(host) == 1


async def test_one_that_cannot_be_removed_keeps_no_other(host: SandboxHost, engine: FakeEngine) -> None:
    for _ in range(3):
        await leave_behind(host, engine)
    stuck = f"id-{next(iter(engine.containers))}"

    async def refuse(name: str) -> None:
        if name == stuck:
            raise EngineError("device or resource busy")

    engine.hooks["remove"] = refuse
    with pytest.raises(EngineError, match="busy"):
        await host.sweep()
    assert len(engine.containers) == 1
    del engine.hooks["remove"]
    assert await host.sweep() == 1


async def test_a_sweep_leaves_other_hosts_alone(engine: FakeEngine, state_dir: Path) -> None:
    with closing(StateDir.open(state_dir / "a")) as a, closing(StateDir.open(state_dir / "b")) as b:
        one = SandboxHost(engine, a, Settings())  # type: ignore[arg-type]
        other = SandboxHost(engine, b, Settings())  # type: ignore[arg-type]
        async with Sandbox.open(one, engine.images[TAG], role=Role.SESSION):
            assert await other.sweep() == 0
            assert len(engine.containers) == 1


async def test_directories_of_a_host_that_crashed(host: SandboxHost) -> None:
    (host.state.sandbox_dir("0123456789ab") / "x").mkdir(parents=True)
    assert await host.sweep() == 0
    assert directories(host) == 0


async def test_a_sweep_while_a_sandbox_starts(host: SandboxHost, engine: FakeEngine) -> None:
    async def sweep(name: str) -> None:
        assert await host.sweep() == 0

    async def sweep_too(runtime: FakeRuntime) -> None:
        assert await host.sweep() == 0
        runtime.send(runtime.hello_message(runtime.container.spec.socket_dir))

    engine.hooks.update(create=sweep, start=sweep)
    engine.script.on_connect = sweep_too
    async with Sandbox.open(host, engine.images[TAG], role=Role.SESSION):
        assert (len(engine.containers), directories(host)) == (1, 1)


async def test_an_engine_that_fails(host: SandboxHost, engine: FakeEngine) -> None:
    async def refuse(name: str) -> None:
        raise EngineError("Connection refused")

    engine.hooks["list_ours"] = refuse
    with pytest.raises(EngineError, match="Connection refused"):
        await host.sweep()
