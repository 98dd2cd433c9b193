"""The channel against runtimes that behave and runtimes that don't, over a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from host.channel import ChannelBroken, ChannelClosed, ProtocolViolation, RequestTimeout, RuntimeFault
from host.runtime_channel import RuntimeChannel
from sandbox_runtime import frames, messages
from sandbox_runtime.messages import PROTOCOL_VERSION, Fault, Method

TOKEN = "0123456789abcdef"
HELLO = {"protocol": PROTOCOL_VERSION, "token": TOKEN, "runtime_version": "0", "environments": ["BashEnv"]}


class Peer:
    """The other end, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._decoder = frames.FrameDecoder()
        self._read: list[dict[str, Any]] = []

    @classmethod
    async def dial(cls, channel: RuntimeChannel) -> Peer:
        """Connect without a word."""
        return cls(*await asyncio.open_unix_connection(str(channel.directory / "host.sock")))

    def send(self, message: Any) -> None:
        """Send any JSON value as a frame."""
        body = json.dumps(message).encode()
        self.writer.write(len(body).to_bytes(4, "big") + body)

    async def hello(self, **changes: Any) -> None:
        """Say hello."""
        self.send(messages.request(0, "hello", {**HELLO, **changes}))
        await self.writer.drain()

    async def receive(self) -> dict[str, Any]:
        """Return the host's next message."""
        while not self._read:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 10)
            assert data, "the host hung up"
            self._read += self._decoder.feed(data)
        return self._read.pop(0)

    async def is_hung_up_on(self) -> bool:
        """Read to the end."""
        with suppress(ConnectionError):
            while await asyncio.wait_for(self.reader.read(1 << 16), 10):
                pass
        return True


@pytest.fixture
async def channel(state_dir: Path) -> AsyncIterator[RuntimeChannel]:
    """A channel that listens, for a runtime with this process's uid."""
    channel = RuntimeChannel(state_dir / "c", token=TOKEN, runtime_uid=os.geteuid(), max_frame_bytes=100_000)
    await channel.listen(owner=None)
    yield channel
    await channel.aclose()


Dial = Callable[[RuntimeChannel], Awaitable[Peer]]


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    """A function that connects to a channel; at the end all its connections are closed."""
    peers = []

    async def connect(channel: RuntimeChannel) -> Peer:
        peers.append(await Peer.dial(channel))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.writer.close()


@pytest.fixture
async def peer(channel: RuntimeChannel, dial: Dial) -> Peer:
    """A runtime that has said hello and was welcomed."""
    peer = await dial(channel)
    await peer.hello()
    assert (await channel.wait_hello()).environments == ["BashEnv"]
    assert await peer.receive() == messages.result(0, {"max_frame_bytes": 100_000})
    return peer


def ask(channel: RuntimeChannel, **limits: float) -> asyncio.Task[Any]:
    """Send a request in a task."""
    limits.setdefault("timeout_s", 10)
    return asyncio.create_task(channel.request(Method.CALL, {"name": "bash"}, **limits))


async def violation(channel: RuntimeChannel) -> str:
    """Wait for the channel to end; return what rule was broken."""
    end = await asyncio.wait_for(channel.wait_ended(), 10)
    assert isinstance(end, ProtocolViolation), repr(end)
    assert channel.ended
    return str(end)


# --- Good manners -----------------------------------------------------------------------------------------------------


async def test_only_the_runtime_may_reach_the_socket_and_the_token(channel: RuntimeChannel) -> None:
    assert (channel.directory / "token").read_text() == TOKEN
    shared = bool(channel.shared_groups)
    for name, mode in (("", 0o750 if shared else 0o700), ("host.sock", 0o660 if shared else 0o600)):
        assert stat.S_IMODE((channel.directory / name).stat().st_mode) == mode
    assert stat.S_IMODE((channel.directory / "token").stat().st_mode) == (0o440 if shared else 0o400)


async def test_answers_in_any_order(channel: RuntimeChannel, peer: Peer) -> None:
    tasks = [ask(channel) for _ in range(3)]
    requests = [await peer.receive() for _ in range(3)]
    assert len({request["id"] for request in requests}) == 3
    for request in reversed(requests):
        peer.send(messages.result(request["id"], f"answer {request['id']}"))
    answers = await asyncio.gather(*tasks)
    assert answers == [f"answer {request['id']}" for request in requests]


@pytest.mark.parametrize("value", [None, 0, [], {"a": [1, None]}, "x" * 50_000])
async def test_any_json_is_an_answer(channel: RuntimeChannel, peer: Peer, value: Any) -> None:
    task = ask(channel)
    peer.send(messages.result((await peer.receive())["id"], value))
    assert await task == value


@pytest.mark.parametrize("fault", list(Fault))
async def test_faults_are_no_end(channel: RuntimeChannel, peer: Peer, fault: Fault) -> None:
    task = ask(channel)
    peer.send(json.loads(json.dumps(messages.error((await peer.receive())["id"], fault, "words"))))
    with pytest.raises(RuntimeFault, match="words") as caught:
        await task
    assert caught.value.fault is fault
    assert not channel.ended


async def test_frames_in_pieces(channel: RuntimeChannel, dial: Dial) -> None:
    peer = await dial(channel)
    for byte in frames.encode_frame(messages.request(0, "hello", HELLO)):
        peer.writer.write(bytes((byte,)))
        await peer.writer.drain()
    await asyncio.wait_for(channel.wait_hello(), 10)
    peer.writer.close()


# --- Hello ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token": "wrong"}, "hello with a wrong token"),
        ({"token": ""}, "hello with a wrong token"),
        ({"token": TOKEN + "0"}, "hello with a wrong token"),
        ({"token": "é"}, "hello with a wrong token"),
        ({"token": None}, "hello: token: Input should be a valid string"),
        ({"protocol": PROTOCOL_VERSION + 1}, f"speaks protocol {PROTOCOL_VERSION + 1}, this host {PROTOCOL_VERSION}"),
        ({"protocol": "x"}, "hello: protocol: Input should be a valid integer"),
        ({"environments": "BashEnv"}, "hello: environments: Input should be a valid list"),
        ({"environments": [1]}, "hello: environments.0: Input should be a valid string"),
        ({"extra": 1}, "hello: extra: Extra inputs are not permitted"),
    ],
)
async def test_hello_that_is_wrong(channel: RuntimeChannel, changes: dict[str, Any], words: str, dial: Dial) -> None:
    peer = await dial(channel)
    await peer.hello(**changes)
    with pytest.raises(ProtocolViolation):
        await channel.wait_hello()
    assert words in await violation(channel)
    assert TOKEN not in await violation(channel)
    assert await peer.is_hung_up_on()


@pytest.mark.parametrize("missing", list(HELLO))
async def test_hello_without_a_field(channel: RuntimeChannel, missing: str, dial: Dial) -> None:
    peer = await dial(channel)
    peer.send(messages.request(0, "hello", {key: value for key, value in HELLO.items() if key != missing}))
    assert await violation(channel) == f"hello: {missing}: Field required"


@pytest.mark.parametrize(
    "first",
    [
        messages.request(0, "call", HELLO),
        messages.notification("hello", HELLO),
        messages.result(0, None),
        messages.error(0, Fault.CANCELLED, "x"),
    ],
)
async def test_first_message_that_is_no_hello(channel: RuntimeChannel, first: dict[str, Any], dial: Dial) -> None:
    peer = await dial(channel)
    peer.send(json.loads(json.dumps(first)))
    assert await violation(channel) == "the first message is not hello"


async def test_hello_twice(channel: RuntimeChannel, peer: Peer) -> None:
    await peer.hello()
    assert await violation(channel) == "a runtime may only answer"


@pytest.mark.parametrize("said_hello", [True, False])
async def test_a_second_connection(channel: RuntimeChannel, said_hello: bool, dial: Dial) -> None:
    first = await dial(channel)
    if said_hello:
        await first.hello()
        await channel.wait_hello()
    else:
        await asyncio.sleep(0)
    second = await dial(channel)
    assert await violation(channel) == "a second connection to the runtime's socket"
    assert await first.is_hung_up_on() and await second.is_hung_up_on()


async def test_a_connection_from_another_user(state_dir: Path, dial: Dial) -> None:
    channel = RuntimeChannel(state_dir / "c", token=TOKEN, runtime_uid=os.geteuid() + 1, max_frame_bytes=1000)
    await channel.listen(owner=None)
    peer = await dial(channel)
    assert await violation(channel) == f"a connection from uid {os.geteuid()} to the runtime's socket"
    assert await peer.is_hung_up_on()
    await channel.aclose()


# --- Rubbish ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said_hello", [True, False])
@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"\x00\x01\x86\xa1", "a frame of 100001 bytes is over the limit of 100000 bytes"),
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes is over the limit"),
        (b"\x00\x00\x00\x00", "a frame is not JSON"),
        (b"\x00\x00\x00\x02[]", "a frame holds a JSON list, not an object"),
        (b"\x00\x00\x00\x04null", "a frame holds a JSON NoneType, not an object"),
        (b"\x00\x00\x00\x03\xff\xfe\xfd", "a frame is not JSON"),
        (b'\x00\x00\x00\x09{"a":NaN}', "a frame is not JSON"),
        (b"\x00\x00\x00\x02{}", "not a message: id: Field required"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of 1195725856 bytes is over the limit"),
    ],
)
async def test_garbage(channel: RuntimeChannel, said_hello: bool, raw: bytes, words: str, dial: Dial) -> None:
    peer = await dial(channel)
    if said_hello:
        await peer.hello()
        await channel.wait_hello()
        pending = ask(channel)
        await peer.receive()
    peer.writer.write(raw)
    assert words in await violation(channel)
    if said_hello:
        with pytest.raises(ProtocolViolation):
            await pending
        with pytest.raises(ProtocolViolation):
            await ask(channel)
    assert await peer.is_hung_up_on()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (messages.result(7, None), "an answer to no open request"),
        (messages.result(0, None), "an answer to no open request"),
        (messages.result(-1, None), "an answer to no open request"),
        (messages.request(1, "call", {}), "a runtime may only answer"),
        (messages.notification("cancel", {"id": 1}), "a runtime may only answer"),
        ({"jsonrpc": "2.0", "id": 1, "result": 1, "extra": 1}, "extra: Extra inputs are not permitted"),
        ({"jsonrpc": "1.0", "id": 1, "result": 1}, "jsonrpc: Input should be '2.0'"),
        ({"jsonrpc": "2.0", "id": "a", "result": 1}, "id: Input should be a valid integer"),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}}, "error.data: Field required"),
        (
            {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x", "data": {"fault": "new"}}},
            "error.data.fault: Input should be",
        ),
    ],
)
async def test_messages_that_a_runtime_may_not_send(
    channel: RuntimeChannel, peer: Peer, message: dict[str, Any], words: str
) -> None:
    pending = ask(channel)
    assert (await peer.receive())["id"] == 1
    peer.send(message)
    assert words in await violation(channel)
    with pytest.raises(ProtocolViolation):
        await pending


async def test_an_answer_given_twice(channel: RuntimeChannel, peer: Peer) -> None:
    pending = ask(channel)
    answer = messages.result((await peer.receive())["id"], "first")
    peer.send(answer)
    peer.send(answer)
    assert await violation(channel) == "an answer to no open request"
    assert await pending == "first"


async def test_violations_do_not_echo_without_bound(channel: RuntimeChannel, peer: Peer) -> None:
    peer.send({"jsonrpc": "2.0", "id": 1, "x" * 90_000: 1})
    assert len(await violation(channel)) < 600


async def test_a_peer_that_does_not_read(channel: RuntimeChannel, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.runtime_channel._MAX_UNSENT_BYTES", 1_000_000)
    tasks = [asyncio.create_task(channel.request(Method.CALL, {"x": "y" * 90_000}, timeout_s=10)) for _ in range(30)]
    assert await violation(channel) == "the runtime does not read what it is sent"
    assert all(isinstance(r, ProtocolViolation) for r in await asyncio.gather(*tasks, return_exceptions=True))


# --- Time and ends ----------------------------------------------------------------------------------------------------


async def test_a_time_out_that_the_runtime_confirms(channel: RuntimeChannel, peer: Peer) -> None:
    pending = ask(channel, timeout_s=0.05, cancel_grace_s=10)
    request_id = (await peer.receive())["id"]
    assert await peer.receive() == messages.notification("cancel", {"id": request_id})
    peer.send(json.loads(json.dumps(messages.error(request_id, Fault.CANCELLED, "cancelled"))))
    with pytest.raises(RequestTimeout) as caught:
        await pending
    assert caught.value.ended
    assert not channel.ended


async def test_a_time_out_without_confirmation_and_an_answer_that_comes_later(
    channel: RuntimeChannel, peer: Peer
) -> None:
    pending = ask(channel, timeout_s=0.05, cancel_grace_s=0.05)
    request_id = (await peer.receive())["id"]
    with pytest.raises(RequestTimeout) as caught:
        await pending
    assert not caught.value.ended
    peer.send(messages.result(request_id, "late"))
    following = ask(channel)
    assert await peer.receive() == messages.notification("cancel", {"id": request_id})
    peer.send(messages.result((await peer.receive())["id"], "in time"))
    assert await following == "in time"
    peer.send(messages.result(request_id, "late, again"))
    assert await violation(channel) == "an answer to no open request"


async def test_a_death_in_the_grace_period_confirms_nothing(channel: RuntimeChannel, peer: Peer) -> None:
    pending = ask(channel, timeout_s=0.05, cancel_grace_s=10)
    await peer.receive()
    await peer.receive()
    peer.writer.close()
    with pytest.raises(RequestTimeout) as caught:
        await pending
    assert not caught.value.ended


async def test_cancelling_tells_the_runtime(channel: RuntimeChannel, peer: Peer) -> None:
    pending = ask(channel)
    request_id = (await peer.receive())["id"]
    pending.cancel()
    assert await peer.receive() == messages.notification("cancel", {"id": request_id})
    with pytest.raises(asyncio.CancelledError):
        await pending
    peer.send(messages.result(request_id, "too late, and allowed"))
    following = ask(channel)
    peer.send(messages.result((await peer.receive())["id"], 1))
    assert await following == 1


@pytest.mark.parametrize("half_a_frame", [b"", b"\x00\x00", b"\x00\x00\x00\x05{"])
async def test_a_runtime_that_is_gone(channel: RuntimeChannel, peer: Peer, half_a_frame: bytes) -> None:
    pending = ask(channel)
    await peer.receive()
    peer.writer.write(half_a_frame)
    peer.writer.close()
    with pytest.raises(ChannelBroken):
        await pending
    assert isinstance(await channel.wait_ended(), ChannelBroken)
    with pytest.raises(ChannelBroken):
        await ask(channel)


async def test_a_runtime_that_is_gone_before_hello(channel: RuntimeChannel, dial: Dial) -> None:
    peer = await dial(channel)
    peer.writer.close()
    with pytest.raises(ChannelBroken):
        await channel.wait_hello()


async def test_a_container_that_died(channel: RuntimeChannel, peer: Peer) -> None:
    pending = ask(channel)
    await peer.receive()
    channel.peer_died()
    with pytest.raises(ChannelBroken, match="the container died"):
        await pending
    assert await peer.is_hung_up_on()


async def test_closing(channel: RuntimeChannel, peer: Peer, dial: Dial) -> None:
    pending = ask(channel)
    await peer.receive()
    await channel.aclose()
    await channel.aclose()
    with pytest.raises(ChannelClosed):
        await pending
    with pytest.raises(ChannelClosed):
        await ask(channel)
    assert await peer.is_hung_up_on()
    with pytest.raises(OSError, match=r"Connection refused|No such file"):
        await dial(channel)


async def test_the_first_end_holds(channel: RuntimeChannel, peer: Peer) -> None:
    peer.writer.write(b"\xff\xff\xff\xff")
    words = await violation(channel)
    channel.peer_died()
    await channel.aclose()
    assert await violation(channel) == words


async def test_a_request_over_the_limit_is_ours_to_answer_for(channel: RuntimeChannel, peer: Peer) -> None:
    with pytest.raises(frames.FrameTooLarge):
        await channel.request(Method.CALL, {"x": "y" * 100_000}, timeout_s=10)
    assert not channel.ended


async def test_a_directory_that_cannot_be_made(state_dir: Path) -> None:
    channel = RuntimeChannel(state_dir / "no" / "c", token=TOKEN, runtime_uid=0, max_frame_bytes=1000)
    with pytest.raises(FileNotFoundError):
        await channel.listen(owner=None)
    await channel.aclose()


async def test_one_that_is_cancelled_as_it_begins_to_listen_makes_no_other_deaf(state_dir: Path, dial: Dial) -> None:
    """A socket that were closed while the loop listens on it would be: the next one has its descriptor's number."""
    first, second = (
        RuntimeChannel(state_dir / name, token=TOKEN, runtime_uid=os.geteuid(), max_frame_bytes=100_000)
        for name in ("c", "d")
    )
    listening = asyncio.create_task(first.listen(owner=None))
    await asyncio.sleep(0)  # it has run up to where it waits, if it does
    assert (first.directory / "host.sock").exists()
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening
    await first.aclose()
    await second.listen(owner=None)
    try:
        await (await dial(second)).hello()
        assert (await asyncio.wait_for(second.wait_hello(), 10)).environments == ["BashEnv"]
    finally:
        await second.aclose()
