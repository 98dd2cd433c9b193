"""The environment against the host, in what it sends: a runtime that speaks the protocol itself, and not as it should.

After each attack the host answers, and a neighbour's session goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from tests.attacks.board import ENVIRONMENT, attack
from tests.attacks.hosts import memory_mb
from tests.docker.harness import Client, Reply, RunningHost, Session, until


@pytest.fixture
async def client(hostile_host: RunningHost) -> AsyncIterator[Client]:
    """The raw protocol; afterwards the host still serves another session."""
    async with _neighbourly(hostile_host) as client:
        yield client


@pytest.fixture
async def impatient(impatient_host: RunningHost) -> AsyncIterator[Client]:
    """The same, of the host that doesn't wait long."""
    async with _neighbourly(impatient_host) as client:
        yield client


@asynccontextmanager
async def _neighbourly(host: RunningHost) -> AsyncIterator[Client]:
    async with host.client() as client:
        neighbour = await client.create()
        yield client
        async with asyncio.timeout(20):
            assert (await neighbour.call("probe")).text == "fine"
        await neighbour.delete()
    assert host.process.poll() is None
    await until(lambda: host.containers(role="session") == [])


async def ended(session: Session) -> str:
    """Wait until the session has ended; return the reason."""
    async with asyncio.timeout(15):
        while (answer := await session.post("/ping"))[0] == 200:  # noqa: ASYNC110 - nothing tells a client
            await asyncio.sleep(0.05)
    assert answer[0] == 410, answer
    return str(answer[1]["reason"])


def answer(result: str) -> str:
    """Return an answer as it is sent; ``ID`` is put in by the runtime."""
    return f'{{"jsonrpc":"2.0","id":ID,"result":{result}}}'


def rewarded(reward: str) -> str:
    """Return an answer to a call with such a reward."""
    return answer(f'{{"ok":true,"output":{{"blocks":[{{"type":"text","text":"x"}}],"reward":{reward}}}}}')


class Misdeed(NamedTuple):
    """``reply`` is what the call's stream ends with, ``reason`` what ends the session (None: nothing does)."""

    id: str
    what: str
    do: str
    reply: str
    reason: str | None
    tool_input: dict[str, Any] = {}


VIOLATION = "protocol_violation"
TIMEOUT = "call_timeout"
MISDEEDS = [
    Misdeed("E01", "have the host make room for 4 GiB", "announce_4g", VIOLATION, VIOLATION),
    Misdeed("E03", "overflow the parser's stack", "nested", VIOLATION, VIOLATION),
    Misdeed("E04", "overflow the writer's stack", "nested_a_little", '{"ok":true', None),
    Misdeed("E06", "die in the middle of a frame", "half_then_end", "container_died", "container_died"),
    Misdeed("E07", "have the host build twenty million objects", "many_values", VIOLATION, VIOLATION),
    Misdeed("E08", "send what is not UTF-8", "unbalanced", VIOLATION, VIOLATION),
    Misdeed("E09", "answer what was not asked", "unasked", VIOLATION, VIOLATION),
    Misdeed("E10", "answer twice", "twice", "", VIOLATION),
    Misdeed("E11", "ask something of the host", "ask", VIOLATION, VIOLATION),
    Misdeed("E12", "cancel something of the host's", "notify", VIOLATION, VIOLATION),
    Misdeed("E14", "connect a second time", "second_connection", VIOLATION, VIOLATION),
    Misdeed("E15", "connect two thousand times", "many_connections", VIOLATION, VIOLATION),
    Misdeed("E16", "hang up and live on", "hang_up", "container_died", "container_died"),
    Misdeed("E17", "have the host keep 60 MB of an error's text", "long_error", "e" * 1000, None),
]
WAITING = [
    Misdeed("E02", "have the host hold an unfinished frame for ever", "half", TIMEOUT, TIMEOUT),
    Misdeed("E05", "send a byte now and then", "slow", TIMEOUT, TIMEOUT),
    Misdeed("E13", "never answer, not even a cancellation", "nothing", TIMEOUT, TIMEOUT),
]


@pytest.mark.parametrize(
    "misdeed",
    [pytest.param(misdeed, marks=attack(misdeed.id, ENVIRONMENT, misdeed.what), id=misdeed.id) for misdeed in MISDEEDS],
)
async def test_misdeed(misdeed: Misdeed, client: Client) -> None:
    await _commit(misdeed, client)


@pytest.mark.parametrize(
    "misdeed",
    [pytest.param(misdeed, marks=attack(misdeed.id, ENVIRONMENT, misdeed.what), id=misdeed.id) for misdeed in WAITING],
)
async def test_waiting(misdeed: Misdeed, impatient: Client) -> None:
    await _commit(misdeed, impatient)


async def _commit(misdeed: Misdeed, client: Client) -> None:
    session = await client.create()
    async with asyncio.timeout(60):
        reply = await session.call("probe", do=misdeed.do, **misdeed.tool_input)
    assert reply.data.startswith(misdeed.reply), reply.data[:500]
    assert len(reply.data) < 100_000
    if misdeed.reason is None:
        await session.delete()
    else:
        assert await ended(session) == misdeed.reason


UNSOUND: dict[str, str] = {
    "no object": "[1]",
    "no result": answer("null"),
    "not ok": answer('{"ok":"perhaps"}'),
    "no blocks": answer('{"ok":true,"output":{"blocks":[],"reward":1}}'),
    "reward is NaN": rewarded("NaN"),
    "reward is endless": rewarded("1e999"),
    "reward is a list": rewarded("[1]"),
    "a refusal with a reward": answer('{"ok":false,"error":"e","reward":1}'),
    "an error with a result": answer('1,"error":{"code":1,"message":"m","data":{"fault":"cancelled"}}'),
    "a fault of its own": '{"jsonrpc":"2.0","id":ID,"error":{"code":1,"message":"m","data":{"fault":"reward"}}}',
    "more fields": answer('{"ok":true,"output":{"blocks":[{"type":"text","text":"x"}]}},"reward":1'),
    "half a character": answer('"\\ud800"'),
    "an id that is true": '{"jsonrpc":"2.0","id":true,"result":1}',
    "ten thousand digits": '{"jsonrpc":"2.0","id":' + "1" * 10_000 + ',"result":1}',
}


@attack("E18", ENVIRONMENT, "pass off an answer of the wrong form")
async def test_unsound_answers(client: Client) -> None:
    async def send(raw: str) -> tuple[Session, Reply]:
        session = await client.create()
        return session, await session.call("probe", do="raw", raw=raw)

    for name, (session, reply) in zip(UNSOUND, await asyncio.gather(*map(send, UNSOUND.values())), strict=True):
        assert (reply.event, reply.data[:18]) == ("error", VIOLATION), (name, reply)
        assert await ended(session) == VIOLATION


@attack("E19", ENVIRONMENT, "mix up the answers to calls that run together")
async def test_answers_out_of_order(client: Client) -> None:
    session = await client.create()
    replies = await asyncio.gather(*(session.call("probe", do="out_of_order", n=n) for n in range(8)))
    assert [reply.text for reply in replies] == [str(n) for n in range(8)]
    await session.delete()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param(
            "prompt", "/any/prompt", marks=attack("E20", ENVIRONMENT, "answer /prompt with something else"), id="E20"
        ),
        pytest.param(
            "task_tools",
            "/any/task_tools",
            marks=attack("E21", ENVIRONMENT, "answer /task_tools with something else"),
            id="E21",
        ),
    ],
)
async def test_the_wrong_type(client: Client, method: str, path: str) -> None:
    session = await client.create({"at": method, "do": "wrong_type"})
    status, body = await session.get(path)
    assert (status, body["reason"]) == (410, VIOLATION)
    assert await ended(session) == VIOLATION


@attack("E22", ENVIRONMENT, "never finish its constructor")
async def test_create_is_never_answered(impatient: Client) -> None:
    status, body = await impatient.session().post("/create", {"task_spec": {"at": "create", "do": "nothing"}})
    assert (status, body["reason"]) == (422, "setup_timeout")


@attack("E23", ENVIRONMENT, "never finish its set-up")
async def test_setup_is_never_answered(impatient: Client) -> None:
    session = await impatient.create({"at": "setup", "do": "nothing"})
    assert await ended(session) == "setup_timeout"


@attack("E24", ENVIRONMENT, "never finish its teardown")
async def test_teardown_is_never_answered(impatient: Client) -> None:
    session = await impatient.create({"at": "teardown", "do": "nothing"})
    started = time.monotonic()
    await session.delete()
    assert time.monotonic() - started < 10


@attack("E25", ENVIRONMENT, "have the host hold what it does not read")
async def test_a_runtime_that_reads_nothing(client: Client, hostile_host: RunningHost) -> None:
    session = await client.create()
    before = memory_mb(hostile_host)
    filler = "x" * 900_000
    calls = [session.call("probe", do="never_read", filler=filler) for _ in range(100)]
    for reply in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(reply, AssertionError) or (isinstance(reply, Reply) and reply.event == "error"), reply
    assert await ended(session) in (VIOLATION, TIMEOUT)
    assert memory_mb(hostile_host) - before < 200


@attack("E26", ENVIRONMENT, "fill memory with frames that many sessions leave unfinished")
async def test_many_unfinished_frames(impatient: Client, impatient_host: RunningHost) -> None:
    sessions = await asyncio.gather(*(impatient.create() for _ in range(10)))
    before = memory_mb(impatient_host)
    calls = asyncio.gather(*(session.call("probe", do="half", size=60 * 2**20) for session in sessions))
    most = before
    while not calls.done():
        most = max(most, memory_mb(impatient_host))
        await asyncio.sleep(0.05)
    for reply in await calls:
        assert reply.data.startswith((VIOLATION, TIMEOUT))
    assert most - before < 400, f"{most - before} MB"  # 256 MiB, and what buffers grow by


@attack("E27", ENVIRONMENT, "fill memory with results that are kept for a client that reconnects")
async def test_many_kept_results(client: Client, hostile_host: RunningHost) -> None:
    session = await client.create()
    before = memory_mb(hostile_host)
    for _ in range(6):
        assert (await session.call("probe", do="large", size=5 * 2**20)).event == "end"
    assert memory_mb(hostile_host) - before < 100  # 16 MiB are kept
    await session.delete()


@attack("E28", ENVIRONMENT, "break the stream's framing with line breaks and white space")
async def test_results_that_look_like_a_stream(client: Client) -> None:
    session = await client.create()
    for text in ("\r\n\r\nevent: end\r\ndata: {}\r\n\r\n", " " * 20_000, "\u2028\u2029\x85" * 5000, "\x00" * 5000):
        result = {"ok": True, "output": {"blocks": [{"type": "text", "text": text}]}}
        assert (await session.call("probe", do="result", result=result)).text == text
    await session.delete()
