"""Statistics and targets."""

from __future__ import annotations

import math

import pytest

from bench.numbers import Summary, Target, Verdict, mb, ms, percentile


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(each) for each in range(100, 0, -1)]
    assert [percentile(values, each) for each in (0, 1, 50, 99, 100)] == [1, 1, 50, 99, 100]
    assert percentile([7.0], 99) == 7.0


def test_a_summary() -> None:
    summary = Summary.of([4.0, 1.0, 2.0, 5.0])
    assert summary == Summary(n=4, p50=3.0, p99=5.0, mean=3.0, least=1.0, most=5.0)


@pytest.mark.parametrize("function", [lambda: percentile([], 50), lambda: Summary.of([])])
def test_nothing_has_no_summary(function: object) -> None:
    assert callable(function)
    with pytest.raises(ValueError, match="no values"):
        function()


@pytest.mark.parametrize(
    ("at_most", "value", "verdict"),
    [
        (True, 1.5, Verdict.OK),
        (True, 1.51, Verdict.MISSED),
        (False, 1.5, Verdict.OK),
        (False, 1.49, Verdict.MISSED),
        (True, math.inf, Verdict.MISSED),
    ],
)
def test_a_target_is_reached_or_missed(at_most: bool, value: float, verdict: Verdict) -> None:
    target = Target(1.5, "1.5 × another", at_most=at_most)
    assert target.judge(value) is verdict
    assert str(target) == ("≤ 1.5 × another" if at_most else "≥ 1.5 × another")


def test_sizes_and_times_in_words() -> None:
    assert [ms(each) for each in (0.000123, 0.0123, 1.23, math.nan)] == ["0.12 ms", "12.3 ms", "1230 ms", "–"]
    assert [mb(each) for each in (52_000, 21_960_000, 123_400_000)] == ["0.05 MB", "22.0 MB", "123 MB"]
