"""Servers that do not come up, come up late, or speak one of the protocol's dialects."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.docker.harness import RunningHost, free_port, running_host

START_TIMEOUT_S = 4
SETTINGS: dict[str, Any] = {"kind": "server", "memory": "128MiB", "start_timeout": START_TIMEOUT_S}

STARTS = {
    "never_listens": "^start_timeout: .*8080",
    "only_health": "^protocol_violation: |^start_failed: ",
    "exits": "^start_failed: .*exit code 1.*this server has nothing to say",
    "forks_and_exits": "^start_failed: |^container_died: ",  # what it forked may have answered before it was ended
    "html": "^protocol_violation: |^start_failed: |^start_timeout: ",
    "500": "^start_timeout: |^start_failed: ",
    "redirect": "^protocol_violation: |^start_failed: |^start_timeout: ",
    "endless_json": "^protocol_violation: |^start_failed: |^start_timeout: ",
    "hang_up": "^start_timeout: |^start_failed: |^protocol_violation: ",
}
"""What a server does from its start on → what is said of it."""


class Served:
    """A host, and the file that its image's servers read at their start."""

    def __init__(self, host: RunningHost, folder: Path) -> None:
        self.host = host
        self._folder = folder

    def tell(self, **how: str) -> None:
        """Have the servers that start from now on be like that."""
        (self._folder / "how.json").write_text(json.dumps(how))


@pytest.fixture(scope="module")
def shared(hostile_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = data_folder(tmp_path_factory.mktemp("data"))
    with running_host(hostile_image, data=folder, **SETTINGS) as host:
        yield Served(host, folder)


def data_folder(folder: Path) -> Path:
    """Let a folder be one that containers may read."""
    for path in (folder, *folder.parents[:2]):
        path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o055)  # one of them may be /tmp itself
    return folder


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """The shared host; afterwards nothing is left of any session."""
    with shared.host.tidied():
        yield shared
        shared.tell()


@pytest.mark.parametrize("how", STARTS)
async def test_a_server_that_does_not_come_up_fails_the_creation(served: Served, how: str) -> None:
    async with served.host.client() as client:
        served.tell(start=how)
        session = client.session()
        status, body = await session.post("/create", {"task_spec": {"n": 1}})
        assert status in (422, 503), body
        assert re.search(STARTS[how], body["detail"], re.DOTALL), body
        assert body["detail"].startswith(body["reason"])
        assert (await session.post("/ping"))[0] == 404
        served.tell()
        assert await session.post("/create", {"task_spec": {"n": 1}}) == (200, {"sid": session.sid})
        await session.delete()


def test_a_host_does_not_start_with_a_server_that_does_not_come_up(hostile_image: str) -> None:
    """It ends in a sentence, and leaves nothing behind."""

    def start(how: str, place: Path) -> subprocess.CompletedProcess[str]:
        (place / how).mkdir()
        folder = data_folder(place / how)
        (folder / "how.json").write_text(json.dumps({"start": how}))
        command = [str(Path(sys.executable).with_name("ors-host")), "--image", hostile_image, "--data", str(folder)]
        command += ["--kind", "server", "--start-timeout", "3", "--warm", "0", "--port", str(free_port())]
        command += ["--state-dir", str(folder / "s")]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    hows = ("never_listens", "only_health", "exits")
    with tempfile.TemporaryDirectory(prefix="ors-", dir="/tmp") as name, ThreadPoolExecutor() as threads:
        ended = list(threads.map(start, hows, [Path(name)] * len(hows)))
        for how, each in zip(hows, ended, strict=True):
            said = each.stderr.strip()
            assert each.returncode == 1, said
            assert hostile_image in said and "Traceback" not in said, (how, said)
            left = Path(name, how, "s", "s")
            assert not left.exists() or not list(left.iterdir())


@pytest.mark.parametrize("how", [{}, {"secrets": "body"}, {"secrets": "header"}, {"create_session": "json"}], ids=str)
async def test_secrets_arrive_whichever_dialect_a_server_speaks(served: Served, how: dict[str, str]) -> None:
    async with served.host.client() as client:
        served.tell(**how)
        with_some = await client.create({"n": 1}, secrets={"api_key": "k"})
        assert json.loads((await with_some.call("secrets")).text) == {"api_key": "k"}
        without = await client.create({"n": 1})
        assert json.loads((await without.call("secrets")).text) == {}
        for session in (with_some, without):
            await session.delete()


async def test_a_server_that_listens_on_the_other_loopback_address(served: Served) -> None:
    """Engines differ in whether a container without network has ``::1``: it is asked there, or says itself why it can't be."""
    async with served.host.client() as client:
        served.tell(listen="::1")
        session = client.session()
        status, body = await session.post("/create", {"task_spec": {"n": 1}})
        if status == 200:
            assert (await session.call("count")).text == "1"
            await session.delete()
        else:
            assert re.search("^start_failed: .*Cannot assign requested address", body["detail"], re.DOTALL), body


async def test_a_set_up_that_takes_its_time_is_waited_for(served: Served) -> None:
    async with served.host.client() as client:
        session = await client.create({"setup_s": 1.5})
        assert (await session.call("count")).text == "1"
        assert (await session.get("/any/prompt"))[1][0]["text"] == "Prompt 1."
        await session.delete()


async def test_a_server_that_is_still_starting_is_asked_again(served: Served) -> None:
    """As openreward's says it, with 503: nothing has run then."""
    async with served.host.client() as client:
        session = await client.create({"put_off": 2})
        assert (await session.call("count")).text == "1"
        await session.delete()
        session = await client.create({"put_off": 2})
        assert (await session.get("/any/prompt"))[1][0]["text"] == "Prompt 1."
        await session.delete()


async def test_a_set_up_that_fails_is_told(served: Served) -> None:
    async with served.host.client() as client:
        session = await client.create({"setup_raises": "no power today"})
        status, body = await session.get("/any/prompt")
        assert status in (410, 422), body
        assert "no power today" in body["detail"]
        await session.delete()
        session = await client.create({"setup_raises": "no power today"})
        reply = await session.call("count")
        assert reply.event == "error" and "no power today" in reply.data
        await session.delete()
