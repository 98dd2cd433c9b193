"""The channel to one runtime: requests and answers over its unix socket, matched by id.

The runtime dials and the host listens, so the other end is never an address that a container chose. What comes in is
untrusted, so anything that is not exactly what was asked for ends the channel:

1. One connection, ever, from the runtime's uid (``SO_PEERCRED``), whose first message is ``hello`` with the sandbox's token.
2. After that only answers, each to a request that is open, each once.
3. The channel has no task: bytes are decoded where they arrive, an answer wakes the one who waits for it. Only what is heavy
   to read is read elsewhere (``intake.py``), and until that is done nothing more is taken in.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from host.answers import MAX_FAULT_CHARS, InvalidAnswer, Verdict, check, is_light
from host.channel import ChannelBroken, ChannelClosed, ProtocolViolation, RequestTimeout, RuntimeFault
from host.doorstep import bind, checked_hello, peer_uid, shared_groups
from host.intake import Intake
from host.requests import OpenRequests, copy_of
from sandbox_runtime import frames, messages
from sandbox_runtime.messages import Hello, Method, Request, Response

_MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""What may wait in our buffers for a runtime that doesn't read: a few of the largest request bodies."""


class RuntimeChannel:
    """One sandbox's channel, listening from ``listen()`` until ``aclose()``."""

    def __init__(
        self, directory: Path, *, token: str, runtime_uid: int, max_frame_bytes: int, intake: Intake | None = None
    ) -> None:
        self.directory = directory
        self.max_frame_bytes = max_frame_bytes
        self._intake = intake or Intake(max_held_bytes=4 * max_frame_bytes)
        self._token = token
        self._runtime_uid = runtime_uid
        self._server: asyncio.Server | None = None
        self._transport: asyncio.Transport | None = None
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._requests = OpenRequests()
        self._end: Exception | None = None
        self._ended = asyncio.Event()

    @property
    def shared_groups(self) -> tuple[int, ...]:
        """The groups that the container's root needs to reach the socket."""
        return shared_groups()

    @property
    def silence(self) -> str:
        """What to say of a runtime that didn't dial in time."""
        return "the runtime did not connect"

    @property
    def ended(self) -> bool:
        """True once nothing more comes or goes."""
        return self._end is not None

    async def listen(self, *, owner: tuple[int, int] | None, again: bool = False) -> None:
        """Make the directory and the socket in it, as ``doorstep.bind`` does, and listen.

        Raises:
            OSError: they can't be made.
        """
        sock = bind(self.directory, self._token, owner=owner, again=again)
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(
                lambda: _Connection(self), sock=sock, backlog=4, start_serving=False
            )
        except BaseException:
            sock.close()
            raise
        # Only now that it is ours to close: a socket that is closed while the loop listens on it makes another one deaf.
        await self._server.start_serving()

    async def wait_hello(self) -> Hello:
        """Wait until the runtime has connected and proved itself.

        Raises:
            ChannelClosed, ChannelBroken, ProtocolViolation: the channel ended first.
        """
        return await asyncio.shield(self._hello)

    async def wait_ended(self) -> Exception:
        """Wait until the channel has ended; return why."""
        await self._ended.wait()
        assert self._end is not None
        return self._end

    async def request(
        self, method: Method, params: Mapping[str, Any], *, timeout_s: float, cancel_grace_s: float = 0
    ) -> Any:
        """Ask the runtime; return its answer's ``result``, which the caller must validate (``answers.as_json``, ``as_value``).

        A request that times out or whose task is cancelled is cancelled in the runtime as well. After a time-out the runtime
        has ``cancel_grace_s`` to confirm that what it started is over.

        Raises:
            RuntimeFault: the runtime answered with an error.
            InvalidAnswer: it answered at length, and not what the method promises.
            RequestTimeout: no answer in ``timeout_s``.
            ChannelClosed, ChannelBroken, ProtocolViolation: the channel ended.
            frames.FrameTooLarge: the request itself is over the limit.
        """
        if self._end is not None:
            raise copy_of(self._end)
        request_id = self._requests.new_id()
        self._send(messages.request(request_id, method, params))
        self._requests.open(request_id, method)
        try:
            return await self._requests.wait(request_id, timeout_s)
        except TimeoutError:
            self._send_cancel(request_id)
            raise RequestTimeout(ended=await self._has_ended(request_id, cancel_grace_s)) from None
        except asyncio.CancelledError:
            self._send_cancel(request_id)
            raise

    async def _has_ended(self, request_id: int, grace_s: float) -> bool:
        """Wait for the answer to a request that was cancelled, whatever it is; return whether it came."""
        if request_id not in self._requests:
            return False
        try:
            await self._requests.wait(request_id, grace_s)
        except (RuntimeFault, InvalidAnswer):
            return True
        except (TimeoutError, ChannelClosed, ChannelBroken, ProtocolViolation):
            return False
        return True

    def peer_died(self) -> None:
        """Take note that the container is dead, in case its end of the socket is slow to say so (or never connected)."""
        self._finish(ChannelBroken("the container died"))

    def hang_up(self) -> None:
        """End the connection; whoever waits gets ``ChannelClosed``."""
        self._finish(ChannelClosed("the channel was closed"))

    async def aclose(self) -> None:
        """Stop listening and hang up."""
        self.hang_up()
        if self._server is not None:
            self._server.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._transport is not None, "a request before hello"
        if self._end is not None:
            raise copy_of(self._end)
        self._transport.write(frames.encode_frame(message, max_bytes=self.max_frame_bytes))
        if self._transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self._finish(ProtocolViolation("the runtime does not read what it is sent"))
            raise ProtocolViolation("the runtime does not read what it is sent")

    def _send_cancel(self, request_id: int) -> None:
        if request_id in self._requests:  # else its answer came meanwhile, or the channel ended
            with contextlib.suppress(ProtocolViolation):  # recorded as the channel's end
                self._send(messages.notification("cancel", {"id": request_id}))

    def _finish(self, end: Exception) -> None:
        if self._end is not None:
            return
        self._end = end
        self._ended.set()
        if not self._hello.done():
            self._hello.set_exception(copy_of(end))
            self._hello.exception()  # nobody may be waiting
        self._requests.end(end)
        if self._transport is not None:
            self._transport.abort()

    # What the connections report

    def _connected(self, transport: asyncio.Transport) -> bool:
        if self._end is not None:
            return False
        uid = peer_uid(transport.get_extra_info("socket"))
        if self._transport is not None or uid != self._runtime_uid:
            what = "a second connection" if self._transport is not None else f"a connection from uid {uid}"
            self._finish(ProtocolViolation(f"{what} to the runtime's socket"))
            return False
        self._transport = transport
        return True

    def _received(self, message: dict[str, Any]) -> None:
        try:
            parsed = messages.parse_message(message)
        except messages.MessageError as exc:
            raise ProtocolViolation(f"not a message: {str(exc)[:500]}") from exc
        if not self._hello.done():
            self._received_hello(parsed)
        elif isinstance(parsed, Response):
            self._received_answer(parsed)
        else:
            raise ProtocolViolation("a runtime may only answer")

    def _received_hello(self, message: Request | Response) -> None:
        hello, request_id = checked_hello(message, self._token)
        self._send(messages.result(request_id, messages.Welcome(max_frame_bytes=self.max_frame_bytes).model_dump()))
        self._hello.set_result(hello)

    def _received_answer(self, response: Response) -> None:
        if response.id not in self._requests:
            raise ProtocolViolation("an answer to no open request")
        if response.error is None:
            self._requests.answer(response.id, response.result)
        else:
            message = response.error.message[:MAX_FAULT_CHARS]
            self._requests.fail(response.id, RuntimeFault(response.error.data.fault, message))

    def _received_verdict(self, verdict: Verdict) -> None:
        if verdict.fault is not None:
            self._requests.fail(verdict.request_id, RuntimeFault(verdict.fault, verdict.message))
        elif verdict.invalid is not None:
            self._requests.fail(verdict.request_id, InvalidAnswer(verdict.invalid))
        else:
            self._requests.answer(verdict.request_id, verdict.answer)

    def _lost(self, transport: asyncio.Transport) -> None:
        if transport is self._transport:
            self._finish(ChannelBroken("the runtime hung up"))


class _Connection(asyncio.Protocol):
    """One accepted connection: decodes frames, in order, and leaves all judgement to the channel."""

    def __init__(self, channel: RuntimeChannel) -> None:
        self._channel = channel
        self._decoder = frames.FrameDecoder(max_bytes=channel.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._bodies: deque[bytes | bytearray] = deque()
        self._heavy_bytes = 0  # of the frame that is being read elsewhere

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are none of asyncio's classes
        if self._channel._connected(transport):
            self._transport = transport
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        try:
            self._bodies += self._decoder.bodies(data)
            self._read()
        except frames.FrameError as exc:
            self._channel._finish(ProtocolViolation(str(exc)))
        except ProtocolViolation as exc:
            self._channel._finish(copy_of(exc))

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel._intake.hold(self, 0, self._evict)
        if self._transport is not None:
            self._channel._lost(self._transport)

    def _read(self) -> None:
        while self._bodies and not self._heavy_bytes and not self._channel.ended:
            body = self._bodies.popleft()
            if is_light(body):
                self._channel._received(frames.parse_body(body))
            else:
                self._read_elsewhere(body)
        if not self._channel.ended:
            self._channel._intake.hold(self, self._decoder.buffered_bytes + self._heavy_bytes, self._evict)

    def _read_elsewhere(self, body: bytes | bytearray) -> None:
        if not self._channel._hello.done():
            raise ProtocolViolation("hello: it is too large")
        assert self._transport is not None
        self._heavy_bytes = len(body)
        self._transport.pause_reading()
        self._channel._intake.check(body, partial(check, asked=dict(self._channel._requests.methods)), self._checked)

    def _checked(self, found: Verdict | Exception) -> None:
        self._heavy_bytes = 0
        if self._channel.ended:
            return
        try:
            if isinstance(found, frames.FrameError):
                raise found
            if isinstance(found, Exception):
                raise ProtocolViolation(f"not a message: {str(found)[:500]}")
            self._channel._received_verdict(found)
            self._read()
        except frames.FrameError as exc:
            self._channel._finish(ProtocolViolation(str(exc)))
        except ProtocolViolation as exc:
            self._channel._finish(copy_of(exc))
        if self._transport is not None and not self._heavy_bytes and not self._transport.is_closing():
            self._transport.resume_reading()

    def _evict(self) -> None:
        self._channel._finish(ProtocolViolation("a frame was left unfinished while memory for such frames was short"))
