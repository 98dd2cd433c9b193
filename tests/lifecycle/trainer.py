"""Clients of a soak: each plays one kind of session after another, and checks what it is told.

A call has an id of the trainer's from the start, so that it can be asked for again whenever a connection breaks: it must give
its result, once, whatever happened to the host meanwhile. In the container each call leaves its mark in a file, and no mark may
be there twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.docker.harness import CallStream, Reply
from tests.lifecycle.hosts import RestartableHost
from tests.lifecycle.killing import end_container
from tests.lifecycle.report import Report

_BROKEN = (aiohttp.ClientError, ConnectionError, TimeoutError, AssertionError)
"""What a host that is killed looks like; the last is a stream that ends in the middle."""

_PATIENCE_S = 90.0
_LARGE = 40_000


@dataclass(frozen=True)
class Ended:
    """A session is over, by this reason."""

    status: int
    reason: str


class Trainer:
    """One client, busy until it is told to stop."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        host: RestartableHost,
        report: Report,
        rng: random.Random,
        *,
        abandons: bool = True,
    ) -> None:
        self._http = http
        self._host = host
        self._report = report
        self._rng = rng
        self.abandoned: list[str] = []
        self._kinds: list[tuple[float, Callable[[str], Awaitable[None]]]] = [
            (8, self._plain),
            (2, self._failing_tools),
            (2, self._reconnecting),
            (1, self._storm),
            (1, self._not_reading),
            (1, self._deleted_in_mid_call),
            (1, self._deleted_in_creation),
            (1, self._exiting),
            (1, self._out_of_memory),
            (3, self._killed),
            (0.7 if abandons else 0, self._abandoned),
        ]

    async def run(self, until_s: float) -> None:
        """Play sessions until then."""
        weights = [weight for weight, _kind in self._kinds]
        while time.monotonic() < until_s:
            (_weight, kind) = self._rng.choices(self._kinds, weights)[0]
            sid = str(uuid.UUID(int=self._rng.getrandbits(128)))
            try:
                await kind(sid)
            except Exception as exc:
                self._report.bad("wrong", f"{kind.__name__} {sid}: {type(exc).__name__}: {exc}")

    # --- Kinds of sessions ------------------------------------------------------------------------------------------

    async def _plain(self, sid: str) -> None:
        await self._create(sid)
        for _ in range(self._rng.randint(1, 3)):
            await self._marked_call(sid, self._rng.random() * 0.3)
        await self._finish(sid)

    async def _failing_tools(self, sid: str) -> None:
        await self._create(sid)
        for what in self._rng.sample(["raise", "cancelled", "system_exit", "nan", "not_an_output"], 2):
            self._report.fault(f"tool: {what}")
            reply = await self._call(sid, "fail", what=what)
            self._expect(isinstance(reply, Reply) and reply.event == "error", f"{what}: {reply}")
        await self._marked_call(sid)
        await self._finish(sid)

    async def _reconnecting(self, sid: str) -> None:
        await self._create(sid)
        call_id = self._call_id()
        self._report.fault("client disconnects")
        await self._begin(sid, call_id, 0.5)
        replies = [await self._call(sid, "bash", call_id, command=_mark(call_id, 0.5)) for _ in range(2)]
        self._check(call_id, *replies)
        await self._finish(sid)

    async def _storm(self, sid: str) -> None:
        await self._create(sid)
        call_id = self._call_id()
        self._report.fault("reconnect storm")
        again = (self._call(sid, "bash", call_id, command=_mark(call_id, 0.5)) for _ in range(20))
        self._check(call_id, *await asyncio.gather(*again))
        await self._finish(sid)

    async def _not_reading(self, sid: str) -> None:
        """Half a result is taken; the rest is never read, and the connection stays open for a while."""
        await self._create(sid)
        self._report.fault("client stops reading")
        call_id = self._call_id()
        request: dict[str, Any] = {"name": "echo", "input": {"text": "x" * 50, "times": _LARGE}, "task_id": call_id}
        with contextlib.suppress(*_BROKEN):
            async with self._http.post("/any/call", json=request, headers=self._headers(sid)) as response:
                await response.content.readany()
                await self._marked_call(sid)
        reply = await self._call(sid, "echo", call_id, text="x" * 50, times=_LARGE)
        if not (isinstance(reply, Reply) and reply.event == "end" and len(reply.text) == 50 * _LARGE):
            self._report.bad("lost", f"{call_id}: a large result: {str(reply)[:300]}")
        await self._finish(sid)

    async def _deleted_in_mid_call(self, sid: str) -> None:
        await self._create(sid)
        call_id = self._call_id()
        await self._begin(sid, call_id, 30)
        self._report.fault("delete in mid-call")
        call = asyncio.create_task(self._call(sid, "bash", call_id, command=_mark(call_id, 30)))
        await self._delete(sid)
        reply = await call
        # After a kill the host may have no memory of it: a session that was never there is a 404.
        told = reply.reason in ("deleted", "unknown_session") if isinstance(reply, Ended) else "deleted" in reply.data
        self._expect(told, f"deleted in mid-call: {reply}")

    async def _deleted_in_creation(self, sid: str) -> None:
        self._report.fault("delete in creation")
        creating = asyncio.create_task(self._post(sid, "/create", {"task_spec": {"construct": "sleep", "seconds": 30}}))
        await asyncio.sleep(self._rng.random())
        await self._delete(sid)
        creating.cancel()
        await asyncio.wait((creating,))
        await self._delete(sid)

    async def _exiting(self, sid: str) -> None:
        await self._create(sid)
        self._report.fault("environment exits")
        reply = await self._call(sid, "fail", what="os_exit")
        words = reply.data if isinstance(reply, Reply) else reply.reason
        self._expect("container_died" in words or "unknown_session" in words, f"os._exit: {reply}")
        await self._delete(sid)

    async def _out_of_memory(self, sid: str) -> None:
        await self._create(sid)
        self._report.fault("out of memory")
        reply = await self._call(sid, "fail", what="hog")
        words = reply.data if isinstance(reply, Reply) else reply.reason
        told = any(word in words for word in ("out_of_memory", "container_died", "unknown_session"))
        self._expect(told, f"out of memory: {reply}")
        await self._delete(sid)

    async def _killed(self, sid: str) -> None:
        """The container is killed from outside, at rest or in a call; who asks is told."""
        await self._create(sid)
        if self._rng.random() < 0.5:
            await self._begin(sid, self._call_id(), 30)
        how = self._rng.choice(["docker rm -f", "docker kill", "SIGKILL to the runtime"])
        if not await asyncio.to_thread(end_container, self._host.running, sid, how):
            return await self._delete(sid)
        self._report.fault(how)
        started, starts = time.monotonic(), self._host.starts
        while (await self._post(sid, "/ping"))[0] == 200:
            await asyncio.sleep(0.02)
            if time.monotonic() - started > _PATIENCE_S:
                return self._report.bad("wrong", f"{how}: {sid} goes on")
        if self._host.starts == starts and self._host.up.is_set():
            self._report.slowest_notice_s = max(self._report.slowest_notice_s, time.monotonic() - started)
        await self._delete(sid)

    async def _abandoned(self, sid: str) -> None:
        await self._create(sid)
        self._report.fault("session abandoned")
        self.abandoned.append(sid)

    # --- Steps ------------------------------------------------------------------------------------------------------

    async def _create(self, sid: str) -> None:
        """Create it, coming again for as long as that is what one is told to do."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            status, body = await self._post(sid, "/create", {"task_spec": {"n": 1}})
            if status == 200 or (status == 400 and body["reason"] == "session_exists"):  # the answer was lost
                self._report.sessions += 1
                return
            self._expect(status == 503, f"create: {status} {body}")
            self._report.refused += 1
            await asyncio.sleep(0.3)
        raise TimeoutError("no place for a session")

    async def _begin(self, sid: str, call_id: str, seconds: float) -> None:
        """Start a call and go away."""
        request = {"name": "bash", "input": {"command": _mark(call_id, seconds)}, "task_id": call_id}
        with contextlib.suppress(*_BROKEN):
            async with self._http.post("/any/call", json=request, headers=self._headers(sid)) as response:
                await response.content.readany()

    async def _marked_call(self, sid: str, seconds: float = 0) -> None:
        call_id = self._call_id()
        self._check(call_id, await self._call(sid, "bash", call_id, command=_mark(call_id, seconds)))

    def _check(self, call_id: str, *replies: Reply | Ended) -> None:
        for reply in replies:
            if isinstance(reply, Reply) and reply.event == "end" and reply.text == f"done {call_id}\n":
                continue
            self._report.bad("lost", f"{call_id}: {str(reply)[:300]}")

    async def _finish(self, sid: str) -> None:
        """Look for a call that ran twice, then delete the session."""
        reply = await self._call(sid, "bash", command="sort /workspace/marks | uniq -d; echo end")
        if not (isinstance(reply, Reply) and reply.event == "end"):
            self._report.bad("lost", f"{sid}: the last call: {str(reply)[:300]}")
        elif reply.text != "end\n":
            self._report.bad("doubles", f"{sid}: {reply.text}")
        await self._delete(sid)

    async def _delete(self, sid: str) -> None:
        status, body = await self._post(sid, "/delete")
        self._expect(status == 200, f"delete: {status} {body}")

    async def _call(self, sid: str, name: str, call_id: str | None = None, **tool_input: Any) -> Reply | Ended:
        """Call, and come back with the same id until there is an end of it."""
        call_id = call_id or self._call_id()
        self._report.calls += 1
        request = {"name": name, "input": tool_input, "task_id": call_id}
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                async with (
                    asyncio.timeout(_PATIENCE_S),
                    self._http.post("/any/call", json=request, headers=self._headers(sid)) as response,
                ):
                    if response.status == 200:
                        stream = CallStream(response)
                        await stream.start()
                        return await stream.reply()
                    body = await response.json()
                    if response.status != 503:
                        return Ended(response.status, body["reason"])
            except _BROKEN:
                if time.monotonic() > deadline:
                    raise
            await self._again()

    async def _post(self, sid: str, path: str, body: Any = None) -> tuple[int, Any]:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                async with (
                    asyncio.timeout(_PATIENCE_S),
                    self._http.post(path, json=body, headers=self._headers(sid)) as response,
                ):
                    return response.status, await response.json()
            except _BROKEN:
                if time.monotonic() > deadline:
                    raise
            await self._again()

    async def _again(self) -> None:
        await asyncio.sleep(0.1)
        await self._host.up.wait()

    def _headers(self, sid: str) -> dict[str, str]:
        return {"X-Session-ID": sid, "Accept": "text/event-stream"}

    def _call_id(self) -> str:
        return f"trace-{self._rng.getrandbits(64):x}"

    def _expect(self, condition: bool, words: str) -> None:
        if not condition:
            self._report.bad("wrong", words[:600])


def _mark(call_id: str, seconds: float) -> str:
    return f"echo {call_id} >> /workspace/marks; sleep {seconds:.3f}; echo done {call_id}"
