"""What axe finds wrong for those who don't see, hear or point as others do: names, roles, order, contrast; in both themes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from tests.docker.harness import RunningHost, Session, running_host
from tests.ui.browser import browsing, watched

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

THEMES = ("light", "dark")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(host: RunningHost) -> AsyncIterator[Session]:
    """A session with a prompt, a call that is well, one that is refused and one that runs; another has failed."""
    async with host.client() as client:
        session = await client.create({"id": "first"})
        await session.get("/any/prompt")
        await session.bash("echo said by the agent")
        await session.call("no_such_tool", x=1)
        await client.session().post("/create", {"task_spec": {"construct": "raise"}})
        async with session.calling("sleep_async", seconds=600):
            yield session
        await session.delete()


async def complaints(page: Page) -> list[str]:
    """Return what axe has to say against the page as it is shown, a line for each rule and element."""
    found = await Axe().run(page)
    return [
        f"{rule['impact']}: {rule['help']} ({rule['id']}): {node['target']}: {node['failureSummary']}"
        for rule in found.response["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("theme", THEMES)
async def test_axe_has_no_complaints(browser: Browser, host: RunningHost, session: Session, theme: str) -> None:
    async with watched(browser, host.url, color_scheme=theme) as watch:
        page = await watch.ready()
        await expect(page.get_by_role("link", name=session.sid[:12])).to_be_visible()
        assert await complaints(page) == [], "the list of those that live"
        await page.get_by_role("tab", name="Ended").click()
        await expect(page.get_by_text("construct was told to raise").first).to_be_visible()
        assert await complaints(page) == [], "the list of those that ended"
        await page.get_by_role("tab", name="Live").click()
        await page.get_by_role("link", name=session.sid[:12]).click()
        await expect(page.get_by_text("said by the agent", exact=True)).to_be_visible()
        assert await complaints(page) == [], "a session"
        await page.get_by_role("button", name="End session").first.press("Enter")
        await expect(page.get_by_role("button", name="Keep it")).to_be_focused()
        assert await complaints(page) == [], "the question whether to end it"


async def test_nor_where_the_key_is_asked_for(browser: Browser, probe_image: str) -> None:
    with running_host(probe_image, env={"ORS_HOST_API_KEY": "operators-key"}) as host:
        for theme in THEMES:
            async with watched(browser, host.url, color_scheme=theme) as watch:
                page = await watch.ready()
                await page.get_by_role("textbox", name="Key").fill("wrong")
                await page.keyboard.press("Enter")
                await expect(page.get_by_text("not the key")).to_be_visible()
                assert await complaints(page) == [], theme
                watch.faults = [fault for fault in watch.faults if "401" not in fault]
