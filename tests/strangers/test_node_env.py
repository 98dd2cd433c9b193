"""The example in JavaScript, an ORS server of its own: episodes through both clients, many at once, and over a host's death."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.clients import CLIENTS, environments
from tests.docker.harness import Client, RunningHost, Session, running_host, until
from tests.lifecycle.faulty_engine import CREATE, faulty_engine
from tests.lifecycle.test_capacity import census

SESSIONS = 10
REPAIR = "sed -i 's/start + size <= list.length/start < list.length/' chunk.mjs"
SERVER = "P=$(grep -l main.[j]s /proc/[0-9]*/cmdline | tail -n 1 | cut -d / -f 3)"
LIMITS: dict[str, Any] = {"memory": "256MiB", "pids": 64, "disk": "64MiB", "max_sessions": 16}


@pytest.fixture(scope="module")
def shared_host(node_image: str) -> Iterator[RunningHost]:
    with running_host(node_image, **LIMITS) as host:
        yield host


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_episode_of_each_client(client: str, host: RunningHost) -> None:
    async with environments(client, host.url) as api:
        environment = api.get("nodeenv")
        assert [tool.name for tool in await environment.list_tools()] == ["bash", "submit"]
        task = await environment.get_task("train", 0)
        async with environment.session(task) as session:
            assert "chunk(list, size)" in (await session.get_prompt())[0].text
            assert "export function chunk" in await bash(session, "cat chunk.mjs")
            assert await bash(session, REPAIR) == "\n[exit code 0]"
            output = await session.call_tool("submit", {})
            assert (output.reward, output.finished) == (1.0, True)
        async with environment.session(task) as session:
            output = await session.call_tool("submit", {})
            assert (output.reward, output.finished) == (0.0, True)
            assert "passes 2 of 4 tests" in output.blocks[0].text


async def bash(session: Any, command: str) -> str:
    return str((await session.call_tool("bash", {"command": command})).blocks[0].text)


async def test_long_indented_output_arrives_whole(host: RunningHost) -> None:
    async with host.client() as client:
        session = await client.create({"id": "train-0"})
        assert await session.bash("printf '%20000sx 😀' ''") == " " * 20_000 + "x 😀\n[exit code 0]"
        await session.delete()


async def test_ten_sessions_at_once(host: RunningHost) -> None:
    """Each in a container of its own, none waiting for another, and none that sees another's files."""

    async def episode(client: Client, number: int) -> tuple[str, Any]:
        session = await client.create({"id": "train-0"})
        await session.bash(f"echo {number} > number; sleep 1")
        everyone.append(session)
        await until(lambda: len(everyone) == SESSIONS, 60)
        seen = await session.bash(f"cat number; ls; {REPAIR if number % 2 else 'true'}")
        verdict = (await session.call("submit")).result["output"]
        await session.delete()
        return seen, verdict["reward"]

    everyone: list[Session] = []
    async with host.client() as client:
        results = await asyncio.gather(*(episode(client, number) for number in range(SESSIONS)))
    assert results == [(f"{n}\nchunk.mjs\nnumber\n\n[exit code 0]", n % 2) for n in range(SESSIONS)]


async def test_a_killed_host_is_succeeded(node_image: str) -> None:
    """``kill -9`` with sessions alive, one of them in a call: they are adopted, and no command ran twice."""
    command = "echo ran >> ran; sleep 4; cat ran"
    with running_host(node_image, **LIMITS) as first:
        async with first.client() as client:
            sessions = [await client.create({"id": f"train-{n}"}) for n in range(3)]
            for number, session in enumerate(sessions):
                await session.bash(f"echo {number} > number")
            async with sessions[0].calling("bash", command=command) as stream:
                call_id = stream.call_id
                first.kill()
        with running_host(node_image, state_dir=first.state_dir, **LIMITS) as second:
            match = re.search(r"recovered +adopted=(\d+) lost=(\d+)", second.log)
            assert match is not None and match.groups() == ("3", "0"), second.log
            async with second.client() as client:
                again = [client.session(session.sid) for session in sessions]
                reply = await again[0].call("bash", call_id=call_id, command="is not looked at")
                assert reply.event == "error" or reply.text == "ran\n\n[exit code 0]"
                for number, session in enumerate(again):
                    assert (await session.get("/any/prompt"))[0] == 200
                    assert await session.bash("cat number") == f"{number}\n\n[exit code 0]"
                assert await again[0].bash("cat ran") == "ran\n\n[exit code 0]"
                await asyncio.gather(*(session.delete() for session in again))


async def test_what_the_engine_makes_for_a_killed_host_counts_for_the_next(node_image: str, tmp_path: Path) -> None:
    """The engine carries out late what the killed host had asked for: the limit holds all the same, and nothing stays."""
    limits = {**LIMITS, "max_sessions": 3, "queue_timeout": 60}
    with (
        faulty_engine(tmp_path) as engine,
        running_host(node_image, env={"DOCKER_HOST": engine.url}, **limits) as first,
    ):
        late = engine.inject(CREATE, delay_s=7, times=3)
        async with first.client() as client:
            creating = [asyncio.create_task(client.create({"id": f"train-{n}"})) for n in range(3)]
            await until(lambda: late.hits == 3, 20)
            first.kill()
            await asyncio.gather(*creating, return_exceptions=True)
        with (
            census(first) as counting,
            running_host(node_image, state_dir=first.state_dir, env={"DOCKER_HOST": engine.url}, **limits) as second,
        ):
            assert counting.created == 0
            async with second.client() as client:
                sessions = await asyncio.gather(*(client.create({"id": f"train-{n}"}) for n in range(3)))
                await until(lambda: counting.created == 6, 30)
                await asyncio.gather(*(session.delete() for session in sessions))
    assert counting.most <= 3


async def test_what_the_agent_can_not_reach(host: RunningHost) -> None:
    """Not the server's files, memory or port; nothing outside the container."""
    attempts = {
        "id -u": "10000",
        "cat /opt/node_env/tasks.js": "Permission denied",
        "ls /opt/node_env": "Permission denied",
        "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c ORS_": "0",
        f"{SERVER}; head -c 1 /proc/$P/mem": "Permission denied",
        f"{SERVER}; ls /proc/$P/fd": "Permission denied",
        f"{SERVER}; kill -9 $P": "Operation not permitted",
        "ls /sys/class/net": "lo",
        "grep -E 'CapEff|CapPrm' /proc/self/status": "CapPrm:\t0000000000000000",
        "ls /var/run/docker.sock": "No such file",
        "(exec 3<>/dev/tcp/127.0.0.1/8080; printf 'GET /list_environments HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3; echo end)": "end",
    }
    async with host.client() as client:
        session = await client.create({"id": "train-0"})
        for command, expected in attempts.items():
            output = await session.bash(f"({command}) 2>&1")
            assert expected in output, (command, output)
            assert "nodeenv" not in output and "hidden" not in output
        await session.delete()


async def test_an_agent_at_its_limits_ends_at_most_its_own_session(host: RunningHost) -> None:
    """Memory, processes, disk, time; a neighbour plays on."""
    hungers = {
        "tail /dev/zero": "out_of_memory",
        ":(){ :|:& };: ; sleep 1": None,
        "head -c 300M /dev/zero > full; sleep 5": "disk_full",
    }

    async def go_hungry(client: Client, command: str) -> tuple[str, Any]:
        session = await client.create({"id": "train-0"})
        reply = await session.call("bash", command=command, timeout_s=20)
        status, body = await session.post("/ping")
        await session.delete()
        return reply.data, None if status == 200 else body["reason"]

    async with host.client() as client:
        neighbour = await client.create({"id": "train-1"})
        ends = await asyncio.gather(*(go_hungry(client, command) for command in hungers))
        assert await neighbour.bash("echo well") == "well\n\n[exit code 0]"
        await neighbour.delete()
    for (said, reason), expected in zip(ends, hungers.values(), strict=True):
        assert reason in (None, expected), said
    assert ends[2][1] == "disk_full"


async def test_a_session_that_is_deleted_in_a_call_is_gone_at_once(host: RunningHost) -> None:
    async with host.client() as client:
        session = await client.create({"id": "train-0"})
        async with session.calling("bash", command="sleep 60") as stream:
            began = time.monotonic()
            await session.delete()
            reply = await stream.reply()
        assert time.monotonic() - began < 15
        assert (reply.event, reply.data.partition(":")[0]) == ("error", "deleted")
    assert host.containers(role="session") == []
