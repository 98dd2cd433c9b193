"""A short soak, and a few cycles: the long ones are ``make soak``."""

from __future__ import annotations

import pytest

from tests.lifecycle.soak import cycles, soak


@pytest.mark.timeout(300)
async def test_half_a_minute(probe_image: str) -> None:
    report = await soak(probe_image, seconds=25, seed=20, deaths=1, last_deaths=1, engine_every_s=2, abandons=False)
    print("\n".join(report.lines()))
    assert report.problems == []
    assert report.sessions > 0 and report.faults["host: kill -9"] == 2


async def test_cycles_leave_nothing(probe_image: str) -> None:
    report = await cycles(probe_image, 20)
    print("\n".join(report.lines()))
    assert report.problems == []
    assert len(report.rest) == 2
