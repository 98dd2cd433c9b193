"""Which calls are known, for how long, and how many at once."""

from __future__ import annotations

import asyncio

import pytest

from host import calls as calls_module
from host.calls import Calls, KeptResults, Outcome, UnknownCall
from host.errors import TooManyCalls
from tests.host.served import until

END = Outcome("end", "x" * 100)


def make(*, max_in_flight: int = 10, linger_s: float = 60, max_kept_bytes: int = 10_000) -> Calls:
    return Calls(max_in_flight=max_in_flight, linger_s=linger_s, results=KeptResults(max_kept_bytes))


async def test_a_call_is_found_in_flight_and_after() -> None:
    calls = make()
    call = calls.start(None)
    assert calls.find(call.id) is call
    assert call.outcome is None
    calls.finish(call, END)
    assert calls.find(call.id) is call
    assert call.outcome == END
    assert (calls.started, calls.in_flight) == (1, 0)
    calls.close(END)


async def test_the_first_outcome_holds() -> None:
    calls = make()
    call = calls.start(None)
    call.finish(END)
    call.finish(Outcome("error", "late"))
    assert call.outcome == END


async def test_all_who_wait_get_the_outcome_and_waiting_may_end_before() -> None:
    call = make().start(None)
    assert await call.wait(0) is None
    waiting = [asyncio.create_task(call.wait(10)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    call.finish(END)
    assert await asyncio.gather(*waiting[1:]) == [END, END]
    assert waiting[0].cancelled()
    assert await call.wait(0) == END


async def test_ids_of_the_host_are_unlike_each_other_and_long() -> None:
    calls = make(max_in_flight=200)
    ids = {calls.start(None).id for _ in range(100)}
    assert len(ids) == 100
    assert all(len(call_id) > 32 and call_id.isascii() for call_id in ids)


async def test_whose_id_it_is() -> None:
    calls = make()
    assert calls.find("trace-1") is None
    with pytest.raises(UnknownCall):
        calls.find("call_0000")


async def test_time_runs_out() -> None:
    calls = make(linger_s=0.01)
    call = calls.start("trace-1")
    calls.finish(call, END)

    def forgotten() -> bool:
        try:
            return calls.find("trace-1") is None
        except UnknownCall:
            return True

    await until(forgotten)
    with pytest.raises(UnknownCall):
        calls.find("trace-1")


async def test_each_result_has_its_own_time_with_one_timer_for_all() -> None:
    calls = make(linger_s=0.1)
    calls.finish(calls.start("early"), END)
    await asyncio.sleep(0.06)
    calls.finish(calls.start("late"), END)
    await asyncio.sleep(0.06)
    with pytest.raises(UnknownCall):
        calls.find("early")
    assert calls.find("late") is not None
    await asyncio.sleep(0.08)
    with pytest.raises(UnknownCall):
        calls.find("late")
    calls.finish(calls.start("after all were gone"), END)
    await asyncio.sleep(0.15)
    with pytest.raises(UnknownCall):
        calls.find("after all were gone")


async def test_the_oldest_results_go_first() -> None:
    calls = make(max_kept_bytes=250)
    made = [calls.start(f"t{index}") for index in range(4)]
    for call in made[:3]:
        calls.finish(call, END)
    with pytest.raises(UnknownCall):
        calls.find("t0")
    assert calls.find("t1") is made[1] and calls.find("t2") is made[2]
    assert calls.find("t3") is made[3], "a call in flight is never forgotten"
    calls.close(END)


async def test_a_result_larger_than_all_that_is_kept_still_reaches_who_waits() -> None:
    calls = make(max_kept_bytes=10)
    call = calls.start(None)
    calls.finish(call, END)
    assert call.outcome == END
    with pytest.raises(UnknownCall):
        calls.find(call.id)


async def test_forgotten_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "_MAX_REMEMBERED_IDS", 2)
    calls = make(max_kept_bytes=0)
    for name in ("a", "b", "c"):
        calls.finish(calls.start(name), END)
    assert calls.find("a") is None
    for name in ("b", "c"):
        with pytest.raises(UnknownCall):
            calls.find(name)


async def test_ids_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "_MAX_REMEMBERED_IDS", 2)
    calls = make()
    for name in ("a", "b", "c"):
        calls.remember(name)
    assert calls.find("a") is None
    with pytest.raises(UnknownCall):
        calls.find("c")


async def test_too_many() -> None:
    calls = make(max_in_flight=2)
    first, _second = calls.start(None), calls.start(None)
    with pytest.raises(TooManyCalls, match="2 calls are in flight"):
        calls.start(None)
    calls.finish(first, END)
    calls.start(None)
    calls.close(END)


async def test_close_ends_what_is_in_flight() -> None:
    calls = make()
    call, done = calls.start("a"), calls.start("b")
    calls.finish(done, END)
    calls.close(Outcome("error", "deleted"))
    assert call.outcome == Outcome("error", "deleted")
    assert done.outcome == END
    assert calls.find("a") is None


async def test_the_memory_for_results_is_shared_by_all_sessions() -> None:
    results = KeptResults(250)
    first, second = (Calls(max_in_flight=5, linger_s=60, results=results) for _ in range(2))
    for number, calls in enumerate((first, second, first)):
        calls.finish(calls.start(f"trace-{number}"), END)
    with pytest.raises(UnknownCall):
        first.find("trace-0")
    assert second.find("trace-1") is not None
    assert first.find("trace-2") is not None
    first.close(END)
    assert results.held_bytes == 100
    second.close(END)
    assert results.held_bytes == 0
