"""The channel to somebody else's server, over real connections: its dialects, its misdeeds, and calls that are sent once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from host import server_channel, server_connection, server_http
from host.answers import InvalidAnswer, as_json, as_value
from host.channel import ChannelBroken, ChannelClosed, ProtocolViolation, RequestTimeout, RuntimeFault
from host.errors import Reason, SandboxFailed
from host.intake import Intake
from host.netns import NoEntry
from host.server_channel import ServerChannel
from host.server_note import ServerNote
from sandbox_runtime.messages import Fault, Method
from tests.host.served import until

OUTPUT = {"ok": True, "output": {"blocks": [{"type": "text", "text": "hi", "detail": None}], "metadata": None}}
OUTPUT["output"] |= {"reward": 0.5, "finished": False}  # type: ignore[operator]
RESULT = json.dumps(OUTPUT).encode()


def http(body: bytes = b"", *, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    """Return an answer as bytes."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def stream(*events: bytes, end: bool = True) -> bytes:
    """Return an event stream as bytes, in chunks; without an end if it is to be cut."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + (b"0\r\n\r\n" if end else b"")


def event(name: str, data: bytes | str) -> bytes:
    return f"event: {name}\r\ndata: ".encode() + (data.encode() if isinstance(data, str) else data) + b"\r\n\r\n"


Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Asked:
    """One request that the server got."""

    verb: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Stranger:
    """A server whose answers are bytes, by path; several are given one after the other. An answer of b"" is a cut."""

    answers: dict[str, Answer | list[Answer]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    server: asyncio.Server | None = None

    def paths(self) -> list[str]:
        return [asked.path for asked in self.asked]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                verb, path, _ = first.split(" ")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append(Asked(verb, path, headers, json.loads(body) if body else None))
                answer = self.answers.get(path, http(b'{"detail":"Not Found"}', status="404 Not Found"))
                if isinstance(answer, list):
                    answer = answer.pop(0)
                if callable(answer):
                    await answer(writer)
                    return
                writer.write(answer)
                await writer.drain()
                if not answer or b"chunked" in answer and not answer.endswith(b"0\r\n\r\n"):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class Namespace:
    """Where the server can be reached without entering anything."""

    async def socket(self, family: socket.AddressFamily) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        """Nothing was entered."""


@pytest.fixture
async def stranger() -> AsyncIterator[Stranger]:
    stranger = Stranger(
        {
            "/health": http(b'{"status":"ok"}'),
            "/list_environments": http(b'["box","other-box"]'),
            "/create_session": http(b'{"sid":"s-1"}'),
            "/create": http(b'{"sid":"s-1"}'),
            "/box/prompt": http(b'[{"type":"text","text":"go"}]'),
            "/box/task_tools": http(b'{"tools":[]}'),
            "/box/call": stream(event("task_id", "t1"), event("end", RESULT)),
            "/delete": http(b'{"sid":"s-1"}'),
        }
    )
    stranger.server = await asyncio.start_server(stranger.serve, "127.0.0.1", 0)
    stranger.port = stranger.server.sockets[0].getsockname()[1]
    try:
        yield stranger
    finally:
        stranger.server.close()


Open = Callable[[], Awaitable[ServerChannel]]


@pytest.fixture
async def reopen(stranger: Stranger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Open]:
    """Make channels to the server, each finding the note of the one before; not listening yet."""
    monkeypatch.setattr(server_channel, "_DEATH_WAIT_S", 0.05)
    monkeypatch.setattr(server_http, "_TRY_PAUSE_S", 0.01)
    monkeypatch.setattr("host.server_calls._RECONNECT_PAUSE_S", 0.01)
    async with AsyncExitStack() as stack:

        async def enter() -> Any:
            return Namespace()

        async def open_one() -> ServerChannel:
            again = (tmp_path / "s").exists()
            channel = ServerChannel(
                tmp_path / "s",
                enter=enter,
                port=stranger.port,
                note=tmp_path / "note",
                max_frame_bytes=1_000_000,
                intake=Intake(),
            )
            stack.push_async_callback(channel.aclose)
            await channel.listen(owner=None, again=again)
            return channel

        yield open_one


@pytest.fixture
async def channel(reopen: Open) -> ServerChannel:
    return await reopen()


async def create(channel: ServerChannel, **more: Any) -> None:
    await channel.wait_hello()
    params = {"env": "box", "task_spec": {"n": 1}, "secrets": {}, "toolset_name": None, **more}
    await channel.request(Method.CREATE, params, timeout_s=5)
    await channel.request(Method.SETUP, {}, timeout_s=5)


async def call(channel: ServerChannel, call_id: str = "c1", *, timeout_s: float = 5) -> Any:
    params = {"call_id": call_id, "name": "look", "input": {"x": 1}}
    value = await channel.request(Method.CALL, params, timeout_s=timeout_s)
    return json.loads(as_json(Method.CALL, value))


async def test_an_episode(channel: ServerChannel, stranger: Stranger) -> None:
    assert list((await channel.wait_hello()).environments) == ["box", "other-box"]
    await create(channel)
    prompt = await channel.request(Method.PROMPT, {}, timeout_s=5)
    assert json.loads(as_json(Method.PROMPT, prompt)) == [{"text": "go", "detail": None, "type": "text"}]
    assert stranger.paths().count("/box/prompt") == 1  # the one that set-up was waited for with
    await channel.request(Method.PROMPT, {}, timeout_s=5)
    assert stranger.paths().count("/box/prompt") == 2
    assert await call(channel) == OUTPUT
    await channel.request(Method.TEARDOWN, {}, timeout_s=5)
    asked = {asked.path: asked for asked in stranger.asked}
    assert asked["/create"].body == {"env_name": "box", "task_spec": {"n": 1}}
    assert asked["/box/call"].body == {"name": "look", "input": {"x": 1}}
    assert asked["/delete"].headers["x-session-id"] == "s-1"


@pytest.mark.parametrize(
    "answer",
    [
        http(b'{"sid":"s-9"}'),
        stream(event("task_id", "s-9"), event("end", "")),
        http(b"event: task_id\ndata: s-9\n\n", kind="text/event-stream"),
    ],
)
async def test_dialects_of_create_session(channel: ServerChannel, stranger: Stranger, answer: bytes) -> None:
    stranger.answers["/create_session"] = answer
    await create(channel)
    assert stranger.asked[-1].headers["x-session-id"] == "s-9"


async def test_a_server_that_makes_no_ids(channel: ServerChannel, stranger: Stranger) -> None:
    del stranger.answers["/create_session"]
    await create(channel)
    assert len(stranger.asked[-1].headers["x-session-id"]) == 36


async def test_secrets_in_the_body_and_the_header(channel: ServerChannel, stranger: Stranger) -> None:
    await create(channel, secrets={"KEY": "v"})
    asked = next(asked for asked in stranger.asked if asked.path == "/create")
    assert asked.body["secrets"] == {"KEY": "v"}
    assert asked.headers["x-secrets"] == "eyJLRVkiOiB7InZhbHVlIjogInYifX0="


async def test_a_server_that_takes_secrets_in_the_header_alone(channel: ServerChannel, stranger: Stranger) -> None:
    stranger.answers["/create"] = [http(b'{"detail":[]}', status="422 Unprocessable"), http(b'{"sid":"s-1"}')]
    await create(channel, secrets={"KEY": "v"})
    first, second = [asked for asked in stranger.asked if asked.path == "/create"]
    assert "secrets" in first.body and "secrets" not in second.body and "x-secrets" in second.headers


async def test_secrets_are_not_in_the_note(channel: ServerChannel, tmp_path: Path) -> None:
    await create(channel, secrets={"KEY": "v3ry-s3cret"})
    await call(channel)
    note = (tmp_path / "note").read_text()
    assert "s-1" in note and "c1" in note and "s3cret" not in note


CALLS_THAT_FAIL = [
    (http(b"<html>oops</html>", status="500 Oops", kind="text/html"), Fault.ENVIRONMENT_RAISED, "500 (text/html)"),
    (http(b'{"detail":"ValueError: no"}', status="500 Oops"), Fault.ENVIRONMENT_RAISED, "500 (ValueError: no)"),
    (
        http(b"", status="302 Found", more="Location: http://10.0.0.1/\r\n"),
        Fault.ENVIRONMENT_RAISED,
        "a redirect, which",
    ),
    (http(b"<html>fine</html>", kind="text/html"), Fault.BAD_RESULT, "not JSON"),
    (stream(event("task_id", "t"), event("error", "it broke")), Fault.ENVIRONMENT_RAISED, "it broke"),
    (stream(event("error", "")), Fault.ENVIRONMENT_RAISED, "doesn't say how"),
    (stream(event("task_id", "t"), event("end", '{"ok":true,"output":{"blocks":[]}}')), Fault.BAD_RESULT, "blocks"),
    (stream(event("end", RESULT.replace(b"0.5", b"NaN"))), Fault.BAD_RESULT, "not JSON"),
    (stream(event("end", b"[" * 500_000)), Fault.BAD_RESULT, "none"),
    (stream(event("task_id", "t" * 300)), Fault.BAD_RESULT, "broke the connection off"),
    (stream(event("task_id", "a\x1b[31m")), Fault.BAD_RESULT, "broke the connection off"),
    (stream(b"", end=True), Fault.BAD_RESULT, "protocol_violation: the environment's server broke the connection off"),
    (b"", Fault.BAD_RESULT, "protocol_violation: the environment's server broke the connection off"),
    (
        stream(b": ping\n\n", end=False),
        Fault.BAD_RESULT,
        "protocol_violation: the environment's server broke the connection off",
    ),
]


@pytest.mark.parametrize(("answer", "fault", "words"), CALLS_THAT_FAIL)
async def test_calls_that_fail_and_are_not_sent_again(
    channel: ServerChannel, stranger: Stranger, answer: bytes, fault: Fault, words: str
) -> None:
    await create(channel)
    stranger.answers["/box/call"] = answer
    with pytest.raises(RuntimeFault) as caught:
        await call(channel)
    assert caught.value.fault is fault
    assert words in str(caught.value)
    assert stranger.paths().count("/box/call") == 1
    stranger.answers["/box/call"] = http(RESULT)
    assert await call(channel, "c2") == OUTPUT  # the session goes on


ENDLESS = [
    (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65536, "not HTTP"),
    (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10_000, "not HTTP"),
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100, "preliminary answers without end"),
    (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b"[1," * 20_000, "an answer of more than"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999999999\r\n\r\n", b"x", "an answer of more than"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", b"x", "not HTTP"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", b"xxx", "not HTTP"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n", "not HTTP"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", b"x", "packed for transfer"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;", b"e" * 65536, "that are no body"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 10_000, "that are no body"),
    (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n", b"x" * 9, "a packed answer"),
    (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"", "not HTTP"),
    (b"\x00\x01garbage", b"\r\n\r\n", "not HTTP"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"f" * 70_000, "not HTTP"),
]


@pytest.mark.parametrize(("head", "piece", "words"), ENDLESS)
@pytest.mark.parametrize("where", ["/box/call", "/list_environments"])
async def test_what_is_not_http_or_without_end(
    channel: ServerChannel, stranger: Stranger, head: bytes, piece: bytes, words: str, where: str
) -> None:
    async def pour(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        for _ in range(200):
            writer.write(piece)
            await writer.drain()

    if where == "/box/call":
        await create(channel)
    stranger.answers[where] = pour
    with pytest.raises(ProtocolViolation, match=words):
        if where == "/box/call":
            await call(channel)
        else:
            await channel.wait_hello()
    assert isinstance(await channel.wait_ended(), ProtocolViolation)


async def test_a_stream_without_end(channel: ServerChannel, stranger: Stranger) -> None:
    async def pour(writer: asyncio.StreamWriter) -> None:
        writer.write(stream(event("task_id", "t1"), end=False))
        for _ in range(400):
            writer.write(b"4000\r\n" + b"x" * 16384 + b"\r\n")
            await writer.drain()

    await create(channel)
    stranger.answers["/box/call"] = pour
    with pytest.raises(RuntimeFault, match="a stream of more than"):
        await call(channel)


async def test_small_pieces_do_not_hold_up_others(
    channel: ServerChannel, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.server_reader._MAX_PIECES", 20_000)

    async def pour(writer: asyncio.StreamWriter) -> None:
        writer.write(stream(event("task_id", "t1"), end=False))
        for _ in range(100):
            writer.write(b"1\r\n:\r\n" * 1000)
            await writer.drain()

    await create(channel)
    stranger.answers["/box/call"] = pour
    calling = asyncio.create_task(call(channel))
    longest = 0.0
    while not calling.done():
        asked_at = time.perf_counter()
        await asyncio.sleep(0)
        longest = max(longest, time.perf_counter() - asked_at)
    with pytest.raises(ProtocolViolation, match="in more than 20000 pieces"):
        await calling
    assert longest < 0.2  # all of them at once take longer


async def test_what_follows_the_result_is_not_read_for_long(channel: ServerChannel, stranger: Stranger) -> None:
    async def pour(writer: asyncio.StreamWriter) -> None:
        writer.write(stream(event("task_id", "t1"), event("end", RESULT), end=False) + b"1\r\n:\r\n" * 200_000)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            await writer.wait_closed()
        hung_up.set()

    hung_up = asyncio.Event()
    await create(channel)
    stranger.answers["/box/call"] = [pour, http(RESULT)]
    assert await call(channel) == OUTPUT
    assert await call(channel, "c2") == OUTPUT
    async with asyncio.timeout(1):  # not only when the time for the rest of an answer is over
        await hung_up.wait()


async def test_the_rest_of_an_answer_is_not_waited_for_long(
    channel: ServerChannel, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_channel, "_LOOK_S", 0.02)
    monkeypatch.setattr(server_connection, "_DRAIN_S", 0.1)

    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(stream(event("task_id", "t1"), event("end", RESULT), end=False))
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"1\r\n:\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        open_for.set_result(time.monotonic() - began)

    open_for: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    await create(channel)
    stranger.answers["/box/call"] = trickle
    assert await call(channel) == OUTPUT
    async with asyncio.timeout(5):
        assert 0.1 <= await open_for < 2
    assert not channel.ended


async def test_a_head_that_comes_long_before_its_body(channel: ServerChannel, stranger: Stranger) -> None:
    async def in_two(writer: asyncio.StreamWriter) -> None:
        whole = stream(event("task_id", "t1"), event("end", RESULT))
        head = whole.index(b"\r\n\r\n") + 4
        for piece in (whole[: head // 2], whole[head // 2 : head], whole[head:]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.05)

    await create(channel)
    stranger.answers["/box/call"] = in_two
    assert await call(channel) == OUTPUT


async def test_a_body_that_is_refused_while_it_is_waited_for(channel: ServerChannel, stranger: Stranger) -> None:
    async def no_chunk(writer: asyncio.StreamWriter) -> None:
        writer.write(stream(end=False))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(b"this is no chunk\r\n")
        await writer.drain()
        await asyncio.sleep(5)

    await create(channel)
    stranger.answers["/box/call"] = no_chunk
    with pytest.raises(ProtocolViolation, match="not HTTP"):
        await call(channel)


async def test_a_stream_cut_after_its_name_is_asked_for_again(channel: ServerChannel, stranger: Stranger) -> None:
    await create(channel)
    stranger.answers["/box/call"] = [
        stream(event("task_id", "t1"), event("chunk", RESULT[:10]), end=False),
        stream(event("task_id", "t1"), event("chunk", RESULT[:10]), event("end", RESULT[10:])),
    ]
    assert await call(channel) == OUTPUT
    first, again = [asked.body for asked in stranger.asked if asked.path == "/box/call"]
    assert "task_id" not in first
    assert again == {
        "name": "ors-host.reconnect",
        "input": {},
        "task_id": "t1",
    }  # which runs nothing, whatever it knows


@pytest.mark.parametrize("again", [stream(event("error", "unknown task_id")), stream(event("task_id", "t2"))])
async def test_a_cut_stream_of_a_call_that_the_server_forgot(
    channel: ServerChannel, stranger: Stranger, again: bytes
) -> None:
    await create(channel)
    stranger.answers["/box/call"] = [stream(event("task_id", "t1"), end=False), again]
    with pytest.raises(RuntimeFault, match="no longer knows the call: it may have run"):
        await call(channel)


async def test_a_stream_that_is_cut_again_and_again(channel: ServerChannel, stranger: Stranger) -> None:
    await create(channel)
    stranger.answers["/box/call"] = stream(event("task_id", "t1"), end=False)
    with pytest.raises(RuntimeFault, match="again and again"):
        await call(channel)
    bodies = [asked.body for asked in stranger.asked if asked.path == "/box/call"]
    assert ["task_id" in body for body in bodies] == [False] + [True] * (len(bodies) - 1)


async def test_a_server_that_is_starting_is_asked_again(
    channel: ServerChannel, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.server_asking._STARTING_PAUSE_S", 0.01)
    starting = http(b'{"detail":"x"}', status="503 Later", more="X-Backend-State: starting\r\n")
    stranger.answers["/box/prompt"] = [starting, starting, http(b'[{"type":"text","text":"go"}]')]
    await create(channel)
    assert stranger.paths().count("/box/prompt") == 3


async def test_a_set_up_that_fails(channel: ServerChannel, stranger: Stranger) -> None:
    stranger.answers["/box/prompt"] = http(b'{"detail":"ValueError: no"}', status="500 Oops")
    stranger.answers["/box/task_tools"] = http(b'{"detail":"ValueError: no"}', status="500 Oops")
    with pytest.raises(RuntimeFault, match="ValueError: no"):
        await create(channel)


async def test_a_prompt_that_fails_is_no_set_up_that_fails(channel: ServerChannel, stranger: Stranger) -> None:
    stranger.answers["/box/prompt"] = http(b'{"detail":"ValueError: no"}', status="500 Oops")
    await create(channel)
    with pytest.raises(RuntimeFault, match="ValueError: no"):
        await channel.request(Method.PROMPT, {}, timeout_s=5)
    assert stranger.paths().count("/box/prompt") == 1


async def test_time_outs_are_never_confirmed(channel: ServerChannel, stranger: Stranger) -> None:
    async def wait(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    await create(channel)
    stranger.answers["/box/call"] = wait
    with pytest.raises(RequestTimeout) as caught:
        await call(channel, timeout_s=0.05)
    assert not caught.value.ended


async def test_calls_after_the_end_of_the_episode(channel: ServerChannel, stranger: Stranger) -> None:
    await create(channel)
    stranger.answers["/box/call"] = http(RESULT.replace(b"false", b"true"))
    assert (await call(channel))["output"]["finished"] is True
    assert (await call(channel, "c2"))["reason"] == "episode_finished"
    assert stranger.paths().count("/box/call") == 1


async def test_questions(channel: ServerChannel, stranger: Stranger) -> None:
    await channel.wait_hello()
    stranger.answers |= {
        "/box/tools": http(b'{"tools":[{"name":"a","new":1}],"future":true}'),
        "/box/splits": http(b'["train",{"name":"x"}]'),
        "/box/tasks": http(b'{"tasks":[{"n":1}],"env_name":"box"}'),
        "/box/num_tasks": http(b'{"num_tasks":3}'),
        "/box/task": [b"", http(b'{"task":{"n":1}}')],  # asked again: nothing can have been run
        "/box/task_range": http(b'{"detail":"Invalid index range"}', status="400 Bad"),
    }

    async def ask(method: Method, **params: Any) -> Any:
        return as_value(method, await channel.request(method, {"env": "box", **params}, timeout_s=5))

    tools = await ask(Method.LIST_TOOLS)
    assert tools.model_dump() == {"tools": [{"name": "a", "description": "", "input_schema": None}]}
    assert [(split.name, split.type) for split in await ask(Method.LIST_SPLITS)] == [
        ("train", "train"),
        ("x", "validation"),
    ]
    assert await ask(Method.LIST_TASKS, split="train") == [{"n": 1}]
    assert await ask(Method.NUM_TASKS, split="train") == 3
    assert await ask(Method.GET_TASK, split="train", index=0) == {"n": 1}
    with pytest.raises(RuntimeFault, match="Invalid index range") as caught:
        await ask(Method.GET_TASK_RANGE, split="train", start=0, stop=9)
    assert caught.value.fault is Fault.INVALID_INDEX
    stranger.answers["/box/num_tasks"] = http(b'{"num_tasks":"many"}')
    with pytest.raises(InvalidAnswer):
        await ask(Method.NUM_TASKS, split="train")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"a\ud800b", "a\ufffdb"),
        (r"\udc00", "\ufffd"),
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\\ud800\ud800", "\\ud800\ufffd"),
    ],
)
async def test_half_a_character(channel: ServerChannel, stranger: Stranger, written: str, read: str) -> None:
    await create(channel)
    stranger.answers["/box/call"] = http(RESULT.replace(b"hi", written.encode()))
    assert (await call(channel))["output"]["blocks"][0]["text"] == read


async def test_a_creation_that_is_answered_with_a_page(channel: ServerChannel, stranger: Stranger) -> None:
    stranger.answers["/create"] = http(b"<html>", kind="text/html")
    with pytest.raises(RuntimeFault, match="protocol_violation: .* no JSON object"):
        await create(channel)


async def test_a_heavy_answer_is_read_elsewhere(channel: ServerChannel, stranger: Stranger) -> None:
    await channel.wait_hello()
    stranger.answers["/box/tasks"] = http(json.dumps({"tasks": [{"n": n} for n in range(30_000)]}).encode())
    value = await channel.request(Method.LIST_TASKS, {"env": "box", "split": "train"}, timeout_s=30)
    assert len(as_value(Method.LIST_TASKS, value)) == 30_000


@pytest.mark.parametrize("names", [b'["a/b"]', b'[".."]', b'["a\\nb"]', b"{}", b"[1]", b"<html>", b'["x y"]'])
async def test_names_that_are_none(channel: ServerChannel, stranger: Stranger, names: bytes) -> None:
    stranger.answers["/list_environments"] = http(names)
    with pytest.raises(ProtocolViolation):
        await channel.wait_hello()


@pytest.mark.parametrize("sid", [b'{"sid":"a b"}', b'{"sid":""}', b'{"sid":"a\\r\\nX: y"}', b"{}", b'{"sid":7}', b"[]"])
async def test_session_ids_that_are_none(channel: ServerChannel, stranger: Stranger, sid: bytes) -> None:
    stranger.answers["/create_session"] = http(sid)
    with pytest.raises(ProtocolViolation, match="no session id"):
        await create(channel)


async def test_a_server_that_leaves_its_port(
    channel: ServerChannel, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_channel, "_LOOK_S", 0.02)
    await channel.wait_hello()
    assert stranger.server is not None
    stranger.server.close()
    async with asyncio.timeout(5):
        end = await channel.wait_ended()
    assert isinstance(end, ChannelBroken) and "listens no more on port" in str(end)


async def test_a_session_is_kept_from_being_forgotten(
    channel: ServerChannel, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_channel, "_LOOK_S", 0.02)
    monkeypatch.setattr(server_channel, "_PING_S", 0.04)
    await create(channel)
    async with asyncio.timeout(5):
        await until(lambda: stranger.paths().count("/ping") >= 2)
    assert all(asked.headers["x-session-id"] == "s-1" for asked in stranger.asked if asked.path == "/ping")
    assert not channel.ended  # it has no such route, which is no reason to end


async def test_the_containers_death_ends_a_call(channel: ServerChannel, stranger: Stranger) -> None:
    async def die(writer: asyncio.StreamWriter) -> None:
        channel.peer_died()

    await create(channel)
    stranger.answers["/box/call"] = die
    with pytest.raises(ChannelBroken, match="the container died"):
        await call(channel)


async def test_a_connection_that_was_closed_at_rest_is_not_used_again(
    channel: ServerChannel, stranger: Stranger
) -> None:
    await create(channel)
    stranger.answers["/box/call"] = [http(RESULT), http(RESULT)]
    await call(channel)

    async def hang_up(writer: asyncio.StreamWriter) -> None:
        writer.write(http(b'[{"type":"text","text":"go"}]'))
        await writer.drain()  # and closes, though it had promised nothing of the kind

    stranger.answers["/box/messages"] = hang_up
    stranger.answers["/box/prompt"] = hang_up
    await channel.request(Method.PROMPT, {}, timeout_s=5)
    await channel.request(Method.PROMPT, {}, timeout_s=5)
    assert await call(channel, "c2") == OUTPUT


async def test_connections_are_kept(channel: ServerChannel, stranger: Stranger) -> None:
    await create(channel)
    before = stranger.connections
    for number in range(5):
        await call(channel, f"c{number}")
    assert stranger.connections == before


class TestTheNextHost:
    """What a host that was killed had running, in the one that comes after it."""

    async def test_goes_on_with_the_session_and_its_calls(
        self, channel: ServerChannel, stranger: Stranger, reopen: Open
    ) -> None:
        async def wait(writer: asyncio.StreamWriter) -> None:
            writer.write(stream(event("task_id", "t1"), end=False))
            await writer.drain()
            named.set()
            await asyncio.Event().wait()

        async def keep_quiet(writer: asyncio.StreamWriter) -> None:
            quiet.set()
            await asyncio.Event().wait()

        named, quiet = asyncio.Event(), asyncio.Event()
        await create(channel)
        await call(channel, "over")
        stranger.answers["/box/call"] = [wait, keep_quiet]
        calls = [asyncio.create_task(call(channel, "named"))]
        await named.wait()
        calls.append(asyncio.create_task(call(channel, "nameless")))
        await quiet.wait()
        await until(lambda: channel._note.calls["named"].task_id == "t1")
        channel.hang_up()
        for running in calls:
            with pytest.raises(ChannelClosed):
                await running

        successor = await reopen()
        episode = (await successor.wait_hello()).episode
        assert episode is not None
        assert (episode.environment, episode.running_calls, episode.finished_calls) == (
            "box",
            ["named", "nameless"],
            ["over"],
        )
        prompts = stranger.paths().count("/box/prompt")
        await successor.request(Method.SETUP, {}, timeout_s=5)
        assert stranger.paths().count("/box/prompt") == prompts  # it is known to be set up
        stranger.answers["/box/call"] = [stream(event("task_id", "t1"), event("end", RESULT))]
        value = await successor.request(Method.RESULT, {"call_id": "named"}, timeout_s=5)
        assert json.loads(as_json(Method.RESULT, value)) == OUTPUT
        with pytest.raises(RuntimeFault, match="it may have run, and is not run again"):
            await successor.request(Method.RESULT, {"call_id": "nameless"}, timeout_s=5)
        assert stranger.asked[-1].headers["x-session-id"] == "s-1"

    async def test_finds_nothing_of_a_session_that_was_not_created(self, channel: ServerChannel, reopen: Open) -> None:
        await channel.wait_hello()
        channel.hang_up()
        assert (await (await reopen()).wait_hello()).episode is None

    async def test_reads_a_note_that_breaks_off(self, channel: ServerChannel, reopen: Open, tmp_path: Path) -> None:
        await create(channel)
        note = tmp_path / "note"
        note.write_bytes(note.read_bytes() + b'{"call":"c1","meth')
        channel.hang_up()
        episode = (await (await reopen()).wait_hello()).episode
        assert episode is not None and not episode.running_calls

    async def test_a_note_tells_of_a_call_whose_host_was_killed_a_moment_after_it(
        self, channel: ServerChannel, tmp_path: Path
    ) -> None:
        await create(channel)
        await call(channel, "over")
        await until(lambda: ServerNote.read(tmp_path / "note").calls["over"].ended_at is not None)
        noted = ServerNote.read(tmp_path / "note").calls["over"]
        assert noted == channel._note.calls["over"] and noted.task_id is not None

    async def test_a_note_quotes_what_a_client_calls_its_call(self, channel: ServerChannel, tmp_path: Path) -> None:
        await create(channel)
        call_id = 'c","method":"call","over":["x"],"y":"\\'
        await call(channel, call_id)
        channel.hang_up()
        note = ServerNote.read(tmp_path / "note")
        assert list(note.calls) == [call_id] and note.calls[call_id].ended_at is not None and not note.over

    async def test_notes_do_not_grow_without_end(
        self, channel: ServerChannel, reopen: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("host.server_note._LINES", 20)
        monkeypatch.setattr("host.server_note._LINGER_S", 0)
        monkeypatch.setattr("host.server_note._MAX_FORGOTTEN", 3)
        await create(channel)
        for number in range(50):
            await call(channel, f"c{number}")
        assert len((tmp_path / "note").read_bytes().splitlines()) < 40
        channel.hang_up()
        episode = (await (await reopen()).wait_hello()).episode
        assert episode is not None and "c49" in episode.forgotten_calls


async def test_a_network_that_cannot_be_entered(tmp_path: Path) -> None:
    async def enter() -> Any:
        raise NoEntry("not from here")

    channel = ServerChannel(
        tmp_path / "s", enter=enter, port=1, note=tmp_path / "n", max_frame_bytes=1000, intake=Intake()
    )
    await channel.listen(owner=None)
    with pytest.raises(SandboxFailed, match="can't be reached: not from here") as caught:
        await channel.wait_hello()
    assert caught.value.failure.reason is Reason.START_FAILED
    await channel.aclose()
