"""The worker: dials the host, and answers its requests until the host stays away.

1. The connection may come and go (a host that restarts); what was asked for on it goes on as a job (``jobs.py``), and a host
   that comes back asks for the outcome. The answers themselves are owed to the connection that asked, and end with it.
2. A request is answered exactly once, when everything that it started has ended, also if it is cancelled.
3. A host that breaks the protocol is not argued with: ``run`` returns, and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from . import frames, messages
from .adapter import Adapter
from .faults import RequestFault, describe_exception, log_exception
from .jobs import Answer, Job, Jobs
from .messages import EpisodeState, Fault, Hello, Method, Request, Response, Welcome
from .output import sendable, shorten
from .scope import CallScope

SOCKET_NAME = "host.sock"
TOKEN_NAME = "token"

MAX_IN_FLIGHT = 256
"""Requests whose work runs at once. A session's client has a handful of calls."""

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


class _CallParams(BaseModel):
    call_id: str


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
        self._jobs = Jobs()

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
        hello = messages.request(HELLO_ID, "hello", self._say_hello(token).model_dump())
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
            link = _Link(sock)
            sender = asyncio.create_task(link.send_answers())
            try:
                await self._receive_requests(incoming, link)
            finally:
                link.close()
                sender.cancel()
                await asyncio.wait([sender])
        return True

    def _say_hello(self, token: str) -> Hello:
        hello = self._hello(token)
        if (environment := self._adapter.playing) is not None:
            running, finished, forgotten = self._jobs.call_ids()
            hello.episode = EpisodeState(
                environment=environment, running_calls=running, finished_calls=finished, forgotten_calls=forgotten
            )
        return hello

    def _welcomed(self, message: Request | Response) -> None:
        if not isinstance(message, Response) or message.id != HELLO_ID:
            raise ProtocolViolation("the first message is not the answer to hello")
        if message.error is not None:
            raise ProtocolViolation(f"hello was refused: {shorten(message.error.message)}")
        try:
            self._max_frame_bytes = Welcome.model_validate(message.result).max_frame_bytes
        except ValidationError as exc:
            raise ProtocolViolation(f"welcome: {messages.describe(exc)}") from exc

    async def _receive_requests(self, incoming: _Incoming, link: _Link) -> None:
        try:
            while (message := await incoming.receive()) is not None:
                self._received(message, link)
        except ConnectionError:
            return  # a host that died hard is as gone as one that hung up

    def _received(self, message: Request | Response, link: _Link) -> None:
        if isinstance(message, Response):
            raise ProtocolViolation("an answer, but nothing was asked")
        if message.id is not None:
            self._start(message.id, message, link)
        elif message.method == "cancel":
            self._cancel(message, link)
        # Other notifications are a newer host's; nothing of ours depends on them.

    def _start(self, request_id: int, request: Request, link: _Link) -> None:
        if request_id in link.asked:
            raise ProtocolViolation(f"request {request_id} is in flight already")
        try:
            job = self._job(request)
        except RequestFault as exc:
            link.add_answer(_fault(exc)(request_id))
            return
        link.asked[request_id] = job
        job.when_done(lambda answer: link.answer(request_id, answer))

    def _job(self, request: Request) -> Job:
        """Return the job that a request asks for: one that is there, or a new one, started.

        Raises:
            RequestFault: there is none, or no room for one.
        """
        call_id = None
        if request.method == Method.SETUP and self._jobs.setup is not None:
            return self._jobs.setup
        if request.method in (Method.CALL, Method.SCORE_GROUP, Method.RESULT):
            call_id = _call_id(request)
            if (job := self._jobs.call(call_id)) is not None:
                return job
            if request.method == Method.RESULT or self._jobs.is_forgotten(call_id):
                raise RequestFault(Fault.UNKNOWN_CALL, "there is no such call, or its result is no longer kept")
        if len(self._jobs) >= MAX_IN_FLIGHT:
            raise RequestFault(Fault.BAD_REQUEST, f"more than {MAX_IN_FLIGHT} requests at once")
        job = self._jobs.add(setup=request.method == Method.SETUP, call_id=call_id)
        job.start(lambda scope: self._work(request, scope))
        return job

    def _cancel(self, notification: Request, link: _Link) -> None:
        try:
            request_id = _CancelParams.model_validate(notification.params).id
        except ValidationError as exc:
            raise ProtocolViolation(f"cancel: {messages.describe(exc)}") from exc
        if (job := link.asked.get(request_id)) is not None:  # else its answer is on the way
            job.cancel()

    async def _work(self, request: Request, scope: CallScope) -> Answer:
        try:
            if scope.cancelled:
                raise asyncio.CancelledError
            value = await self._adapter.answer(request.method, request.params)
            self._encode(0, value)
        except RequestFault as exc:
            return _fault(exc)
        except asyncio.CancelledError:
            return _fault(RequestFault(Fault.CANCELLED, "the request was cancelled"))
        except BaseException as exc:  # ours is the mistake, but the host must hear of it
            log_exception(exc)
            return _fault(RequestFault(Fault.ENVIRONMENT_RAISED, f"in the runtime: {describe_exception(exc)}"))
        return lambda request_id: self._encode(request_id, value)

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

    async def _stop(self) -> None:
        if tasks := self._jobs.cancel_all():
            await asyncio.wait(tasks, timeout=_STOP_GRACE_S)


class _Link:
    """One connection: the requests that came on it, and the answers that are to go."""

    def __init__(self, sock: socket.socket) -> None:
        self.asked: dict[int, Job] = {}
        self._sock = sock
        self._answers: deque[bytes] = deque()
        self._added = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        """Forget what is owed: nobody is there to take it."""
        self._closed = True
        self._answers.clear()

    def answer(self, request_id: int, answer: Answer) -> None:
        """Answer a request, unless the connection is gone."""
        self.asked.pop(request_id, None)
        if not self._closed:
            self.add_answer(answer(request_id))

    def add_answer(self, frame: bytes) -> None:
        """Send a frame after those before it."""
        self._answers.append(frame)
        self._added.set()

    async def send_answers(self) -> None:
        """Send what there is and will be, until cancelled or the connection breaks (which the receiving side notices)."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while True:
                while self._answers:
                    await loop.sock_sendall(self._sock, self._answers.popleft())
                self._added.clear()
                await self._added.wait()


def _call_id(request: Request) -> str:
    try:
        return _CallParams.model_validate(request.params).call_id
    except ValidationError as exc:
        raise RequestFault(Fault.BAD_REQUEST, f"{request.method}: {shorten(messages.describe(exc))}") from exc


def _fault(exc: RequestFault) -> Answer:
    return lambda request_id: frames.encode_frame(messages.error(request_id, exc.fault, str(exc)))


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
