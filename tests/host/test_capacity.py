"""Places are a hard limit, given in order, and never lost."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from structlog.testing import capture_logs

from host.capacity import Capacity
from host.errors import CapacityExceeded
from tests.host.served import until


def make(limit: int, *, queue_size: int = 10, queue_timeout_s: float = 10) -> Capacity:
    return Capacity(limit, queue_size=queue_size, queue_timeout_s=queue_timeout_s)


async def test_never_more_than_the_limit() -> None:
    capacity, most, now = make(3, queue_size=100), 0, 0

    async def hold() -> None:
        nonlocal most, now
        async with capacity.place():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(hold)
    assert (most, capacity.free, capacity.waiting) == (3, 3, 0)


async def test_first_come_first_served() -> None:
    capacity, order = make(1), list[int]()

    async def hold(number: int) -> None:
        async with capacity.place():
            order.append(number)

    async with anyio.create_task_group() as tasks, capacity.place():
        for number in range(5):
            tasks.start_soon(hold, number)
            await until(lambda: capacity.waiting == number + 1)  # noqa: B023
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("queue_size", [0, 1])
async def test_the_queue_is_bounded(queue_size: int) -> None:
    capacity = make(1, queue_size=queue_size)
    async with anyio.create_task_group() as tasks, capacity.place():
        for _ in range(queue_size):
            tasks.start_soon(capacity.place().__aenter__)
        await until(lambda: capacity.waiting == queue_size)
        with pytest.raises(CapacityExceeded, match=f"all 1 sessions are in use and {queue_size} wait"):
            async with capacity.place():
                pass
        tasks.cancel_scope.cancel()


async def test_waiting_has_an_end() -> None:
    capacity = make(1, queue_timeout_s=0.01)
    async with capacity.place():
        with pytest.raises(CapacityExceeded, match="none became free within 0.01 s"):
            async with capacity.place():
                pass
        assert capacity.waiting == 0
    assert capacity.free == 1


async def test_a_place_comes_back_after_an_error_and_after_cancellation() -> None:
    capacity = make(1)
    with pytest.raises(ZeroDivisionError):
        async with capacity.place():
            raise ZeroDivisionError
    with anyio.CancelScope() as scope:
        async with capacity.place():
            scope.cancel()
            await anyio.sleep_forever()
    assert capacity.free == 1


async def test_who_is_cancelled_in_the_queue_takes_no_place() -> None:
    capacity = make(1)
    async with anyio.create_task_group() as tasks, capacity.place():
        tasks.start_soon(capacity.place().__aenter__)
        await until(lambda: capacity.waiting == 1)
        tasks.cancel_scope.cancel()
    assert (capacity.free, capacity.waiting) == (1, 0)


async def test_refusals_are_logged_but_not_each() -> None:
    capacity = make(1, queue_size=0)
    async with capacity.place():
        with capture_logs() as told:
            for _ in range(50):
                with pytest.raises(CapacityExceeded):
                    async with capacity.place():
                        pass
    assert [(entry["event"], entry["limit"]) for entry in told] == [("sessions_refused", 1)]
