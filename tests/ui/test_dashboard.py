"""The dashboard as an operator uses it: sessions of a real host, in a real browser, some of them hostile."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.docker.harness import RunningHost, running_host
from tests.ui.browser import Watched, browsing, watched

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

KEY, AGENT_KEY = "operators-key", "agents-key"
PAYLOAD = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def watch(browser: Browser, host: RunningHost) -> AsyncIterator[Watched]:
    async with watched(browser, host.url) as watch:
        yield watch


async def test_a_session_from_its_row_to_its_end(watch: Watched, host: RunningHost) -> None:
    """All by keyboard: the row, what was said, the question whether to end it, and its end among those that ended."""
    async with host.client() as client:
        session = await client.create({"id": "first"})
        await session.get("/any/prompt")
        assert await session.bash("echo said by the agent") == "said by the agent\n"
        page = await watch.ready()
        await page.keyboard.press("/")
        await page.keyboard.type(session.sid)
        link = page.get_by_role("link", name=session.sid[:12])
        await expect(link).to_be_visible()
        await page.keyboard.press("ArrowDown")
        await expect(link).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name=session.sid)).to_be_visible()
        await expect(page.get_by_text("said by the agent", exact=True)).to_be_visible()
        await page.get_by_role("button", name="End session").first.press("Enter")
        await expect(page.get_by_role("button", name="Keep it")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.locator("#confirm")).to_be_hidden()
        await page.get_by_role("button", name="End session").first.press("Enter")
        await page.locator("#confirm").get_by_role("button", name="End session").press("Enter")
        await expect(page.get_by_text("the operator ended the session")).to_have_count(2)
        assert (await session.post("/ping"))[0] == 410
        await page.keyboard.press("Escape")
        await page.get_by_role("tab", name="Ended").press("Enter")
        await expect(page.get_by_role("link", name=session.sid[:12])).to_be_visible()


async def test_what_a_container_writes_is_only_text(watch: Watched, host: RunningHost) -> None:
    async with host.client() as client:
        session = await client.create({"id": PAYLOAD})
        await session.call("echo", text=PAYLOAD)
        await session.call(PAYLOAD, x=PAYLOAD)
        page = await watch.ready()
        await expect(page.get_by_text(PAYLOAD).first).to_be_visible()
        await page.get_by_role("link", name=session.sid[:12]).click()
        await expect(page.locator("pre", has_text=PAYLOAD).first).to_be_visible()
        assert await page.locator("main img, main script").count() == 0
        assert "owned" not in await page.title()
        await session.delete()
        failed = client.session()
        await failed.post("/create", {"task_spec": {"construct": "raise", "id": PAYLOAD}})
        await page.get_by_role("link", name="All sessions").click()
        await page.get_by_role("tab", name="Ended").click()
        await expect(page.get_by_text("construct was told to raise").first).to_be_visible()


async def test_the_host_goes_and_comes_back(browser: Browser, host: RunningHost) -> None:
    """The page says that it is gone, and goes on by itself."""
    async with watched(browser, host.url) as watch:
        page = await watch.ready()
        await page.route("**/ui/api/**", lambda route: route.abort())
        await expect(page.get_by_role("alert")).to_contain_text("does not answer")
        await page.unroute("**/ui/api/**")
        await expect(page.get_by_role("alert")).to_be_hidden()
        watch.faults = [fault for fault in watch.faults if "ERR_FAILED" not in fault]  # the browser's own word for it


async def test_the_key_is_asked_for_and_the_agents_is_not_enough(browser: Browser, probe_image: str) -> None:
    keys = {"ORS_HOST_API_KEY": KEY, "ORS_HOST_AGENT_KEY": AGENT_KEY}
    with running_host(probe_image, env=keys) as host:
        async with watched(browser, host.url) as watch:
            page = await watch.ready()
            for key, words in (("wrong", "not the key"), (AGENT_KEY, "this key is for")):
                await page.get_by_role("textbox", name="Key").fill(key)
                await page.keyboard.press("Enter")
                await expect(page.get_by_text(words)).to_be_visible()
                if key == AGENT_KEY:
                    await page.get_by_role("button", name="Sign out").click()
            await page.get_by_role("textbox", name="Key").fill(KEY)
            await page.keyboard.press("Enter")
            await expect(page.get_by_text("No session is live.")).to_be_visible()
            assert await page.context.cookies() == []
            watch.faults = [fault for fault in watch.faults if "401" not in fault and "403" not in fault]


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_a_narrow_screen_has_no_sideways_scrolling(browser: Browser, host: RunningHost, theme: str) -> None:
    async with watched(browser, host.url, viewport={"width": 360, "height": 700}, color_scheme=theme) as watch:
        page = await watch.ready()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
