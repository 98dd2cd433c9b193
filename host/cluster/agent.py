"""The agent of one node: keeps its ``ors-host`` running, and gives back the places of its sessions that have ended.

It is an actor of Ray's (``ray_cluster``), so Ray restarts it when it dies. Its host ends with it, but not the host's sessions:
the next one goes on with them.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

import aiohttp
import structlog
from pydantic import ValidationError

from host import logs
from host.cluster.agent_status import AgentStatus
from host.cluster.names import ClusterAway, Placement, session_group
from host.cluster.node_settings import on_node
from host.priority import die_no_sooner_than_others, go_before_containers
from host.state_view import StateView

log = structlog.get_logger()

_LOOK_S = 1.0
_ANSWER_S = 5.0
_SILENT_ROUNDS = 30
"""Looks at a host that doesn't answer, before it is ended: a loaded machine may take its time."""

_BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0)
_WAS_WELL_S = 60.0
"""A host that ran for this long is started again at once."""

_END_S = 60.0
_PEER_HEADER = "X-API-Key"


class AgentsCluster(Protocol):
    """What an agent needs of Ray."""

    async def find(self, name: str) -> Placement | None:
        """Return a reservation by its name, None if there is none."""

    async def release(self, name: str) -> None:
        """Give a reservation back; fine if there is none."""


class Agent:
    """The supervisor, in a thread with an event loop of its own. ``status`` and ``stop`` are asked from other threads."""

    def __init__(
        self, cluster: AgentsCluster, *, node: str, address: str, capacity: int, settings: Mapping[str, Any]
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._settings = dict(settings)
        self._key = secrets.token_urlsafe(32)
        self._own = {
            "max_sessions": capacity,
            "host": address,
            "port": self._settings.get("node_port", 0),
            "api_key": self._key,
            "on_exit": "keep",
            "node_api": True,
        }
        self._status = AgentStatus(settings=self._settings)
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._remove = False
        self._gone: dict[str, Placement] = {}
        self._known: set[str] = set()
        self._ended: set[str] = set()
        self._adopted = False
        self._wake: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin; an agent that fails ends its process, and Ray starts another."""
        threading.Thread(target=self._run, name="agent", daemon=True).start()

    def status(self) -> dict[str, Any]:
        """Return how things are, as a dictionary of ``AgentStatus``."""
        return asdict(self._status)

    def stop(self, *, remove: bool) -> None:
        """End the host, and if told so all its sessions first. Blocks until that is done."""
        self._remove = remove
        self._stopping.set()
        if self._loop is not None and self._wake is not None:
            self._loop.call_soon_threadsafe(self._wake.set)
        self._stopped.wait()

    def _run(self) -> None:
        logs.configure(format="human", level="info")
        go_before_containers()
        die_no_sooner_than_others()
        try:
            asyncio.run(self._supervise())
        except BaseException:
            log.exception("agent_failed")
            os._exit(1)

    async def _supervise(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            words = await self._run_host()
            if self._stopping.is_set():
                break
            failures = 1 if time.monotonic() - began > _WAS_WELL_S else failures + 1
            pause = _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1]
            self._say("failed" if words or failures > 1 else "preparing", words or "the node's host ended unexpectedly")
            log.warning("host_ended", words=words, again_in_s=pause)
            await self._sleep(pause)
        self._say("stopped", "the agent was told to stop")
        self._stopped.set()

    async def _run_host(self) -> str:
        """Run the host until it ends, or is to end; return the words it ended with, if it had any."""
        command = [sys.executable, "-m", "host.cluster.node_host", "serve"]
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, start_new_session=True)
        self._adopted = False
        try:
            assert process.stdin is not None
            told = {"settings": self._settings, "own": self._own}
            process.stdin.write(json.dumps(told).encode() + b"\n")
            listening = asyncio.create_task(self._listen(process))
            watching = asyncio.create_task(self._watch(process))
            ended = asyncio.create_task(process.wait())
            await asyncio.wait((watching, ended), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            watching.cancel()
            await self._end(process)
            return await listening
        finally:
            if process.returncode is None:
                process.kill()

    async def _listen(self, process: Process) -> str:
        """Take in what the host says on its way; return the words of its failure, if it tells one."""
        assert process.stdout is not None
        failure = ""
        async for line in process.stdout:
            said = json.loads(line)
            if said["kind"] == "failed":
                failure = said["words"]
            else:
                self._say("preparing", said["words"])
        return failure

    async def _watch(self, process: Process) -> None:
        """Look at the host each second, until it is to end, or has been silent for too long."""
        try:
            state_dir = on_node(self._settings, self._own).state_dir
        except ValidationError:
            return  # the host says the same, in words
        silent = 0
        async with aiohttp.ClientSession(
            headers={_PEER_HEADER: self._key}, timeout=aiohttp.ClientTimeout(total=_ANSWER_S)
        ) as http:
            while not self._stopping.is_set():
                view = StateView.of(state_dir)
                where = view.address() if view.pid == process.pid else None
                if where is not None:
                    try:
                        await self._look(http, where[0])
                        silent = 0
                    except (aiohttp.ClientError, TimeoutError) as exc:
                        silent += 1
                        log.warning("host_silent", error=type(exc).__name__, rounds=silent)
                        if silent >= _SILENT_ROUNDS:
                            return
                await self._sleep(_LOOK_S)
            if self._remove and self._status.url is not None:
                await self._end_sessions(http, self._status.url)

    async def _look(self, http: aiohttp.ClientSession, url: str) -> None:
        async with http.get(f"{url}/node/state") as response:
            response.raise_for_status()
            state = await response.json()
        live, ended = set(state["sessions"]), set(state["ended"])
        try:
            if not self._adopted:
                await self._end_unplaced(http, url, live)
                self._adopted = True
            await self.give_back(live, ended)
        except ClusterAway:
            self._known |= live | ended  # looked at again when Ray's head is back
        problem = state["problem"]
        self._status = AgentStatus(
            state="ready",
            words=problem or "",
            url=url,
            key=self._key,
            sessions=len(live),
            settings=self._settings,
        )

    async def _end_unplaced(self, http: aiohttp.ClientSession, url: str, live: set[str]) -> None:
        """End what the host goes on with although its place is lost: the node was taken for dead while it was away."""
        lost = []
        for sid in live:
            placement = await self._cluster.find(session_group(sid))
            if placement is None or placement.node not in (None, self._node):
                lost.append(sid)
        if lost:
            log.warning("sessions_without_place", sessions=len(lost))
            async with http.post(f"{url}/node/end", json={"sids": lost}) as response:
                response.raise_for_status()

    async def give_back(self, live: set[str], ended: set[str]) -> None:
        """Release the places of sessions that have ended: of those that are missing, and of those that no look has found.

        Only at the second look that doesn't find a session, and only the reservation that was seen at the first: its id may
        be in use again, and the new session on its way here.
        """
        for sid, seen in list(self._gone.items()):
            del self._gone[sid]
            if sid not in live and await self._cluster.find(session_group(sid)) == seen:
                await self._cluster.release(session_group(sid))
        for sid in (self._known | (ended - self._ended)) - live:
            placement = await self._cluster.find(session_group(sid))
            if placement is not None and placement.node == self._node:
                self._gone[sid] = placement
        self._known, self._ended = live, ended

    async def _end_sessions(self, http: aiohttp.ClientSession, url: str) -> None:
        try:
            timeout = aiohttp.ClientTimeout(total=_END_S)
            async with http.post(f"{url}/node/end_all", json={}, timeout=timeout) as response:
                response.raise_for_status()
        except (aiohttp.ClientError, TimeoutError) as exc:
            log.warning("sessions_not_ended", error=type(exc).__name__)

    async def _end(self, process: Process) -> None:
        """Have the host end in order, which the end of its standard input means."""
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _END_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    def _say(self, state: str, words: str) -> None:
        self._status = AgentStatus(state=state, words=words, settings=self._settings)

    async def _sleep(self, seconds: float) -> None:
        assert self._wake is not None
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return
