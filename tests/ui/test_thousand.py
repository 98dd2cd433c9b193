"""A thousand sessions: what the host is asked and the page shows does not grow with them."""

from __future__ import annotations

import asyncio
import time

import pytest
from playwright.async_api import expect

from tests.host.conftest import engine, serve, state_dir  # noqa: F401
from tests.host.served import Serve
from tests.ui.browser import browsing, watched

SESSIONS = 1000
_MOST_BYTES = 64 * 1024
_MOST_S = 0.25
"""Of a refresh in the host; it takes about a tenth of it. A busy machine has room."""


@pytest.mark.timeout(300)
async def test_a_thousand_sessions(serve: Serve) -> None:  # noqa: F811
    server = await serve(max_sessions=SESSIONS, start_concurrency=16)
    at_once = asyncio.Semaphore(16)

    async def create(number: int) -> None:
        async with at_once:
            await server.create(f"session-{number}", task_spec={"id": f"task-{number:04}"})

    await asyncio.gather(*map(create, range(SESSIONS)))
    size, begin = 0, time.perf_counter()
    for path in ("/ui/api/state", "/ui/api/sessions?sort=task&text=task"):
        async with server.client.get(path) as response:
            size += len(await response.read())
    took_s = time.perf_counter() - begin
    print(f"a refresh: {size} bytes, {took_s * 1000:.1f} ms in the host")
    assert size < _MOST_BYTES
    assert took_s < _MOST_S
    url = str(server.client._base_url).rstrip("/")
    async with browsing() as browser, watched(browser, url) as watch:
        page = await watch.ready()
        await expect(page.locator("tbody tr")).to_have_count(50)
        await expect(page.get_by_text("1–50 of 1,000")).to_be_visible()
        await page.get_by_role("button", name="Next").click()
        await expect(page.get_by_text("51–100 of 1,000")).to_be_visible()
        begin = time.perf_counter()
        await page.get_by_label("Filter sessions").fill("task-0777")
        await expect(page.locator("tbody tr")).to_have_count(1)
        print(f"a filter: {(time.perf_counter() - begin) * 1000:.0f} ms until it is shown")
