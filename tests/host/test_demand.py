"""How many sessions are asked for at a time."""

from __future__ import annotations

import pytest

from host.demand import AT_A_TIME_S, HALF_LIFE_S, Demand


def test_nothing_asked_for() -> None:
    assert Demand().level(1e6) == 0


def test_follows_a_rise_at_once_and_forgets_by_half() -> None:
    demand = Demand()
    for _ in range(8):
        demand.note(100.0)
    assert demand.level(100.0) == 8
    assert demand.level(100.0 + HALF_LIFE_S) == pytest.approx(4)
    assert demand.level(100.0 + 3 * HALF_LIFE_S) == pytest.approx(1)


def test_a_steady_stream_is_what_comes_at_a_time() -> None:
    demand = Demand()
    for n in range(1000):
        demand.note(n * AT_A_TIME_S / 4)
    assert 4 <= demand.level(1000 * AT_A_TIME_S / 4) <= 5


def test_a_smaller_batch_does_not_make_it_forget_the_larger_one() -> None:
    demand = Demand()
    for _ in range(8):
        demand.note(0.0)
    demand.note(10.0)
    assert demand.level(10.0) > 7
