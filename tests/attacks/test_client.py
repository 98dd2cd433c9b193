"""The client against the server: other people's sessions and calls, and requests made to hurt."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import re
import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openreward
import ors.client
import pytest

from tests.attacks.board import CLIENT, attack
from tests.attacks.hosts import memory_mb
from tests.docker.harness import Client, RunningHost, running_host

TRAINER, AGENT_KEY = "trainer-" + uuid.uuid4().hex, "agent-" + uuid.uuid4().hex
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"


@pytest.fixture(scope="module")
def keyed_host(vault_image: str) -> Iterator[RunningHost]:
    """A host with both keys, and patience for few and short requests."""
    keys = {"ORS_HOST_API_KEY": TRAINER, "ORS_HOST_AGENT_KEY": AGENT_KEY}
    with running_host(vault_image, env=keys, max_sessions=4, max_connections=200, body_timeout=1) as host:
        yield host


@pytest.fixture
async def client(keyed_host: RunningHost) -> AsyncIterator[Client]:
    """The raw protocol, with the trainer's key."""
    async with aiohttp.ClientSession(keyed_host.url, headers={"X-API-Key": TRAINER}) as http:
        yield Client(http)
        async with http.get("/health") as response:
            assert response.status == 200


def send(host: RunningHost, *pieces: bytes, wait_s: float = 5, at_once: bool = False) -> bytes:
    """Send bytes as they are; return what comes back until the other side closes or falls silent, or (``at_once``) first."""
    port = int(host.url.rpartition(":")[2])
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as sock:
        try:
            for piece in pieces:
                sock.sendall(piece)
            while data := sock.recv(65536):
                answer += data
                if at_once:
                    break
        except (TimeoutError, ConnectionError):
            pass
    return answer


def head(*lines: str, key: str = TRAINER) -> bytes:
    return "\r\n".join([lines[0], "Host: x", f"X-API-Key: {key}", *lines[1:], "", ""]).encode("latin-1")


def command_line(host: RunningHost) -> bytes:
    return Path(f"/proc/{host.process.pid}/cmdline").read_bytes()


def status(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.[01] (\d+)", answer)
    return int(found[1]) if found else 0


@attack("K01", CLIENT, "guess a session's id")
async def test_ids_are_not_to_be_guessed(client: Client) -> None:
    ids = []
    for _ in range(200):
        async with client.http.post("/create_session") as response:
            ids.append((await response.json())["sid"])
    assert len(set(ids)) == 200
    assert all(uuid.UUID(sid).version == 4 for sid in ids)
    bits = [sum(sid.replace("-", "")[n] in "89abcdef" for sid in ids) for n in range(32) if n not in (12, 16)]
    assert all(50 < ones < 150 for ones in bits)  # of 200; no digit is a clock's or a counter's


@attack("K02", CLIENT, "go on with a session that has ended")
async def test_a_replayed_session(client: Client) -> None:
    session = await client.create()
    await session.delete()
    assert (await session.post("/ping"))[0] == 410
    assert (await session.get("/vault/prompt"))[0] == 410
    assert (await session.post("/vault/call", {"name": "ping", "input": {}}))[0] == 410


@attack("K03", CLIENT, "take the result of another session's call")
async def test_anothers_call(client: Client) -> None:
    mine, theirs = await asyncio.gather(client.create(), client.create())
    async with theirs.calling("bash", command="echo theirs") as stream:
        call_id = stream.call_id
        await stream.reply()
    reply = await mine.call("ping", call_id=call_id)
    assert (reply.event, reply.data) == ("error", "unknown task_id")
    await theirs.call("bash", call_id="traced-call", command="echo theirs")
    assert (await mine.call("ping", call_id="traced-call")).text == "pong"
    await asyncio.gather(mine.delete(), theirs.delete())


@attack("K04", CLIENT, "have one request taken for two")
def test_smuggled_requests(keyed_host: RunningHost) -> None:
    smuggled = (
        b"POST /delete HTTP/1.1\r\nHost: x\r\nX-API-Key: " + TRAINER.encode() + b"\r\nX-Session-ID: victim\r\n\r\n"
    )
    ambiguous = [
        ("Content-Length: 0", "Transfer-Encoding: chunked"),
        ("Content-Length: 5", "Content-Length: 0"),
        ("Transfer-Encoding : chunked",),
        ("Transfer-Encoding: chunked, identity",),
        ("Transfer-Encoding: xchunked",),
        ("Content-Length: +5",),
        ("Content-Length: 5 5",),
        ("X: y\nTransfer-Encoding: chunked",),
        ("X-Session-ID: a\0b",),
        (" Content-Length: 5",),
    ]
    for lines in ambiguous:
        request = head("POST /ping HTTP/1.1", "X-Session-ID: s", *lines) + b"0\r\n\r\n" + smuggled
        answer = send(keyed_host, request, wait_s=2)
        assert b'"sid"' not in answer, (lines, answer)
        assert status(answer) == 400, (lines, answer)


@attack("K05", CLIENT, "be two sessions in one request")
def test_two_session_ids(keyed_host: RunningHost) -> None:
    answer = send(keyed_host, head("POST /ping HTTP/1.1", "X-Session-ID: a", "X-Session-ID: b", "Connection: close"))
    assert status(answer) == 400


@attack("K06", CLIENT, "split the answer with line breaks in an id")
async def test_line_breaks_in_ids(client: Client) -> None:
    session = await client.create()
    for call_id in ("a\r\n\r\nevent: end", "a\nb", "a b", "", "x" * 129, "é"):
        body = {"name": "ping", "input": {}, "task_id": call_id}
        assert (await session.post("/vault/call", body))[0] == 400, call_id
    await session.delete()


@attack("K07", CLIENT, "hold connections with requests that never end")
def test_slow_requests(keyed_host: RunningHost) -> None:
    started = time.monotonic()
    slow = head("POST /create HTTP/1.1", "X-Session-ID: slow", "Content-Length: 1000") + b"{"
    assert status(send(keyed_host, slow, wait_s=8, at_once=True)) == 408
    assert time.monotonic() - started < 6


@attack("K08", CLIENT, "keep everybody else out with idle connections")
async def test_thousands_of_idle_connections(keyed_host: RunningHost, client: Client) -> None:
    session = await client.create()  # whoever is in stays in
    before = memory_mb(keyed_host)
    port = int(keyed_host.url.rpartition(":")[2])
    idle = []
    try:
        for _ in range(2000):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
            idle.append(sock)
        await asyncio.sleep(1)
        assert (await session.call("ping")).text == "pong"
        assert len(os.listdir(f"/proc/{keyed_host.process.pid}/fd")) < 300
        assert memory_mb(keyed_host) - before < 30
    finally:
        for sock in idle:
            sock.close()
    await session.delete()


@attack("K09", CLIENT, "keep thousands of streams of one call open")
async def test_many_streams(keyed_host: RunningHost, client: Client) -> None:
    session = await client.create()
    before = memory_mb(keyed_host)
    body = {"name": "bash", "input": {"command": "sleep 60"}, "task_id": "one-call"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(keyed_host.url, connector=connector, headers={"X-API-Key": TRAINER}) as http:
        opened = await asyncio.gather(
            *(http.post("/vault/call", json=body, headers=session.headers) for _ in range(400)), return_exceptions=True
        )
        streams = [response for response in opened if isinstance(response, aiohttp.ClientResponse)]
        assert 0 < len(streams) <= 200
        assert memory_mb(keyed_host) - before < 50
        for response in streams:
            response.close()
    await session.delete()


@attack("K10", CLIENT, "have a small body unpacked to a large one")
async def test_a_packed_body(keyed_host: RunningHost, client: Client) -> None:
    before = memory_mb(keyed_host)
    bomb = gzip.compress(b"0" * (200 * 2**20), compresslevel=9)
    for encoding in ("gzip", "deflate", "br", "gzip, gzip"):
        headers = {"Content-Encoding": encoding, "X-Session-ID": "s"}
        async with client.http.post("/create", data=bomb, headers=headers) as response:
            assert response.status == 415
    assert memory_mb(keyed_host) - before < 20


@attack("K11", CLIENT, "have a body of a few megabytes parsed to gigabytes")
async def test_a_body_of_many_values(keyed_host: RunningHost, client: Client) -> None:
    before = memory_mb(keyed_host)
    body = b'{"task_spec":{"a":[' + b"[]," * (3 * 2**20) + b"0]}}"
    started = time.monotonic()
    answer = await asyncio.to_thread(
        send, keyed_host, head("POST /create HTTP/1.1", "X-Session-ID: s", f"Content-Length: {len(body)}"), body
    )
    assert status(answer) == 400 and b"values" in answer
    assert time.monotonic() - started < 8
    assert memory_mb(keyed_host) - before < 40
    deep = '{"task_spec":{"a":' + "[" * 50_000 + "]" * 50_000 + "}}"
    async with client.http.post("/create", data=deep, headers={"X-Session-ID": "s"}) as response:
        assert response.status == 400


@attack("K12", CLIENT, "get to another route by an odd spelling of its path")
def test_odd_paths(keyed_host: RunningHost) -> None:
    for path in (
        "/vault%2Ftasks",
        "/vault%2f..%2ftasks",
        "//vault/tasks",
        "/vault/%2e%2e/tasks",
        "/vault/tasks%00",
        "/vault/tasks;x",
        "/prompt/../tasks",
        "http://evil.example/vault/tasks",
        "/vault\\tasks",
    ):
        body = b'{"split":"train"}'
        request = (
            head(f"POST {path} HTTP/1.1", f"Content-Length: {len(body)}", "Connection: close", key=AGENT_KEY) + body
        )
        answer = send(keyed_host, request, wait_s=2)
        assert b"in-the-catalog" not in answer, path
        assert status(answer) in (400, 403, 404), (path, answer)


@attack("K13", CLIENT, "fill memory with headers")
def test_huge_headers(keyed_host: RunningHost) -> None:
    before = memory_mb(keyed_host)
    for lines in ((f"X-Big: {'x' * 2**20}",), tuple(f"X-{n}: y" for n in range(5000)), (f"{'N' * 10**5}: y",)):
        assert status(send(keyed_host, head("GET /health HTTP/1.1", *lines), wait_s=2)) in (0, 400, 431)
    assert status(send(keyed_host, head(f"GET /{'a' * 10**6} HTTP/1.1"), wait_s=2)) in (0, 400, 414)
    assert memory_mb(keyed_host) - before < 20


@attack("K14", CLIENT, "find a secret in what is logged about a bad request")
async def test_secrets_in_the_log(keyed_host: RunningHost, client: Client) -> None:
    hidden = "hunter2-" + uuid.uuid4().hex
    secrets = base64.b64encode(json.dumps({"K": {"value": hidden}}).encode()).decode()
    session = await client.create({"answer": hidden}, secrets={"key": hidden})
    await session.call("fail", text=hidden)
    await session.delete()
    for lines in ((f"X-Secrets: {secrets}", f"X-API-Key: {hidden}"), (f"X-Secrets: {secrets}\0",), (f"Bad {hidden}",)):
        send(keyed_host, head("POST /create HTTP/1.1", *lines), wait_s=0.5)
    for word in (hidden, secrets, TRAINER, AGENT_KEY):
        assert word not in keyed_host.log
    assert TRAINER.encode() not in command_line(keyed_host)


@attack("K15", CLIENT, "do anything without a key")
async def test_no_key(keyed_host: RunningHost) -> None:
    wrong: list[dict[str, str]] = [
        {},
        {"X-API-Key": "wrong"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TRAINER}"},
    ]
    requests = [("GET", "/list_environments"), ("POST", "/vault/tasks"), ("POST", "/create"), ("GET", "/x")]
    for sent in wrong:
        async with aiohttp.ClientSession(keyed_host.url, headers=sent) as http:
            for method, path in requests:
                async with http.request(method, path, json={}, headers={"X-Session-ID": "s"}) as response:
                    assert response.status == 401, path
                    assert set(await response.json()) == {"detail", "reason"}


@attack("K16", CLIENT, "read the task list, or make or end sessions, with the agent's key")
async def test_the_agents_key(keyed_host: RunningHost, client: Client) -> None:
    session = await client.create({"answer": "42"})
    async with aiohttp.ClientSession(keyed_host.url, headers={"Authorization": f"Bearer {AGENT_KEY}"}) as http:
        for path in ("/vault/tasks", "/vault/task", "/create", "/delete", "/create_session"):
            async with http.post(path, json={"split": "train"}, headers=session.headers) as response:
                assert response.status == 403, path
        playing = Client(http).session(session.sid)
        assert (await playing.get("/vault/prompt"))[0] == 200
        assert (await playing.call("ping")).text == "pong"
        assert (await Client(http).session().get("/vault/prompt"))[0] == 404
    await session.delete()


@pytest.mark.parametrize("name", ["ors-sdk", "openreward"])
async def test_the_public_clients_send_a_key(
    keyed_host: RunningHost, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "ors-sdk":
        api: Any = ors.client.AsyncORS(base_url=keyed_host.url, api_key=TRAINER)
    else:
        for variable in ("OPENREWARD_SESSION_URL", "OPENREWARD_API_URL"):
            monkeypatch.setenv(variable, keyed_host.url)
        api = openreward.AsyncOpenReward(api_key=TRAINER)
    try:
        environment = api.environments.get("vault")
        tasks = await environment.list_tasks("train")
        async with environment.session(tasks[0]) as session:
            assert (await session.get_prompt())[0].text == "find out"
            assert (await session.call_tool("ping", {})).blocks[0].text == "pong"
    finally:
        for http in api.environments._clients.values():
            await http.close()
