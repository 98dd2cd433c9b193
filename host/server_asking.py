"""Questions to somebody else's server, and its answers, checked: between HTTP and what a session makes of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial

from host.answers import CheckedJSON, InvalidAnswer, Verdict, is_light
from host.channel import RuntimeFault
from host.errors import Failure, Reason
from host.intake import Intake
from host.server_dialect import Question, answer, check, detail_of, fault_of
from host.server_http import Exchange, ServerHttp
from host.server_reader import BadAnswer
from sandbox_runtime.frames import FrameTooLarge
from sandbox_runtime.messages import Fault, Method

SMALL_BYTES = 256 * 1024
"""For answers that have no reason to be longer: health, ids, errors."""

_STARTING_PAUSE_S = 1.0
EVENTS = "text/event-stream"


class Holding:
    """What one body that is being read holds; the block gets what to tell its size to, as it grows."""

    def __init__(self, intake: Intake, evict: Callable[[], None]) -> None:
        self._intake = intake
        self._evict = evict

    def __enter__(self) -> Callable[[int], None]:
        return self._hold

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: object) -> None:
        self._hold(0)

    def _hold(self, size: int) -> None:
        self._intake.hold(self, size, self._evict)


class Asking:
    """How one server is asked. ``evict`` ends its channel, when too much is held of what all servers have not finished."""

    def __init__(self, http: ServerHttp, intake: Intake, *, max_bytes: int, evict: Callable[[], None]) -> None:
        self.http = http
        self.max_bytes = max_bytes
        self.sid: str | None = None
        """The server's own id of its session."""
        self._intake = intake
        self._evict = evict

    async def request(
        self, asked: Question, *, sid: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Exchange:
        """Send a request; see ``ServerHttp.request``.

        Raises:
            FrameTooLarge: it is longer than a message may be.
        """
        if asked.body is not None and len(asked.body) > self.max_bytes:
            raise FrameTooLarge(len(asked.body), self.max_bytes)
        fields = {"Accept": "application/json", **(headers or {})}
        if (sid := sid or self.sid) is not None:
            fields["X-Session-ID"] = sid
        return await self.http.request(asked.verb, asked.path, headers=fields, body=asked.body)

    async def started(self, method: Method, asked: Question, *, headers: Mapping[str, str] | None = None) -> Exchange:
        """Send a request until the server no longer says that it is starting; return the exchange, whose answer is a 200.

        Raises:
            RuntimeFault: the server answers with something else.
        """
        while True:
            exchange = await self.request(asked, headers=headers)
            if exchange.status == 200:
                return exchange
            async with exchange:
                if not is_starting(exchange):
                    raise await self.fault(method, asked, exchange)
                await exchange.body(SMALL_BYTES)
            await asyncio.sleep(_STARTING_PAUSE_S)

    async def answer(self, method: Method, asked: Question) -> CheckedJSON:
        """Ask, and return the answer.

        Raises:
            RuntimeFault: it is an error.
            InvalidAnswer: it isn't what the method promises.
        """
        async with await self.started(method, asked) as exchange:
            with self.holding() as held:
                return await self.checked(method, await exchange.body(self.max_bytes, held))

    async def checked(self, method: Method, body: bytes | bytearray) -> CheckedJSON:
        """Return the value in an answer's body; of one that is heavy to read, in another process.

        Raises:
            InvalidAnswer: it isn't what the method promises.
        """
        if is_light(body):
            return CheckedJSON(answer(method, body))
        found: asyncio.Future[Verdict | Exception] = asyncio.get_running_loop().create_future()

        def done(verdict: Verdict | Exception) -> None:
            if not found.done():
                found.set_result(verdict)

        self._intake.check(body, partial(check, method=method), done)
        verdict = await found
        if isinstance(verdict, Exception):
            raise InvalidAnswer(str(verdict)[:500])
        if verdict.answer is None:
            raise InvalidAnswer(verdict.invalid or "")
        return verdict.answer

    async def fault(self, method: Method, asked: Question, exchange: Exchange) -> RuntimeFault:
        """Return the error that an answer is."""
        words, detail = await self.words(exchange)
        fault = fault_of(method, exchange.status, detail)
        said = f"the environment's server answers {asked.verb} {asked.path} with {words}"
        if not detail:
            return misbehaviour(said, fault)
        is_own = fault is Fault.ENVIRONMENT_RAISED and method is not Method.SETUP  # which says itself what has failed
        return RuntimeFault(fault, said if is_own else detail)

    async def words(self, exchange: Exchange) -> tuple[str, str]:
        """Say what an answer is that isn't what was asked for; and what the server says of it itself."""
        if 300 <= exchange.status < 400:
            return f"{exchange.status}, a redirect, which is not followed", ""
        body = b""
        with contextlib.suppress(BadAnswer):
            body = bytes(await exchange.body(SMALL_BYTES))
        detail = detail_of(body, exchange.content_type)
        return f"{exchange.status} ({detail or exchange.content_type or 'without words'})", detail

    def holding(self) -> Holding:
        """Have what is held of a body count for the length of a block: together with all others' it is bounded."""
        return Holding(self._intake, self._evict)


def misbehaviour(words: str, fault: Fault = Fault.BAD_RESULT) -> RuntimeFault:
    """Return the error that an answer is which no server of the protocol's gives; its session may go on."""
    return RuntimeFault(fault, str(Failure(Reason.PROTOCOL_VIOLATION, words)))


def is_starting(exchange: Exchange) -> bool:
    """Tell whether a server says that it has not begun with what it was asked, and may be asked again."""
    return exchange.status == 503 and exchange.headers.get(b"x-backend-state", b"").lower() == b"starting"
