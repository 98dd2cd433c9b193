"""The pictures of the dashboard in the documentation: ``python -m tests.ui.screenshots [FOLDER]`` takes them anew.

It needs a Docker engine; the examples' images are built if they are not there. It takes some two minutes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page

from host.build import build_environment
from tests.docker.conftest import EXAMPLE_IMAGES, EXAMPLES
from tests.docker.harness import Client, RunningHost, running_host
from tests.ui.browser import browsing, watched
from tests.ui.stage import BUSY, begin, episode, play

FOLDER = Path(__file__).parents[2] / "docs" / "images"
HISTORY_S = 45


@asynccontextmanager
async def staged(host: RunningHost) -> AsyncIterator[str]:
    """Sessions of all kinds, alive and ended; gives the id of the one to look at."""
    async with host.client() as client, AsyncExitStack() as stack:
        await _past(client)
        looked_at = await play(client, episode("plotenv", "looks twice"))
        for title in ("sorts the logs", "survives kill -9 -1"):
            await play(client, episode("bashenv", title), calls=3)
        for index in range(3):
            await begin(client, "bashenv", "train", index)
            await begin(client, "gsm8kenv", "train", index)
        busy = await begin(client, "bashenv", "train", 2)
        await busy.call("bash", command="head -c 60M /dev/zero > /tmp/big && ls -l /tmp")
        await stack.enter_async_context(busy.calling("bash", command=BUSY, timeout_s=300))
        await asyncio.sleep(HISTORY_S)  # for the charts to have something to show
        yield looked_at.sid


async def _past(client: Client) -> None:
    for title in ("does nothing", "sorts the logs", "makes an endless file"):
        session = await play(client, episode("bashenv", title))
        await session.delete()
    for title in ("answers in words", "answers wrong"):
        session = await play(client, episode("gsm8kenv", title))
        await session.delete()
    hungry = await begin(client, "codeenv", "train", 0)
    await hungry.call("run", code="print('x')")
    await hungry.delete()
    fails = client.session()
    await fails.post("/create", {"env_name": "bashenv", "task_spec": {"id": "no-such-task"}})


async def take(browser: Browser, host: RunningHost, sid: str, folder: Path) -> None:
    """Take the pictures, in both themes."""
    for theme in ("light", "dark"):
        async with watched(browser, host.url, color_scheme=theme, viewport={"width": 1280, "height": 800}) as watch:
            page = await watch.ready()
            await page.wait_for_timeout(2500)
            await _picture(page, folder / f"dashboard-overview-{theme}.png")
            await page.get_by_label("Filter sessions").fill(sid)
            await page.get_by_role("link", name=sid[:12]).click()
            await page.wait_for_selector("img.picture")
            await page.wait_for_timeout(1000)
            await _picture(page, folder / f"dashboard-session-{theme}.png")


async def _picture(page: Page, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=path)
    print(path)


async def main() -> None:
    """Take them."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for name, tag in EXAMPLE_IMAGES.items():
        build_environment(EXAMPLES / name, tag)
    with running_host(*EXAMPLE_IMAGES.values(), record="memory", warm=1, memory="512MiB") as host:
        async with staged(host) as sid, browsing() as browser:
            await take(browser, host, sid, folder)


if __name__ == "__main__":
    asyncio.run(main())
