"""The worker: dials the host, and answers its requests until the host stays away.

1. The connection may come and go (a host that restarts); what was asked for on it goes on as a job (``jobs.py``), and a host
   that comes back asks for the outcome. The answers themselves are owed to the connection that asked, and end with it.
2. A request is answered exactly once, when everything that it started has ended, also if it is cancelled.
3. A host that breaks the protocol is not argued with: ``run`` returns, and the process ends.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .adapter import Adapter
from .answering import Answer
from .faults import RequestFault, describe_exception, log_exception
from .jobs import Job, Jobs
from .link import Link, ProtocolViolation
from .messages import Fault, Method, Request, Response
from .scope import CallScope

SOCKET_NAME = "host.sock"
TOKEN_NAME = "token"

MAX_IN_FLIGHT = 256
"""Requests whose work runs at once. A session's client has a handful of calls."""

HELLO_TIMEOUT_S = 30.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 1.0
_STOP_GRACE_S = 1.0


class Worker:
    """Serves ``adapter`` to the host behind the socket in ``directory``."""

    def __init__(
        self,
        adapter: Adapter,
        hello: Callable[[str], dict[str, Any]],
        *,
        directory: Path,
        reconnect_s: float,
    ) -> None:
        self._adapter = adapter
        self._hello = hello
        self._directory = directory
        self._reconnect_s = reconnect_s
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
        token = (self._directory / TOKEN_NAME).read_text().strip()
        link = Link(self._say_hello(token), self._received)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=self._dial())
                await link.greeted.wait()
        except TimeoutError:
            raise OSError(f"no welcome in {HELLO_TIMEOUT_S:g} s") from None
        else:
            await link.ended
        finally:
            link.close()
        return link.max_frame_bytes is not None

    def _dial(self) -> socket.socket:
        """Return a connection to the host. asyncio would load all of TLS to see that this is no socket of that kind.

        Raises:
            OSError: there is none to be had now.
        """
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.setblocking(False)  # a queue that is full is a reason to try again later
            sock.connect(str(self._directory / SOCKET_NAME))
        except OSError:
            sock.close()
            raise
        return sock

    def _say_hello(self, token: str) -> dict[str, Any]:
        hello = self._hello(token)
        if (environment := self._adapter.playing) is not None:
            running, finished, forgotten = self._jobs.call_ids()
            hello["episode"] = {
                "environment": environment,
                "running_calls": running,
                "finished_calls": finished,
                "forgotten_calls": forgotten,
            }
        return hello

    def _received(self, message: Request | Response, link: Link) -> None:
        if isinstance(message, Response):
            raise ProtocolViolation("an answer, but nothing was asked")
        if message.id is not None:
            self._start(message.id, message, link)
        elif message.method == "cancel":
            self._cancel(message, link)
        # Other notifications are a newer host's; nothing of ours depends on them.

    def _start(self, request_id: int, request: Request, link: Link) -> None:
        if request_id in link.asked:
            raise ProtocolViolation(f"request {request_id} is in flight already")
        try:
            job = self._job(request)
        except RequestFault as exc:
            link.answer(request_id, _fault(exc))
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

    def _cancel(self, notification: Request, link: Link) -> None:
        request_id = notification.params.get("id")
        if not isinstance(request_id, int):
            raise ProtocolViolation("cancel: id: a number is needed")
        if (job := link.asked.get(request_id)) is not None:  # else its answer is on the way
            job.cancel()

    async def _work(self, request: Request, scope: CallScope) -> Answer:
        try:
            if scope.cancelled:
                raise asyncio.CancelledError
            value = await self._adapter.answer(request.method, request.params)
            return Answer.of(value)
        except RequestFault as exc:
            return _fault(exc)
        except asyncio.CancelledError:
            return _fault(RequestFault(Fault.CANCELLED, "the request was cancelled"))
        except BaseException as exc:  # ours is the mistake, but the host must hear of it
            log_exception(exc)
            return _fault(RequestFault(Fault.ENVIRONMENT_RAISED, f"in the runtime: {describe_exception(exc)}"))

    async def _stop(self) -> None:
        if tasks := self._jobs.cancel_all():
            await asyncio.wait(tasks, timeout=_STOP_GRACE_S)


def _call_id(request: Request) -> str:
    call_id = request.params.get("call_id")
    if not isinstance(call_id, str):
        raise RequestFault(Fault.BAD_REQUEST, f"{request.method}: call_id: a string is needed")
    return call_id


def _fault(exc: RequestFault) -> Answer:
    return Answer.fault(exc.fault, str(exc))
