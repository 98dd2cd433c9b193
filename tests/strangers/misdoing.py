"""Having a hostile server do everything wrong that it can, many things at once, and noting what clients are told of it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.docker.harness import Client, RunningHost, Session

AT_ONCE = 3


@dataclass
class Told:
    """What a client was told.

    ``status`` and ``words`` of an answer, or ``event`` and its data of a call; ``after`` is what ``/ping`` said then: None if
    the session was well, else the reason of its end.
    """

    status: int
    words: str
    event: str = ""
    seconds: float = 0
    after: str | None = None


@dataclass
class Everything:
    """What came of all misdeeds, by where and what; and of an honest neighbour's calls meanwhile."""

    told: dict[tuple[str, str], Told] = field(default_factory=dict)
    neighbours_calls: list[float] = field(default_factory=list)
    """Seconds that each took."""

    neighbour: str = ""
    """What the neighbour's counter says at the end."""


async def do_everything(host: RunningHost, misdeeds: Iterable[tuple[str, str]], **given: Any) -> Everything:
    """Do all misdeeds, each in a session that is well; ``given`` is passed on to those that take something."""
    everything = Everything()
    left = deque(misdeeds)
    discoveries = [misdeed for misdeed in left if misdeed[0] == "tasks"]
    left = deque(misdeed for misdeed in left if misdeed[0] != "tasks")

    async def worker(client: Client) -> None:
        session: Session | None = None
        while left:
            where, what = left.popleft()
            if where != "create" and session is None:
                session = await client.create({"n": 1, **given})
                assert (await session.get("/any/prompt"))[0] == 200  # the one that was made with it
            told = await _timed(_DEEDS[where](client, session, what, given))
            if session is not None and where != "create":
                status, body = await session.post("/ping")
                told.after = None if status == 200 else body["reason"]
                if told.after is not None:
                    session = None
            everything.told[where, what] = told
        if session is not None:
            await session.delete()

    async def ask(client: Client) -> None:
        for where, what in discoveries:
            everything.told[where, what] = await _timed(_tasks(client, None, what, given))

    async def be_a_neighbour(client: Client, over: asyncio.Event) -> None:
        session = await client.create()
        while not over.is_set():
            began = time.monotonic()
            everything.neighbour = (await session.call("count")).text
            everything.neighbours_calls.append(time.monotonic() - began)
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 0.05)
        await session.delete()

    over = asyncio.Event()
    async with host.client() as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(be_a_neighbour(client, over))
        async with asyncio.TaskGroup() as deeds:
            deeds.create_task(ask(client))
            for _ in range(AT_ONCE):
                deeds.create_task(worker(client))
        over.set()
    return everything


Deed = Callable[[Client, "Session | None", str, dict[str, Any]], Awaitable[Told]]


async def _timed(deed: Awaitable[Told]) -> Told:
    began = time.monotonic()
    told = await deed
    told.seconds = time.monotonic() - began
    return told


async def _call(client: Client, session: Session | None, what: str, given: dict[str, Any]) -> Told:
    assert session is not None
    reply = await session.call("misbehave", what=what, **given)
    return Told(200, reply.data, reply.event)


async def _prompt(client: Client, session: Session | None, what: str, given: dict[str, Any]) -> Told:
    assert session is not None
    assert (await session.call("arm", prompt=what)).text == "armed"
    return _answer(await session.get("/any/prompt"))


async def _task_tools(client: Client, session: Session | None, what: str, given: dict[str, Any]) -> Told:
    assert session is not None
    assert (await session.call("arm", task_tools=what)).text == "armed"
    return _answer(await session.get("/any/task_tools"))


async def _create(client: Client, session: Session | None, what: str, given: dict[str, Any]) -> Told:
    created = client.session()
    told = _answer(await created.post("/create", {"task_spec": {"create": what, **given}}))
    status, body = await created.post("/ping")
    told.after = None if status == 404 else str(body)  # the id stays free
    return told


async def _tasks(client: Client, session: Session | None, what: str, given: dict[str, Any]) -> Told:
    async with client.http.post("/hostile/tasks", json={"split": what}) as response:
        return _answer((response.status, await response.json()))


_DEEDS: dict[str, Deed] = {"call": _call, "prompt": _prompt, "task_tools": _task_tools, "create": _create}


def _answer(answer: tuple[int, Any]) -> Told:
    status, body = answer
    return Told(status, f"{body['reason']}: {body['detail']}" if status != 200 else str(body))


class Trap:
    """A port of this machine that nobody should come to."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"

    def close(self) -> None:
        self._socket.close()

    def was_visited(self) -> bool:
        """Tell whether anybody connected."""
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True
