"""A host that dies, or is replaced, loses no session that can go on; nobody's tool runs twice."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import ors.client
import pytest

from tests.docker.harness import Session, free_port, running_host, until
from tests.docker.test_startup import start

LIVE, BUSY = 20, 10


async def test_a_killed_host_is_succeeded(probe_image: str) -> None:
    """``kill -9`` with 20 sessions, 10 of them in a call: 20 adopted within 5 s, 10 results, each tool ran once."""
    command = "echo ran >> /workspace/ran; sleep 6; cat /workspace/ran"
    with running_host(probe_image, max_sessions=LIVE) as first:
        async with first.client() as client:
            sessions = [await client.create({"n": n}) for n in range(LIVE)]
            for session in sessions:
                assert (await session.call("count")).text == "1"
            ids = await asyncio.gather(*(begin(session, "bash", command=command) for session in sessions[:BUSY]))
            named = await begin(sessions[BUSY], "bash", call_id="trace-1", command=command)
        first.kill()
        with running_host(probe_image, state_dir=first.state_dir, max_sessions=LIVE) as second:
            match = re.search(r"recovered +adopted=(\d+) lost=(\d+)", second.log)
            assert match is not None and match.groups() == (str(LIVE), "0"), second.log
            assert seconds_between(second.log, "starting_catalog", "serving") < 5
            async with second.client() as client:
                again = [client.session(session.sid) for session in sessions]
                replies = await asyncio.gather(
                    *(
                        session.call("bash", call_id=call_id, command="is not looked at")
                        for session, call_id in zip(again, ids, strict=False)
                    )
                )
                assert [reply.text for reply in replies] == ["ran\n"] * BUSY
                assert named == "trace-1"
                assert (await again[BUSY].call("bash", call_id=named, command="echo twice")).text == "ran\n"
                assert (await again[BUSY].call("bash", call_id=named, command="echo twice")).text == "ran\n"
                for session in again:
                    assert (await session.get("/any/prompt"))[0] == 200
                    assert (await session.call("count")).text == "2"  # the same instance of the environment
                status, body = await client.session().post("/create", {"task_spec": {}, "split": "x"})
                assert status == 400, body
                await asyncio.gather(*(session.delete() for session in again))


def test_a_host_that_is_replaced_in_order_keeps_its_episodes(probe_image: str) -> None:
    """A rolling upgrade: the real client's call is cut off by the old host and answered by the new one, on the same port."""
    port = free_port()
    with running_host(probe_image, port=port, on_exit="keep") as old, ThreadPoolExecutor() as threads:
        episode = threads.submit(asyncio.run, episode_through_an_upgrade(old.url))
        while "sleep 4" not in processes() and not episode.done():
            pass
        assert old.stop() == 0
        assert len(old.containers(role="session")) == 1
        with running_host(probe_image, port=port, state_dir=old.state_dir) as new:
            assert episode.result() == ("x\n", "1")
            assert " start=adopted" in new.log


async def episode_through_an_upgrade(url: str) -> tuple[str, str]:
    client: Any = ors.client.AsyncORS(base_url=url)
    environment = client.environment("probe")
    try:
        async with environment.session(await environment.get_task("train", 1)) as session:
            slow = await session.call_tool("bash", {"command": "echo x >> log; sleep 4; cat log"})
            count = await session.call_tool("count")
    finally:
        for http in client.environments._clients.values():
            await http.close()
    return text_of(slow), text_of(count)


async def test_what_was_half_made_is_removed(probe_image: str) -> None:
    with running_host(probe_image) as first:
        async with first.client() as client:
            creating = client.session()
            answer = asyncio.ensure_future(creating.post("/create", {"task_spec": {"construct": "sleep"}}))
            await until(lambda: first.containers(role="session"))
            first.kill()
            with pytest.raises(Exception, match="disconnected|reset|closed"):
                await answer
        with running_host(probe_image, state_dir=first.state_dir) as second:
            assert second.containers(role="session") == []
            assert len(second.containers()) == 1


async def test_what_died_meanwhile_is_told(probe_image: str) -> None:
    with running_host(probe_image) as first:
        async with first.client() as client:
            session = await client.create()
            pid = first.inspect(session.sid)["State"]["Pid"]
        first.kill()
        os.kill(pid, signal.SIGKILL)
        with running_host(probe_image, state_dir=first.state_dir) as second:
            async with second.client() as client:
                status, body = await client.session(session.sid).post("/ping")
            assert (status, body["reason"]) == (410, "container_died")


async def test_idle_clocks_go_on(probe_image: str) -> None:
    with running_host(probe_image) as first:
        async with first.client() as client:
            session = await client.create()
        first.kill()
        sandbox_id = first.container(session.sid)["Labels"]["ors-host.sandbox"]
        os.utime(
            first.state_dir / "sessions" / sandbox_id, (1, 1)
        )  # as if nobody had asked for anything for a long time
        with running_host(probe_image, state_dir=first.state_dir) as second:
            await until(lambda: second.containers(role="session") == [])
            async with second.client() as client:
                status, body = await client.session(session.sid).post("/ping")
            assert (status, body["reason"]) == (410, "expired")


async def test_a_host_that_cannot_start_leaves_sessions_as_they_are(probe_image: str) -> None:
    with running_host(probe_image) as first:
        async with first.client() as client:
            session = await client.create()
        first.kill()
        assert "no-such-image" in start("--image", "no-such-image", "--state-dir", str(first.state_dir), "--port", "0")
        with running_host(probe_image, state_dir=first.state_dir) as second:
            async with second.client() as client:
                assert (await client.session(session.sid).call("count")).text == "1"


async def begin(session: Session, name: str, call_id: str | None = None, **tool_input: Any) -> str:
    """Start a call and leave; return its id."""
    async with session.calling(name, call_id, **tool_input) as stream:
        assert stream.call_id is not None
        return stream.call_id


def container_of(host: Any, session: Session) -> str:
    container = host.container(session.sid)
    return str(container["Labels"]["ors-host.sandbox"])


def processes() -> str:
    """All command lines of the machine; the engine's containers are on it."""
    lines = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                with open(f"/proc/{entry.name}/cmdline", "rb") as file:
                    lines.append(file.read().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return "\n".join(lines)


def seconds_between(log: str, first: str, last: str) -> float:
    """The time between two events of a host's log."""

    def at(event: str) -> datetime:
        line = next(line for line in log.splitlines() if f" {event} " in line)
        return datetime.fromisoformat(line.split(" ", 1)[0])

    return (at(last) - at(first)).total_seconds()


def text_of(output: Any) -> str:
    return str(output.blocks[0].text)
