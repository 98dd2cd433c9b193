"""What is killed, and what becomes of sessions and calls: nobody's tool runs twice, and what is lost is told as lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import aiohttp
import pytest

from deploy.cluster.local import is_alive
from tests.cluster.stage import Stage, agent_of, wait_for
from tests.docker.harness import CallStream, Client, RunningHost, Session, StreamCut, free_port
from tests.docker.test_recovery import begin

LOST_S = 10.0
"""By then a session of a node that is gone says so."""


async def test_a_front_is_killed_in_mid_call(cluster: Stage, shared_front: RunningHost) -> None:
    """The next one, on the same port, has all sessions, and the results of calls that went on meanwhile."""
    command = "echo ran >> /workspace/ran; sleep 4; cat /workspace/ran"
    port = free_port()
    with cluster.front(port=port) as first:
        async with first.client() as client:
            sessions = [await client.create({"n": n}) for n in range(6)]
            for session in sessions:
                assert (await session.call("count")).text == "1"
            ids = await asyncio.gather(*(begin(session, "bash", command=command) for session in sessions[:3]))
            named = await begin(sessions[3], "bash", call_id="trace-1", command=command)
        first.kill()
        with cluster.front(port=port) as second:
            async with second.client() as client:
                again = [client.session(session.sid) for session in sessions]
                calls = zip(again, [*ids, named], strict=False)
                replies = await asyncio.gather(
                    *(s.call("bash", call_id=c, command="is not looked at") for s, c in calls)
                )
                assert [reply.text for reply in replies] == ["ran\n"] * 4
                for session in again:
                    assert (await session.call("count")).text == "2"  # the same instance of the environment
                    assert (await session.get("/any/prompt"))[0] == 200
                await asyncio.gather(*(session.delete() for session in again))


async def test_an_agent_is_killed(cluster: Stage, client: Client) -> None:
    """Ray starts it again, and its host has the node's sessions again, in mid-call as at rest."""
    sessions = [await client.create({"n": n}) for n in range(3)]
    for session in sessions:
        assert (await session.call("count")).text == "1"
    session, other = sessions[0], sessions[1]
    node = cluster.node_of(session.sid)
    command = "echo ran >> /workspace/ran; sleep 4; cat /workspace/ran"
    call_id = await begin(session, "bash", command=command)
    agent, host = agent_of(node)
    os.kill(agent, signal.SIGKILL)
    wait_for(lambda: not is_alive(host), 20)
    assert (await other.call("count")).text == "2"  # on another node
    reply = await patient_call(session, "bash", call_id, command="is not looked at")
    assert reply == "ran\n"
    assert await patient_call(session, "count", "trace-2") == "2"
    assert agent_of(node)[0] != agent
    assert len(cluster.groups()) == 3
    await asyncio.gather(*(session.delete() for session in sessions))


async def test_the_host_of_a_node_is_killed(cluster: Stage, client: Client) -> None:
    session = await client.create()
    assert (await session.call("count")).text == "1"
    agent, host = agent_of(cluster.node_of(session.sid))
    os.kill(host, signal.SIGKILL)
    assert await patient_call(session, "count", "trace-1") == "2"
    assert agent_of(cluster.node_of(session.sid))[0] == agent
    await session.delete()


@pytest.mark.timeout(180)
async def test_a_node_is_lost_and_comes_back(cluster: Stage, client: Client) -> None:
    """Its sessions say ``node_lost`` and hold nothing; others don't notice; what it had left is removed when it is back."""
    sessions = [await client.create({"n": n}) for n in range(6)]
    lost_node = next(
        cluster.node_of(session.sid) for session in sessions if cluster.node_of(session.sid) is not cluster.cluster.head
    )
    lost = [session for session in sessions if cluster.node_of(session.sid) is lost_node]
    others = [session for session in sessions if session not in lost]
    host = cluster.host_of(lost_node)
    async with lost[0].calling("sleep_async", seconds=3600) as stream:
        killed = time.monotonic()
        os.kill(lost_node.pid_of("raylet"), signal.SIGKILL)
        reply = await asyncio.wait_for(stream.reply(), LOST_S)
        assert (reply.event, reply.data.partition(":")[0]) == ("error", "node_lost"), reply
    for n in range(3):
        replies = await asyncio.gather(*(session.call("count") for session in others))
        assert [reply.text for reply in replies] == [str(n + 1)] * len(others)
    for session in lost:
        status, body = await session.post("/ping")
        assert (status, body["reason"]) == (410, "node_lost"), body
        status, body = await session.post("/any/call", {"name": "count", "input": {}})
        assert (status, body["reason"]) == (410, "node_lost"), body
    assert time.monotonic() - killed < LOST_S
    names = {f"ors-session-{session.sid}" for session in others}
    wait_for(lambda: {group["name"] for group in cluster.groups()} == names, LOST_S)
    assert [node["sessions"] for node in cluster.nodes() if node["state"] == "lost"] == [0]
    lost_node.kill()
    assert len(host.containers(role="session")) == len(lost)
    for session in lost:
        await session.delete()
    back = cluster.cluster.launch(4, again=lost_node)
    cluster.cluster.wait(back)
    await asyncio.to_thread(wait_for, lambda: host.containers(role="session") == [], 40)
    await asyncio.to_thread(cluster.wait_ready, 3)
    status, body = await lost[0].post("/ping")
    assert (status, body["reason"]) == (410, "node_lost"), body
    await asyncio.gather(*(session.delete() for session in others))


async def test_a_node_that_is_cut_off(cluster: Stage, client: Client) -> None:
    """Its host doesn't answer for a while. Who asks is told, others are served, and no tool runs twice."""
    sessions = [await client.create({"n": n}) for n in range(3)]
    session, others = sessions[0], sessions[1:]
    _, host = agent_of(cluster.node_of(session.sid))
    running = await begin(session, "bash", command="echo first >> /workspace/ran; sleep 1; echo done")
    os.kill(host, signal.SIGSTOP)
    try:
        with contextlib.suppress(TimeoutError, StreamCut, aiohttp.ClientError):
            async with asyncio.timeout(3):
                await session.call("bash", call_id="trace-cut", command="echo second >> /workspace/ran")
        for other in others:
            async with asyncio.timeout(5):
                assert (await other.call("count")).text == "1"
    finally:
        os.kill(host, signal.SIGCONT)
    assert await patient_call(session, "bash", running, command="is not looked at") == "done\n"
    await patient_call(session, "bash", "trace-cut", command="echo second >> /workspace/ran")
    assert await session.bash("cat /workspace/ran") == "first\nsecond\n"
    await asyncio.gather(*(session.delete() for session in sessions))


async def patient_call(session: Session, name: str, call_id: str, **tool_input: object) -> str:
    """Call as the public clients do: who is cut off, or told that it is too early, comes again with the call's id."""
    body = {"name": name, "input": tool_input, "task_id": call_id}
    async with asyncio.timeout(60):
        while True:
            try:
                async with session.http.post("/any/call", json=body, headers=session.headers) as response:
                    if response.status == 200:
                        stream = CallStream(response)
                        await stream.start()
                        reply = await stream.reply()
                        break
                    assert response.status == 503, await response.text()
            except (aiohttp.ClientError, StreamCut):
                pass
            await asyncio.sleep(0.2)
    return reply.text
