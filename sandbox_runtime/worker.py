"""The worker: dials the host, and answers its requests until the host stays away.

1. The connection may come and go (a host that restarts); requests in flight go on without it, and their answers wait.
2. Each request has a task, and every task is in ``_requests`` until its answer is on its way: none is forgotten.
3. A request is answered exactly once, when everything that it started has ended, also if it is cancelled.
4. A host that breaks the protocol is not argued with: ``run`` returns, and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from . import frames, messages
from .adapter import Adapter
from .faults import RequestFault, describe_exception, log_exception
from .messages import Fault, Hello, Request, Response, Welcome
from .output import sendable, shorten
from .scope import CallScope, current_scope

SOCKET_NAME = "host.sock"
TOKEN_NAME = "token"

MAX_IN_FLIGHT = 256
"""Requests at once, answers that wait for a connection included. A session's client has a handful of calls."""

HELLO_ID = 0
HELLO_TIMEOUT_S = 30.0
_RECEIVE_BYTES = 1 << 18
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 1.0
_STOP_GRACE_S = 1.0
_MAX_BRACKETS_UNCHECKED = 150
"""Fewer brackets than this can't be nested deeper than the receiver's parser allows (200)."""


class ProtocolViolation(Exception):
    """The host said what it may not."""


class _CancelParams(BaseModel):
    id: int


@dataclass
class _InFlight:
    scope: CallScope = field(default_factory=CallScope)
    task: asyncio.Task[None] | None = None
    running: bool = False  # a task cancelled before its first step would never get to answer


class Worker:
    """Serves ``adapter`` to the host behind the socket in ``directory``."""

    def __init__(
        self,
        adapter: Adapter,
        hello: Callable[[str], Hello],
        *,
        directory: Path,
        reconnect_s: float,
    ) -> None:
        self._adapter = adapter
        self._hello = hello
        self._directory = directory
        self._reconnect_s = reconnect_s
        self._max_frame_bytes = frames.DEFAULT_MAX_FRAME_BYTES
        self._requests: dict[int, _InFlight] = {}
        self._answers: deque[bytes] = deque()
        self._answer_added = asyncio.Event()

    async def run(self) -> None:
        """Serve until the host has stayed away for ``reconnect_s`` seconds.

        Raises:
            ProtocolViolation: the host broke the protocol.
        """
        away_since = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                try:
                    if await self._serve_connection():
                        away_since = time.monotonic()
                        pause_s = _FIRST_PAUSE_S
                except OSError as exc:
                    problem = str(exc)
                else:
                    problem = "the host hung up"
                if time.monotonic() + pause_s - away_since >= self._reconnect_s:
                    print(f"no host for {self._reconnect_s:g} s ({problem}): ending", file=sys.stderr)
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            await self._stop()

    async def _serve_connection(self) -> bool:
        """Dial, say hello and serve until the connection ends; False if the host hung up without a welcome.

        Raises:
            OSError: the host can't be dialled, or does not answer.
            ProtocolViolation: the host broke the protocol.
        """
        loop = asyncio.get_running_loop()
        token = (self._directory / TOKEN_NAME).read_text().strip()
        hello = messages.request(HELLO_ID, "hello", self._hello(token).model_dump())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            incoming = _Incoming(sock)
            try:
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    await loop.sock_connect(sock, str(self._directory / SOCKET_NAME))
                    await loop.sock_sendall(sock, frames.encode_frame(hello))
                    welcome = await incoming.receive()
            except TimeoutError:
                raise OSError(f"no welcome in {HELLO_TIMEOUT_S:g} s") from None
            if welcome is None:
                return False
            self._welcomed(welcome)
            sender = asyncio.create_task(self._send_answers(sock))
            try:
                await self._receive_requests(incoming)
            finally:
                sender.cancel()
                await asyncio.wait([sender])
        return True

    def _welcomed(self, message: Request | Response) -> None:
        if not isinstance(message, Response) or message.id != HELLO_ID:
            raise ProtocolViolation("the first message is not the answer to hello")
        if message.error is not None:
            raise ProtocolViolation(f"hello was refused: {shorten(message.error.message)}")
        try:
            self._max_frame_bytes = Welcome.model_validate(message.result).max_frame_bytes
        except ValidationError as exc:
            raise ProtocolViolation(f"welcome: {messages.describe(exc)}") from exc

    async def _receive_requests(self, incoming: _Incoming) -> None:
        try:
            while (message := await incoming.receive()) is not None:
                self._received(message)
        except ConnectionError:
            return  # a host that died hard is as gone as one that hung up

    async def _send_answers(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # A connection that breaks is noticed, and ended, by the receiving side.
        with contextlib.suppress(ConnectionError):
            while True:
                while self._answers:
                    await loop.sock_sendall(sock, self._answers[0])
                    self._answers.popleft()  # only now: what a broken connection lost is sent again on the next
                self._answer_added.clear()
                await self._answer_added.wait()

    def _received(self, message: Request | Response) -> None:
        if isinstance(message, Response):
            raise ProtocolViolation("an answer, but nothing was asked")
        if message.id is not None:
            self._start(message.id, message)
        elif message.method == "cancel":
            self._cancel(message)
        # Other notifications are a newer host's; nothing of ours depends on them.

    def _start(self, request_id: int, request: Request) -> None:
        if request_id in self._requests:
            raise ProtocolViolation(f"request {request_id} is in flight already")
        if len(self._requests) + len(self._answers) >= MAX_IN_FLIGHT:
            message = f"more than {MAX_IN_FLIGHT} requests at once"
            self._add_answer(frames.encode_frame(messages.error(request_id, Fault.BAD_REQUEST, message)))
            return
        entry = self._requests[request_id] = _InFlight()
        entry.task = asyncio.create_task(self._handle(request_id, request, entry))

    def _cancel(self, notification: Request) -> None:
        try:
            request_id = _CancelParams.model_validate(notification.params).id
        except ValidationError as exc:
            raise ProtocolViolation(f"cancel: {messages.describe(exc)}") from exc
        entry = self._requests.get(request_id)
        if entry is None:
            return  # its answer is on the way
        entry.scope.cancel()
        if entry.running and entry.task is not None:
            entry.task.cancel()

    async def _handle(self, request_id: int, request: Request, entry: _InFlight) -> None:
        entry.running = True
        current_scope.set(entry.scope)
        try:
            if entry.scope.cancelled:
                raise asyncio.CancelledError
            value = await self._adapter.answer(request.method, request.params)
            answer = self._encode(request_id, value)
        except RequestFault as exc:
            answer = frames.encode_frame(messages.error(request_id, exc.fault, str(exc)))
        except asyncio.CancelledError:
            answer = frames.encode_frame(messages.error(request_id, Fault.CANCELLED, "the request was cancelled"))
        except BaseException as exc:  # ours is the mistake, but the host must hear of it
            log_exception(exc)
            message = f"in the runtime: {describe_exception(exc)}"
            answer = frames.encode_frame(messages.error(request_id, Fault.ENVIRONMENT_RAISED, message))
        del self._requests[request_id]
        self._add_answer(answer)

    def _encode(self, request_id: int, value: Any) -> bytes:
        try:
            return encode_result(request_id, value, self._max_frame_bytes)
        except frames.FrameTooLarge as exc:
            raise RequestFault(
                Fault.RESULT_TOO_LARGE,
                f"the result has {exc.size_bytes} bytes, which is over the limit of {exc.max_bytes} bytes",
            ) from exc
        except (ValueError, RecursionError) as exc:
            raise RequestFault(Fault.BAD_RESULT, shorten(f"the result has no JSON form: {exc}")) from exc

    def _add_answer(self, frame: bytes) -> None:
        self._answers.append(frame)
        self._answer_added.set()

    async def _stop(self) -> None:
        tasks = []
        for entry in self._requests.values():
            entry.scope.cancel()
            if entry.task is not None:
                entry.task.cancel()
                tasks.append(entry.task)
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_GRACE_S)


class _Incoming:
    """The messages that come in on a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = frames.FrameDecoder()
        self._messages: deque[dict[str, Any]] = deque()

    async def receive(self) -> Request | Response | None:
        """Return the next message, None at the end of the stream."""
        while not self._messages:
            data = await asyncio.get_running_loop().sock_recv(self._sock, _RECEIVE_BYTES)
            if not data:
                return None
            try:
                self._messages.extend(self._decoder.feed(data))
            except frames.FrameError as exc:
                raise ProtocolViolation(str(exc)) from exc
        try:
            return messages.parse_message(self._messages.popleft())
        except messages.MessageError as exc:
            raise ProtocolViolation(shorten(str(exc))) from exc


def encode_result(request_id: int, value: Any, max_bytes: int) -> bytes:
    """Return the answer's frame; strings that UTF-8 can't carry are repaired.

    Raises:
        frames.FrameTooLarge: it is over ``max_bytes``.
        ValueError: the value has no JSON form, or one that the other side could not parse.
        RecursionError: the value contains itself.
    """
    try:
        frame = frames.encode_frame(messages.result(request_id, value), max_bytes=max_bytes)
    except frames.FrameTooLarge:
        raise
    except ValueError:
        frame = frames.encode_frame(messages.result(request_id, sendable(value)), max_bytes=max_bytes)
    if frame.count(b"[") + frame.count(b"{") > _MAX_BRACKETS_UNCHECKED:
        try:
            frames.FrameDecoder(max_bytes=max_bytes).feed(frame)
        except frames.FrameError as exc:
            raise ValueError(str(exc)) from exc
    return frame
