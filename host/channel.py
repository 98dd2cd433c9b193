"""The channel to one runtime: requests and answers over its unix socket, matched by id.

The runtime dials and the host listens, so the other end is never an address that a container chose. What comes in is
untrusted, so anything that is not exactly what was asked for ends the channel:

1. One connection, ever, from the runtime's uid (``SO_PEERCRED``), whose first message is ``hello`` with the sandbox's token.
2. After that only answers, each to a request that is open, each once.
3. The channel has no task: bytes are decoded where they arrive, an answer wakes the one who waits for it. Only what is heavy
   to read is read elsewhere (``intake.py``), and until that is done nothing more is taken in.

Words for an end: ``ChannelClosed`` (we closed it), ``ChannelBroken`` (the other side is gone), ``ProtocolViolation`` (it broke
the rules). ``RuntimeFault`` is no end: the runtime answered with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import socket
import struct
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from host.answers import MAX_FAULT_CHARS, InvalidAnswer, Verdict, is_light
from host.intake import Intake
from host.state import SOCKET_NAME, TOKEN_NAME
from sandbox_runtime import frames, messages
from sandbox_runtime.messages import Fault, Hello, Method, Request, Response

_MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""What may wait in our buffers for a runtime that doesn't read: a few of the largest request bodies."""


class ChannelClosed(Exception):
    """This side closed the channel."""


class ChannelBroken(Exception):
    """The runtime's end is gone, without a word."""


class ProtocolViolation(Exception):
    """The runtime said what it may not; the channel was closed for it."""


class RuntimeFault(Exception):
    """The runtime answered with an error: ``fault`` says which, ``str()`` what it said."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class RequestTimeout(Exception):
    """No answer in time. ``ended``: the runtime has confirmed since that what the request started is over."""

    def __init__(self, *, ended: bool) -> None:
        super().__init__("no answer in time")
        self.ended = ended


class Channel:
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
        self._pending: dict[int, asyncio.Future[Any] | None] = {}  # None: nobody waits any more
        self._asked: dict[int, Method] = {}
        self._next_id = 1
        self._end: Exception | None = None
        self._ended = asyncio.Event()

    @property
    def shared_groups(self) -> tuple[int, ...]:
        """Groups that the container's root needs to reach the socket: ours, where this process isn't root itself."""
        return () if os.geteuid() == 0 else (os.getegid(),)

    @property
    def ended(self) -> bool:
        """True once nothing more comes or goes."""
        return self._end is not None

    async def listen(self, *, owner: tuple[int, int] | None, again: bool = False) -> None:
        """Make the directory with the token and the socket in it, and listen.

        With ``again`` the directory is there, of a container that an earlier host made, and only the socket is new.

        ``owner`` is the (uid, gid) the runtime has on the host under user-namespace remapping, else None. A host that is not
        root can't give files away: it shares them with the container's root through its own group instead.

        Raises:
            OSError: the directory or the socket can't be made.
        """
        shared = bool(self.shared_groups)
        token = self.directory / TOKEN_NAME
        path = self.directory / SOCKET_NAME
        if again:
            path.unlink(missing_ok=True)
        else:
            self.directory.mkdir(mode=0o700)
            token.touch(mode=0o600)
            token.write_text(self._token)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(str(path))
            for name, mode in ((path, 0o660 if shared else 0o600), (token, 0o440 if shared else 0o400)):
                os.chmod(name, mode)
            if owner is not None:
                for name in (path, token, self.directory):
                    os.chown(name, *owner)
            os.chmod(self.directory, 0o750 if shared else 0o700)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: _Connection(self), sock=sock, backlog=4)
        except BaseException:
            sock.close()
            raise

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
            raise _copy(self._end)
        request_id = self._next_id
        self._next_id += 1
        self._send(messages.request(request_id, method, params))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = answer
        self._asked[request_id] = method
        try:
            # wait() leaves the future alone when it times out or is cancelled: the answer may still be owed.
            await asyncio.wait((answer,), timeout=timeout_s)
            if answer.done():
                return answer.result()
            self._send_cancel(request_id)
            await asyncio.wait((answer,), timeout=cancel_grace_s)
            raise RequestTimeout(ended=answer.done() and self._end is None)
        except asyncio.CancelledError:
            if not answer.done():
                self._send_cancel(request_id)
            raise
        finally:
            if not answer.done():
                answer.cancel()
                if request_id in self._pending:
                    self._pending[request_id] = None
            elif not answer.cancelled():
                answer.exception()  # seen: an answer in the grace period is nobody's

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
            raise _copy(self._end)
        self._transport.write(frames.encode_frame(message, max_bytes=self.max_frame_bytes))
        if self._transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self._finish(ProtocolViolation("the runtime does not read what it is sent"))
            raise ProtocolViolation("the runtime does not read what it is sent")

    def _send_cancel(self, request_id: int) -> None:
        if self._end is None:
            with contextlib.suppress(ProtocolViolation):  # recorded as the channel's end
                self._send(messages.notification("cancel", {"id": request_id}))

    def _finish(self, end: Exception) -> None:
        if self._end is not None:
            return
        self._end = end
        self._ended.set()
        if not self._hello.done():
            self._hello.set_exception(_copy(end))
            self._hello.exception()  # nobody may be waiting
        for answer in self._pending.values():
            if answer is not None and not answer.done():
                answer.set_exception(_copy(end))
        self._pending.clear()
        self._asked.clear()
        if self._transport is not None:
            self._transport.abort()

    # What the connections report

    def _connected(self, transport: asyncio.Transport) -> bool:
        if self._end is not None:
            return False
        uid = _peer_uid(transport)
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
        if not isinstance(message, Request) or message.method != "hello" or message.id is None:
            raise ProtocolViolation("the first message is not hello")
        try:
            hello = Hello.model_validate(message.params)
        except ValidationError as exc:
            raise ProtocolViolation(f"hello: {messages.describe(exc)[:500]}") from exc
        if not hmac.compare_digest(hello.token.encode(errors="replace"), self._token.encode()):
            raise ProtocolViolation("hello with a wrong token")
        if hello.protocol != messages.PROTOCOL_VERSION:
            raise ProtocolViolation(
                f"the image's runtime speaks protocol {hello.protocol}, this host {messages.PROTOCOL_VERSION}: "
                "build the image again"
            )
        self._send(messages.result(message.id, messages.Welcome(max_frame_bytes=self.max_frame_bytes).model_dump()))
        self._hello.set_result(hello)

    def _received_answer(self, response: Response) -> None:
        if response.id not in self._pending:
            raise ProtocolViolation("an answer to no open request")
        answer = self._pop(response.id)
        if answer is None:
            return
        if response.error is None:
            answer.set_result(response.result)
        else:
            message = response.error.message[:MAX_FAULT_CHARS]
            answer.set_exception(RuntimeFault(response.error.data.fault, message))

    def _received_verdict(self, verdict: Verdict) -> None:
        answer = self._pop(verdict.request_id)
        if answer is None:
            return
        if verdict.fault is not None:
            answer.set_exception(RuntimeFault(verdict.fault, verdict.message))
        elif verdict.invalid is not None:
            answer.set_exception(InvalidAnswer(verdict.invalid))
        else:
            answer.set_result(verdict.answer)

    def _pop(self, request_id: int) -> asyncio.Future[Any] | None:
        """Take an open request off the list; return its future if somebody still waits."""
        del self._asked[request_id]
        answer = self._pending.pop(request_id)
        return None if answer is None or answer.done() else answer

    def _lost(self, transport: asyncio.Transport) -> None:
        if transport is self._transport:
            self._finish(ChannelBroken("the runtime is gone"))


class _Connection(asyncio.Protocol):
    """One accepted connection: decodes frames, in order, and leaves all judgement to the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._decoder = frames.FrameDecoder(max_bytes=channel.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._bodies: deque[bytes] = deque()
        self._heavy_bytes = 0  # of the frame that is being read elsewhere

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
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
            self._channel._finish(_copy(exc))

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

    def _read_elsewhere(self, body: bytes) -> None:
        if not self._channel._hello.done():
            raise ProtocolViolation("hello: it is too large")
        assert self._transport is not None
        self._heavy_bytes = len(body)
        self._transport.pause_reading()
        self._channel._intake.check(body, self._channel._asked, self._checked)

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
            self._channel._finish(_copy(exc))
        if self._transport is not None and not self._heavy_bytes and not self._transport.is_closing():
            self._transport.resume_reading()

    def _evict(self) -> None:
        self._channel._finish(ProtocolViolation("a frame was left unfinished while memory for such frames was short"))


def _copy(end: Exception) -> Exception:
    """Return the same words to raise: an exception that is raised again and again gathers every frame, and what it holds."""
    return type(end)(*end.args)


def _peer_uid(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)
