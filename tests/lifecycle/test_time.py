"""Times that are decided by a clock that is passed in: nothing here waits for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from host.calls import KeptResults
from host.capacity import Capacity
from host.engine import CreateUnclear, EngineError, Role
from host.errors import CapacityExceeded, Failure, Reason
from host.origin import SessionSpec
from host.patience import Patience
from host.pool import Pool
from host.recovery import recover
from host.sandbox import Sandbox
from host.sandbox_host import LATE_S, SandboxHost
from host.sandbox_spec import container_spec
from host.session import Session
from host.sessions import Sessions
from host.settings import Settings
from host.state import StateDir
from host.timeline import Timeline
from tests.host.conftest import state_dir
from tests.host.fakes import NO_ANSWER, TAG, FakeEngine
from tests.host.served import until

__all__ = ["state_dir"]

IDLE_S, AGE_S = 900.0, 86400.0


class Now:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.open() as engine:
        yield engine
        assert engine.containers == {}


def pool_of(host: SandboxHost, now: Now) -> Pool:
    return Pool(host, Capacity(1, queue_size=0, queue_timeout_s=1), lambda: (), clock=now)


def make(engine: FakeEngine, state: StateDir, now: Now, **settings: Any) -> tuple[Session, SandboxHost]:
    """A session that is not running yet."""
    values = {"idle_timeout_s": IDLE_S, "max_age_s": AGE_S, **settings}
    host = SandboxHost(engine, state, Settings(**values), clock=now)  # type: ignore[arg-type]
    spec = SessionSpec(sid="s1", environment="BashEnv", image=engine.images[TAG], task_spec={}, secrets={})
    pool = pool_of(host, now)
    results, timeline = KeptResults(host.settings.max_kept_results), Timeline("0", "s1", "BashEnv", TAG)
    return Session(spec, host=host, pool=pool, results=results, clock=now, timeline=timeline), host


async def check_expiry(session: Session) -> None:
    """Let the session look at its clock, as it does when the time has come."""
    with anyio.move_on_after(0.01):
        await session._expire()


async def test_a_renewal_at_the_instant_of_expiry_is_decided_once(engine: FakeEngine, state_dir: Path) -> None:
    """Whichever comes first at that instant decides, and the other abides by it."""
    now = Now()
    state = StateDir.open(state_dir)
    session, _host = make(engine, state, now)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run)
        await session.wait_created()

        now.s += IDLE_S  # the instant; the request is first
        with session.request():
            await check_expiry(session)
            assert session.failure is None
        await check_expiry(session)
        assert session.failure is None, "renewed at that instant: the time begins again"

        now.s += IDLE_S - 0.001
        await check_expiry(session)
        assert session.failure is None
        now.s += 0.001  # the instant; the clock is first
        await check_expiry(session)
        assert session.failure is not None and session.failure.reason is Reason.EXPIRED
        with session.request(), pytest.raises(Exception, match="expired"):  # too late, and it changes nothing
            session.call("bash", {}, None)
        await session.wait_closed()
        assert session.failure.reason is Reason.EXPIRED
    state.close()


async def test_a_busy_session_gets_old_but_not_idle(engine: FakeEngine, state_dir: Path) -> None:
    engine.script.handlers["call"] = NO_ANSWER
    now = Now()
    state = StateDir.open(state_dir)
    session, _host = make(engine, state, now)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run)
        await session.wait_created()
        call = session.call("bash", {}, None)
        now.s += AGE_S - 1
        await check_expiry(session)
        assert session.failure is None
        now.s += 1
        await check_expiry(session)
        await session.wait_closed()
        assert call.outcome is not None and "maximum age" in call.outcome.text
    state.close()


async def test_patience_ends(engine: FakeEngine, state_dir: Path) -> None:
    """A teardown that is stuck is cut off at once; there is still time for the removal."""
    engine.script.handlers["teardown"] = NO_ANSWER
    now = Now()
    state = StateDir.open(state_dir)
    session, host = make(engine, state, now, teardown_timeout_s=3600)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.run)
        await session.wait_created()
        (container,) = engine.of(Role.SESSION)
        session.close(Failure(Reason.DELETED, "the session was deleted"))
        await container.runtime.wait_received("teardown")
        host.patience.end(5)
        with anyio.fail_after(10):
            await session.wait_closed()
    assert engine.of(Role.SESSION) == []
    state.close()


async def test_an_effort_that_begins_too_late_has_no_time() -> None:
    patience = Patience()
    patience.end(0)
    with patience.effort(3600, vital=True) as vital:
        await anyio.sleep_forever()
    with patience.effort(3600, vital=False) as other:
        await anyio.sleep_forever()
    assert vital.cancelled_caught and other.cancelled_caught


async def test_what_is_left_over_holds_its_place(engine: FakeEngine, state_dir: Path) -> None:
    """Refused by the engine, or made by it without an answer: the place is free when the sweep has seen to it."""
    state = StateDir.open(state_dir)
    host = SandboxHost(engine, state, Settings())  # type: ignore[arg-type]
    capacity = Capacity(1, queue_size=1, queue_timeout_s=0.05, leftovers=lambda: host.leftovers)

    async def refuse(name: str) -> None:
        raise EngineError("device or resource busy")

    engine.hooks["remove"] = refuse
    async with capacity.place(), Sandbox.open(host, engine.images[TAG], role=Role.SESSION):
        assert (capacity.free, host.leftovers) == (0, 0)
    assert (capacity.free, host.leftovers) == (0, 1)
    with pytest.raises(CapacityExceeded):
        async with capacity.place():
            pass
    with pytest.raises(EngineError):
        await host.sweep()
    assert capacity.free == 0
    del engine.hooks["remove"]
    async with anyio.create_task_group() as tasks:
        waiting = Capacity(1, queue_size=1, queue_timeout_s=10, leftovers=lambda: host.leftovers)
        got = anyio.Event()

        async def wait() -> None:
            async with waiting.place():
                got.set()

        tasks.start_soon(wait)
        await until(lambda: waiting.waiting == 1)
        assert await host.sweep() == 1
        waiting.recount()
        await got.wait()
    assert (capacity.free, host.leftovers) == (1, 0)
    state.close()


async def test_a_creation_without_an_answer_is_counted_until_it_can_not_be_late(
    engine: FakeEngine, state_dir: Path
) -> None:
    state, now = StateDir.open(state_dir), Now()
    host = SandboxHost(engine, state, Settings(), clock=now)  # type: ignore[arg-type]

    async def lose(name: str) -> None:
        raise CreateUnclear(Failure(Reason.START_FAILED, "Connection aborted"))

    engine.hooks["create"] = lose
    with pytest.raises(CreateUnclear):
        async with Sandbox.open(host, engine.images[TAG], role=Role.SESSION):
            pass
    now.s += 10 * LATE_S  # an engine that doesn't answer has had no time yet
    for passed_s in (LATE_S / 2, LATE_S / 2, 0):
        assert host.leftovers == 1
        await host.sweep()
        now.s += passed_s
    assert host.leftovers == 0
    state.close()


async def test_what_a_killed_host_asked_for_and_comes_late_is_counted_and_removed(
    engine: FakeEngine, state_dir: Path
) -> None:
    """Three that the engine was asked to create: one is there, one comes, one never. None of them is ever one too many."""
    now, asked = Now(), []
    with closing(StateDir.open(state_dir)) as state:
        killed = SandboxHost(engine, state, Settings(), clock=now)  # type: ignore[arg-type]
        for _ in range(3):
            sandbox_id = state.new_sandbox_id()
            state.sandbox_dir(sandbox_id).mkdir()
            name = killed.container_name(sandbox_id)
            asked.append(container_spec(killed, engine.images[TAG], name, sandbox_id, role=Role.SESSION, port=None))
        next_host = SandboxHost(engine, state, Settings(), clock=now)  # type: ignore[arg-type]
        await engine.create(asked[0])
        async with anyio.create_task_group() as tasks:
            await recover(next_host, Sessions(host=next_host, pool=pool_of(next_host, now), tasks=tasks, clock=now))
        assert (next_host.leftovers, engine.of(Role.SESSION)) == (2, [])
        await engine.create(asked[1])
        assert (await next_host.sweep(), next_host.leftovers, engine.of(Role.SESSION)) == (1, 1, [])
        now.s += LATE_S
        assert (await next_host.sweep(), next_host.leftovers) == (0, 0)
