"""Requests to nodes' hosts, and their answers, streamed through. What was sent is not sent again, unless that does no harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import aiohttp
import structlog
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from host import sse
from host.cluster.errors import NodeSilent, NoNode
from host.cluster.membership import Membership
from host.cluster.node import Node, NodeLost
from host.errors import BodyTimeout, Failure, InvalidRequest, SessionEnded
from host.parsing import BODY_LIMITS

log = structlog.get_logger()

_ONWARD = (
    "X-Session-ID",
    "X-Secrets",
    "X-Deployment",
    "Accept",
    "Content-Type",
    "Content-Encoding",
    "Traceparent",
    "Tracestate",
)
_BACK = ("Content-Type", "Retry-After", "X-Backend-State", "Cache-Control", "X-Accel-Buffering", "Location", "Allow")

_CONNECT_S = 5.0
_WHOLE_BYTES = 64 * 1024
"""A body up to this size is sent on in one piece; a longer one as it comes, so that none is held here."""

_WRITE_S = 60.0
_HOST_BACK_S = 30.0
"""For a node's host to be started again. Nothing was sent to it, so waiting is safe; clients wait this long for a byte."""

_SSE = "text/event-stream"


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """The connections to all nodes. No time limit: a call takes as long as it takes, and a dead node is noticed elsewhere."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)  # nodes keep theirs for longer
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    ) as http:
        yield http


class Router:
    """The way to the nodes."""

    def __init__(self, http: aiohttp.ClientSession, membership: Membership) -> None:
        self._http = http
        self._membership = membership

    async def to_node(
        self, request: web.Request, node: Node, *, body: bytes | None = None, is_stream: bool = False
    ) -> web.StreamResponse:
        """Send a request about a session to its node, and answer with what comes back.

        ``body`` takes the place of the request's own. ``is_stream`` says that an error may be told as an event.

        Raises:
            SessionEnded: the node is lost (``node_lost``), and no answer had begun.
            NodeSilent: its host doesn't come back; nothing was sent to it.
        """
        answer = _Answer(request)
        data = await _body_of(request) if body is None else body
        try:
            with node.asked():
                await self._connected(request, node, data, answer)
        except NodeLost as exc:
            return await answer.end_lost(exc.failure, is_stream=is_stream)
        except _ClientGone:
            return answer.response
        except _BrokenOff:
            await self._membership.look_again(node)
            if node.failure is not None:
                return await answer.end_lost(node.failure, is_stream=is_stream)
            # Its host ended, and will go on with the session: so end as that host would towards a client of its own.
            answer.cut()
            raise ConnectionAbortedError from None
        return answer.response

    async def to_any(self, request: web.Request) -> web.StreamResponse:
        """Send a question that is no session's to some node that can answer it; to the next one if that one can't."""
        data = await _read(request)
        nodes = sorted(self._membership, key=lambda node: (not node.is_usable, len(node.sessions)))
        for node in (node for node in nodes if node.url is not None):
            answer = _Answer(request)
            try:
                with node.asked():
                    await self._exchange(request, node, data, answer)
            except _ClientGone:
                return answer.response
            except (NodeLost, _BrokenOff, aiohttp.ClientConnectorError):
                if answer.has_begun:
                    answer.cut()
                    raise ConnectionAbortedError from None
                continue
            return answer.response
        raise NoNode("no node can be asked: " + self._membership.how_nodes_are())

    async def _connected(
        self, request: web.Request, node: Node, data: bytes | aiohttp.StreamReader | None, answer: _Answer
    ) -> None:
        """Exchange request and answer, as soon as there is somebody to connect to."""
        deadline = asyncio.get_running_loop().time() + _HOST_BACK_S
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    while node.url is None:
                        await self._membership.wait_looked()
            except TimeoutError:
                raise NodeSilent from None
            try:
                return await self._exchange(request, node, data, answer)
            except aiohttp.ClientConnectorError:
                await self._membership.look_again(node)

    async def _exchange(
        self, request: web.Request, node: Node, data: bytes | aiohttp.StreamReader | None, answer: _Answer
    ) -> None:
        headers = CIMultiDict({name: request.headers[name] for name in _ONWARD if name in request.headers})
        headers.update(node.headers)
        asked = self._http.request(
            request.method,
            # As it came: the node's router must see the very path that keys were checked for here.
            URL(f"{node.url}{request.rel_url.raw_path_qs}", encoded=True),
            data=data,
            headers=headers,
            allow_redirects=False,
        )
        try:
            async with asked as response:
                await answer.begin(response)
                if answer.is_whole:
                    return
                async for piece in response.content.iter_any():
                    await answer.write(piece)
                await answer.finish()
        except aiohttp.ClientConnectorError:
            raise  # nothing was sent
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as exc:
            log.warning("node_broke_off", node=node.id, error=type(exc).__name__, begun=answer.has_begun)
            raise _BrokenOff from exc


class _BrokenOff(Exception):
    """The node's host went away after something was sent to it."""


class _ClientGone(Exception):
    """There is nobody to answer any more; what was asked goes on, and may be asked for again."""


class _Answer:
    """What the client gets."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response: web.StreamResponse | None = None
        self.is_whole = False

    @property
    def has_begun(self) -> bool:
        """True if the client has seen something of it."""
        return self._response is not None and self._response.prepared

    @property
    def response(self) -> web.StreamResponse:
        """The answer, after its end."""
        assert self._response is not None
        return self._response

    async def begin(self, response: aiohttp.ClientResponse) -> None:
        """Take over status and headers; and all of a short answer."""
        headers = _only(response.headers, _BACK)
        length = response.content_length
        if length is not None and length <= _WHOLE_BYTES:
            body = await response.read()
            self._response = web.Response(status=response.status, body=body, headers=headers)
            self.is_whole = True
            return
        stream = web.StreamResponse(status=response.status, headers=headers)
        if length is not None:
            stream.content_length = length
        self._response = stream
        await self._to_client(stream.prepare(self._request))

    async def write(self, piece: bytes) -> None:
        """Send a piece on."""
        await self._to_client(self.response.write(piece))

    async def finish(self) -> None:
        """The answer is complete."""
        await self._to_client(self.response.write_eof())

    async def end_lost(self, failure: Failure, *, is_stream: bool) -> web.StreamResponse:
        """The node is lost: say so, in whatever way is still open. Raises SessionEnded if none of the answer was sent."""
        if not self.has_begun:
            if is_stream:
                return web.Response(body=sse.error(str(failure)), headers={"Content-Type": f"{_SSE}; charset=utf-8"})
            raise SessionEnded(failure)
        if self.response.content_type != _SSE:
            self.cut()
            raise ConnectionAbortedError
        with suppress(_ClientGone):
            # A blank line first: what the node sent last may be half an event.
            await self.write(b"\r\n\r\n" + sse.error(str(failure)))
            await self.finish()
        return self.response

    def cut(self) -> None:
        """End it so that the client sees that it is not complete."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _to_client(self, writing: object) -> None:
        try:
            async with asyncio.timeout(_WRITE_S):
                await writing  # type: ignore[misc]
        except (ConnectionError, TimeoutError):
            self.cut()
            raise _ClientGone from None


def _only(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


async def _body_of(request: web.Request) -> bytes | aiohttp.StreamReader | None:
    """Return what to send on: all of a short body, a long one as it arrives."""
    if not request.body_exists:
        return None
    length = request.content_length
    if length is not None and length <= _WHOLE_BYTES:
        return await _read(request)
    return request.content  # its node sees to it that it comes in time, and is not too large


async def _read(request: web.Request) -> bytes:
    limits = request.app[BODY_LIMITS]
    try:
        async with asyncio.timeout(limits.timeout_s):
            return await request.read()
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {limits.timeout_s:g} s") from None
    except web.RequestPayloadError as exc:
        raise InvalidRequest("the body is broken off, or not encoded as its headers say") from exc
