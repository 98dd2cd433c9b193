"""The channel to an ORS server in a container: what is asked of a runtime by messages is asked of it by HTTP.

The server knows nothing of a host. It is reached from inside its container's network (``netns``), so it needs no other, and
everything that it says is untrusted. What a runtime promises and a stranger doesn't is made up for here:

1. A call is sent once (``server_calls``).
2. Set-up has an end that can be waited for (``server_session``).
3. Nothing announces that a server has left its port, or is about to forget a session that is silent: it is looked at every few
   seconds, and told now and then that the session goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import AF_INET, AF_INET6, socket
from typing import Any

from host.answers import InvalidAnswer
from host.channel import ChannelBroken, ChannelClosed, ProtocolViolation, RequestTimeout
from host.errors import Failure, Reason, SandboxFailed
from host.intake import Intake
from host.netns import Namespace, NoEntry
from host.requests import copy_of
from host.server_asking import SMALL_BYTES, Asking, misbehaviour
from host.server_calls import ServerCalls
from host.server_dialect import DISCOVERY, Question, environment_names, question
from host.server_http import ServerHttp
from host.server_note import ServerNote
from host.server_reader import BadAnswer, Broken, HttpError, Refused
from host.server_session import ServerSession
from sandbox_runtime.messages import EpisodeState, Method

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.05
"""Between looks whether the server listens yet: a look costs half a millisecond."""

_HEALTH_TIMEOUT_S = 5.0
_LOOK_S = 2.0
_PING_S = 240.0
"""Servers forget a session after 900 s without a request, counted from when that began."""

_PING_TIMEOUT_S = 10.0
_DEATH_WAIT_S = 1.2
"""From a server's last word to the news of its container's death."""


@dataclass(frozen=True)
class ServerGreeting:
    """What a server says of itself, and what an earlier host has noted of its session."""

    environments: Sequence[str]
    episode: EpisodeState | None
    agent_goes_first: None = None


class ServerChannel:
    """One sandbox's channel, from before its container is started until ``aclose()``."""

    def __init__(
        self,
        directory: Path,
        *,
        enter: Callable[[], Awaitable[Namespace]],
        port: int,
        note: Path,
        max_frame_bytes: int,
        intake: Intake,
    ) -> None:
        """``enter`` takes hold of the running container's network; it raises NoEntry, or ChannelBroken if none runs."""
        self.directory = directory
        self._enter = enter
        self._port = port
        self._note = ServerNote.read(note)
        self._namespace: Namespace | None = None
        self._http = ServerHttp(self._socket, port)
        self._asking = Asking(self._http, intake, max_bytes=max_frame_bytes, evict=self._evict)
        self._asking.sid = self._note.sid
        self._session = ServerSession(self._asking, self._note)
        self._calls = ServerCalls(self._asking, self._note, is_over=lambda: self.ended, wait_death=self._wait_death)
        self._end: Exception | None = None
        self._ended = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._seen = "nothing listens there"

    @property
    def ended(self) -> bool:
        """True once nothing more comes or goes."""
        return self._end is not None

    @property
    def silence(self) -> str:
        """What to say of a server that wasn't ready in time."""
        return f"the server did not answer GET /health on port {self._port} ({self._seen})"

    async def listen(self, *, owner: tuple[int, int] | None, again: bool = False) -> None:
        """Make the sandbox's directory, which the container doesn't see.

        Raises:
            OSError: it can't be made, or an earlier host's note can't be gone on with.
        """
        self.directory.mkdir(mode=0o700, exist_ok=again)
        if again and self._note.sid is not None:
            self._note.resume()

    async def wait_hello(self) -> ServerGreeting:
        """Wait until the server is healthy, and has said which environments it has; see ``Channel.wait_hello``."""
        try:
            self._namespace = await self._enter()
        except NoEntry as exc:
            message = f"the server in the container can't be reached: {exc}"
            raise SandboxFailed(Failure(Reason.START_FAILED, message)) from None
        except ChannelBroken as exc:
            raise self._finish(exc) from None
        await self._wait_healthy()
        asked = Question("GET", "/list_environments")
        try:
            async with await self._asking.request(asked) as exchange:
                if exchange.status != 200:
                    words, _ = await self._asking.words(exchange)
                    raise BadAnswer(f"it answers GET /list_environments with {words}")
                names = environment_names(await exchange.body(SMALL_BYTES))
        except InvalidAnswer as exc:
            raise self._finish(_violation(exc)) from None
        except HttpError as exc:
            raise await self._explain(asked, exc) from None
        self._watch = asyncio.get_running_loop().create_task(self._keep_alive())
        return ServerGreeting(names, self._note.episode())

    async def wait_ended(self) -> Exception:
        """Wait until the channel has ended; return why."""
        await self._ended.wait()
        assert self._end is not None
        return self._end

    async def request(
        self, method: Method, params: Mapping[str, Any], *, timeout_s: float, cancel_grace_s: float = 0
    ) -> Any:
        """Ask the server; see ``Channel.request``. What it started can't be cancelled, so no time-out is ever confirmed."""
        if self._end is not None:
            raise copy_of(self._end)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(method, params)
        except TimeoutError:
            raise (copy_of(self._end) if self._end else RequestTimeout(ended=False)) from None
        except HttpError as exc:
            raise await self._explain(method, exc) from None

    def peer_died(self) -> None:
        """Take note that the container is dead."""
        self._finish(ChannelBroken("the container died"))

    def hang_up(self) -> None:
        """End all connections; whoever waits gets ``ChannelClosed``. What runs in the server runs on."""
        self._note.flush()  # the next host may read it as soon as this one has let go
        self._finish(ChannelClosed("the channel was closed"))

    async def aclose(self) -> None:
        """Hang up, and let go of the container's network."""
        self.hang_up()
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        if self._namespace is not None:
            self._namespace.close()
        self._note.close()

    # --- What is asked ----------------------------------------------------------------------------------------------

    async def _ask(self, method: Method, params: Mapping[str, Any]) -> Any:
        match method:
            case Method.CREATE:
                return await self._session.create(params)
            case Method.SETUP:
                return await self._session.set_up()
            case Method.CALL | Method.SCORE_GROUP:
                return await self._calls.call(method, params)
            case Method.RESULT:
                return await self._calls.result(params["call_id"])
            case Method.TEARDOWN:
                async with await self._asking.request(Question("POST", "/delete")) as exchange:
                    await exchange.body(SMALL_BYTES)
                return None
            case Method.PROMPT:
                return await self._session.prompt()
            case _ if method in DISCOVERY:
                asked = question(
                    method, params["env"], {name: value for name, value in params.items() if name != "env"}
                )
                try:
                    return await self._asking.answer(method, asked)
                except Broken:  # it changes nothing, and may be asked again
                    return await self._asking.answer(method, asked)
            case _:
                return await self._asking.answer(method, question(method, self._note.environment, {}))

    # --- Being there ------------------------------------------------------------------------------------------------

    async def _socket(self, address: str) -> socket:
        if self._namespace is None:
            raise OSError("the container's network was not entered")
        return await self._namespace.socket(AF_INET6 if ":" in address else AF_INET)

    async def _wait_healthy(self) -> None:
        """Ask until the server is healthy, or at least answers; the caller has the deadline.

        Raises:
            ChannelClosed, ChannelBroken, ProtocolViolation: the channel ended first.
        """
        pause_s = _FIRST_PAUSE_S
        while self._end is None:
            try:
                async with (
                    asyncio.timeout(_HEALTH_TIMEOUT_S),
                    await self._http.request(
                        "GET", "/health", headers={"Accept": "application/json"}, tries=1
                    ) as exchange,
                ):
                    await exchange.body(SMALL_BYTES)
                    if exchange.status in (200, 404, 405):
                        return
                    self._seen = f"the last answer was {exchange.status}"
            except Refused as exc:
                self._seen = str(exc)
                self._http.address = "::1" if self._http.address == "127.0.0.1" else "127.0.0.1"
            except Broken as exc:
                self._seen = str(exc)
            except BadAnswer as exc:
                raise self._finish(_violation(exc)) from None
            except TimeoutError:
                self._seen = f"no answer within {_HEALTH_TIMEOUT_S:g} s"
            await self._wait_end(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        raise copy_of(self._end)

    async def _keep_alive(self) -> None:
        """Look whether the server is there, while nothing else would tell; and keep its session from being forgotten."""
        loop = asyncio.get_running_loop()
        pinged_at = loop.time()
        while True:
            await asyncio.sleep(_LOOK_S)
            self._http.end_slow_drains()
            try:
                if not self._http.busy:
                    await self._http.probe()
                if self._asking.sid is not None and loop.time() - pinged_at >= _PING_S:
                    pinged_at = loop.time()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_PING_TIMEOUT_S):
                            async with await self._asking.request(Question("POST", "/ping")) as exchange:
                                await exchange.body(SMALL_BYTES)
            except Refused as exc:
                await self._explain("a look", exc)
                return
            except HttpError:  # the next who asks is told
                pass

    # --- Its end ----------------------------------------------------------------------------------------------------

    async def _explain(self, asked: object, exc: HttpError) -> Exception:
        """Return what it means that there is no answer: perhaps the end, which may be about to be heard of."""
        if isinstance(exc, BadAnswer):
            return self._finish(_violation(exc))
        await self._wait_end(_DEATH_WAIT_S)
        if isinstance(exc, Refused):
            return self._finish(ChannelBroken(f"the server listens no more on port {self._port} ({exc})"))
        if self._end is not None:
            return copy_of(self._end)
        return misbehaviour(f"the environment's server gave no answer to {asked}: {exc}")

    async def _wait_death(self) -> None:
        """After a connection broke off: raise the channel's end, if that is why."""
        await self._wait_end(_DEATH_WAIT_S)
        if self._end is not None:
            raise copy_of(self._end)

    async def _wait_end(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    def _evict(self) -> None:
        self._finish(ProtocolViolation("an answer was left unfinished while memory for such answers was short"))

    def _finish(self, end: Exception) -> Exception:
        """End the channel, if it hasn't yet; return its end, to raise."""
        if self._end is None:
            self._end = end
            self._ended.set()
            self._http.close()
        return copy_of(self._end)


def _violation(exc: Exception) -> ProtocolViolation:
    return ProtocolViolation(f"the environment's server: {str(exc)[:500]}")
