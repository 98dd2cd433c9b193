"""Sandboxes are removed whatever happens, and what could not be removed is swept up later, by nobody but its owner."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from host.engine import EngineError, Role
from host.errors import Reason, SandboxFailed
from host.sandbox import Sandbox
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
