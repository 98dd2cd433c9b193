"""A front over a Ray cluster that isn't one: what it does when nodes, hosts or Ray's head go away, and what it never does."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from host import __version__, docker_client
from host.app import application
from host.auth import Keys
from host.cluster import reservations as reservations_module
from host.cluster.agent import Agent
from host.cluster.agent_status import AgentStatus
from host.cluster.directory import Directory
from host.cluster.errors import HeadAway
from host.cluster.images import get_images
from host.cluster.membership import Membership
from host.cluster.names import AgentAway, ClusterAway, ClusterNode, Placement, PlaceTaken, session_group, session_of
from host.cluster.node_settings import differences, for_nodes, on_node
from host.cluster.reconcile import Reconciler
from host.cluster.reservations import Reservations
from host.cluster.router import Router, client
from host.cluster.routes import ClusterRoutes
from host.errors import StartupError
from host.metrics import Metrics
from host.settings import Settings
from tests.host.served import Serve, until

IMAGE = "env:latest"
KEY = "the-nodes-key"
TRAINER = "the-trainers-key"


class FakeNode:
    """The host of one node: answers as it is told to, and notes what it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sessions: list[str] = []
        self.asked: list[web.Request] = []
        self.ended: list[str] = []
        self.problem: str | None = None
        self.answer: Callable[[web.Request], Any] | None = None
        self.hold: asyncio.Event | None = None
        """What its next words about its sessions wait for, if they do; ``holds``: they do."""
        self.holds = False
        self.url = ""
        self._runner: web.AppRunner | None = None
        self.raylet = socket.create_server(("127.0.0.1", 0))
        self.info = ClusterNode(name, "127.0.0.1", self.raylet.getsockname()[1], 4, alive=True)

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/node/state", self._state)
        app.router.add_get("/node/session", self._session)
        app.router.add_post("/node/end", self._end)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def die(self) -> None:
        """End its raylet: from now on a connection is refused there."""
        self.raylet.close()

    async def _state(self, request: web.Request) -> web.Response:
        assert request.headers["X-API-Key"] == KEY
        environments = [{"name": "env", "image": IMAGE}]
        state = {"sessions": tuple(self.sessions), "environments": environments, "problem": self.problem}
        if self.hold is not None:
            self.holds = True
            await self.hold.wait()
        return web.json_response(state)

    async def _session(self, request: web.Request) -> web.Response:
        known = request.headers["X-Session-ID"] in self.sessions
        return web.json_response({"known": "live" if known else "unknown"})

    async def _end(self, request: web.Request) -> web.Response:
        self.ended += (await request.json())["sids"]
        return web.json_response({})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        if self.answer is not None:
            answer = await self.answer(request)
            assert isinstance(answer, web.StreamResponse)
            return answer
        if request.path == "/create":
            self.sessions.append(request.headers["X-Session-ID"])
        if request.path == "/delete":
            self.sessions.remove(request.headers["X-Session-ID"])
        return web.json_response({"sid": request.headers.get("X-Session-ID"), "node": self.name})


@dataclass
class FakeCluster:
    """What a front and an agent need of Ray. ``away`` takes its head away."""

    fakes: dict[str, FakeNode] = field(default_factory=dict)
    groups: dict[str, Placement] = field(default_factory=dict)
    excluded: list[frozenset[str]] = field(default_factory=list)
    bundles: list[Mapping[str, float]] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    agents: set[str] = field(default_factory=set)
    forgotten: list[str] = field(default_factory=list)
    status: AgentStatus | None = None
    away: bool = False
    full: bool = False
    made: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self) -> None:
        if self.away:
            raise ClusterAway("no answer")

    async def nodes(self) -> list[ClusterNode]:
        self.check()
        return [
            ClusterNode(name, "127.0.0.1", 1, 0, alive=False) if name in self.dead else fake.info
            for name, fake in self.fakes.items()
        ]

    async def start_agent(self, node: ClusterNode, settings: Mapping[str, Any]) -> None:
        self.check()
        self.agents.add(node.id)
        self.settings = settings

    async def agent_status(self, node: str) -> AgentStatus:
        if node not in self.agents:
            raise AgentAway("none")
        return self.status or AgentStatus("ready", "", self.fakes[node].url, KEY, settings=self.settings)

    async def forget_agent(self, node: str) -> None:
        self.check()
        self.forgotten.append(node)

    async def reserve(self, name: str, bundle: Mapping[str, float], exclude: Collection[str]) -> str:
        self.check()
        if name in self.groups:
            raise PlaceTaken(name)
        self.made += 1
        self.bundles.append(bundle)
        self.excluded.append(frozenset(exclude))
        nodes = [node for node in self.fakes if node not in exclude and node not in self.dead]
        node = None if self.full or not nodes else min(nodes, key=self.load)
        self.groups[name] = Placement(f"group{self.made}", node)
        return f"group{self.made}"

    def load(self, node: str) -> int:
        return sum(place.node == node for place in self.groups.values())

    def free(self, node: str) -> None:
        """Place all that wait."""
        for name, place in self.groups.items():
            self.groups[name] = Placement(place.group, place.node or node)
        self.changed.set()

    async def wait_placed(self, group: str) -> str:
        while True:
            place = next((place for place in self.groups.values() if place.group == group), None)
            if place is None:
                raise LookupError(group)
            if place.node is not None:
                return place.node
            await self.changed.wait()
            self.changed.clear()

    async def find(self, name: str) -> Placement | None:
        self.check()
        return self.groups.get(name)

    async def release(self, name: str) -> None:
        self.check()
        self.groups.pop(name, None)

    async def reservations(self) -> dict[str, Placement]:
        self.check()
        return {sid: place for name, place in self.groups.items() if (sid := session_of(name)) is not None}


@dataclass
class Front:
    """A front over ``cluster``."""

    cluster: FakeCluster
    membership: Membership
    reservations: Reservations
    reconciler: Reconciler
    http: aiohttp.ClientSession
    """A client of the front."""

    nodes: aiohttp.ClientSession
    """The front's own, to the nodes."""

    async def post(self, path: str, sid: str, body: Any = None) -> tuple[int, Any]:
        async with self.http.post(path, json=body or {}, headers={"X-Session-ID": sid}) as response:
            return response.status, await response.json()

    async def create(self, sid: str) -> tuple[int, Any]:
        return await self.post("/create", sid, {"task_spec": {}})

    def node(self, name: str) -> FakeNode:
        return self.cluster.fakes[name]


def settings_of(tmp_path: Path, **fields: Any) -> Settings:
    values = {"image": (IMAGE,), "state_dir": tmp_path, "queue_timeout_s": 5, "memory": "1GiB", "cpus": 0.5}
    return Settings(**{**values, **fields})


@asynccontextmanager
async def fronting(tmp_path: Path, *names: str, key: bool = False, **fields: Any) -> AsyncIterator[Front]:
    """Serve a front with these nodes, which have been looked at once."""
    cluster = FakeCluster({name: FakeNode(name) for name in names})
    settings = settings_of(tmp_path, **fields)
    try:
        for fake in cluster.fakes.values():
            await fake.start()
        async with client() as nodes:
            reconciler = Reconciler(cluster, nodes)
            membership = Membership(cluster, for_nodes(settings), nodes, on_lost=reconciler.note_lost)
            reservations = Reservations(cluster, membership, settings)
            directory = Directory(cluster, membership, nodes)
            routes = ClusterRoutes(membership, directory, reservations, Router(nodes, membership), Metrics())
            keys = Keys.of(settings_of(tmp_path, api_key=TRAINER, agent_key="an-agents-key")) if key else None
            app = application(routes.table(), routes.elsewhere, max_body_bytes=1 << 20, keys=keys)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
            await membership.look()
            try:
                async with aiohttp.ClientSession(url) as http:
                    yield Front(cluster, membership, reservations, reconciler, http, nodes)
            finally:
                await runner.cleanup()
    finally:
        for fake in cluster.fakes.values():
            await fake.stop()
            fake.raylet.close()


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    """A front with two nodes."""
    async with fronting(tmp_path, "a", "b") as front:
        yield front


@asynccontextmanager
async def looking(front: Front) -> AsyncIterator[None]:
    """Let the front look at its nodes meanwhile, without a pause."""

    async def look() -> None:
        while True:
            await front.membership.look()
            await asyncio.sleep(0.01)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()


# --- Sessions find their nodes --------------------------------------------------------------------------------------------


async def test_sessions_are_placed_reserved_and_given_back(front: Front) -> None:
    assert (await front.create("s1"))[0] == 200
    assert (await front.create("s2"))[0] == 200
    assert {place.node for place in front.cluster.groups.values()} == {"a", "b"}
    assert front.cluster.bundles[0] == {"ors_sandbox": 1.0, "CPU": 0.5, "memory": float(1 << 30)}
    for sid in ("s1", "s2"):
        status, body = await front.post("/env/call", sid, {"name": "x", "input": {}})
        assert (status, body["node"]) == (200, front.cluster.groups[session_group(sid)].node)
        assert (await front.post("/delete", sid))[0] == 200
    assert front.cluster.groups == {}
    assert (await front.post("/delete", "never-was")) == (200, {"sid": "never-was"})


async def test_no_key_of_a_client_reaches_a_node_and_no_path_is_another_there(tmp_path: Path) -> None:
    async with fronting(tmp_path, "a", key=True) as front:
        headers = {"X-Session-ID": "s", "X-API-Key": TRAINER, "Cookie": "a=b", "X-Other": "x"}
        async with front.http.post("/create", json={"task_spec": {}}, headers=headers) as response:
            assert response.status == 200
        (asked,) = front.node("a").asked
        assert asked.headers.getall("X-API-Key") == [KEY]
        assert "Cookie" not in asked.headers and "X-Other" not in asked.headers
        agent = {"X-Session-ID": "s", "X-API-Key": "an-agents-key"}
        for path in ("/prompt/../tasks", "/env/prompt%2F..%2F..%2Ftasks", "/node/state", "/env/tools"):
            async with front.http.get(URL(path, encoded=True), headers=agent) as response:
                assert response.status in (403, 404), path
        assert [request.raw_path for request in front.node("a").asked] == ["/create"]


async def test_a_front_that_knows_nothing_finds_sessions_all_the_same(front: Front) -> None:
    front.node("b").sessions = ["here", "placed"]
    front.cluster.groups[session_group("placed")] = Placement("g", "b")
    for sid in ("placed", "here"):
        assert (await front.post("/ping", sid))[1]["node"] == "b"
    front.cluster.away = True
    front.node("a").sessions = ["while-ray-is-away"]
    assert (await front.post("/ping", "while-ray-is-away"))[1]["node"] == "a"
    assert (await front.post("/ping", "never-was"))[0] == 404


async def test_what_fails_to_be_made_gives_its_place_back(front: Front) -> None:
    async def refuse(_request: web.Request) -> web.Response:
        return web.json_response({"detail": "no", "reason": "setup_failed"}, status=422)

    for fake in front.cluster.fakes.values():
        fake.answer = refuse
    assert await front.create("s") == (422, {"detail": "no", "reason": "setup_failed"})
    assert front.cluster.groups == {}


async def test_an_id_is_free_again_whatever_a_look_has_seen_meanwhile(front: Front) -> None:
    async def refuse(request: web.Request) -> web.Response:
        sid = request.headers["X-Session-ID"]
        node = next(fake for fake in front.cluster.fakes.values() if request in fake.asked)
        node.sessions.append(sid)
        await front.membership.look()  # finds it while it is made
        assert front.membership.is_live(sid)
        node.sessions.remove(sid)
        return web.json_response({"detail": "no", "reason": "setup_failed"}, status=422)

    for fake in front.cluster.fakes.values():
        fake.answer = refuse
    assert (await front.create("s"))[0] == 422
    for fake in front.cluster.fakes.values():
        fake.answer = None
    assert (await front.create("s"))[0] == 200
    # A look that has begun before the end, and whose answer comes after it.
    (node,) = (fake for fake in front.cluster.fakes.values() if "s" in fake.sessions)
    node.hold = asyncio.Event()
    looking = asyncio.ensure_future(front.membership.look())
    await until(lambda: node.holds)
    assert (await front.post("/delete", "s"))[0] == 200
    node.hold.set()
    await looking
    assert not front.membership.is_live("s")
    assert (await front.create("s"))[0] == 200


async def test_an_id_that_is_in_use(front: Front) -> None:
    assert (await front.create("s"))[0] == 200
    assert (await front.create("s"))[1]["reason"] == "session_exists"
    front.cluster.groups[session_group("another-fronts")] = Placement("g", "a")
    assert (await front.create("another-fronts"))[1]["reason"] == "session_exists"
    assert front.cluster.groups[session_group("another-fronts")] == Placement("g", "a")
    # Over, but its place not given back yet.
    front.node("a").sessions.clear()
    front.node("b").sessions.clear()
    await front.membership.look()
    assert (await front.create("s"))[0] == 200


# --- Places -----------------------------------------------------------------------------------------------------------------


async def test_who_waits_is_counted_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations_module, "_AT_ONCE_S", 0.01)
    async with fronting(tmp_path, "a", queue_size=1, queue_timeout_s=0.3) as front:
        front.cluster.full = True
        first = asyncio.create_task(front.create("first"))
        await until(lambda: front.reservations.waiting == 1)
        status, body = await front.create("second")
        assert (status, body["reason"]) == (503, "capacity")
        status, body = await first
        assert (status, body["reason"]) == (503, "capacity")
        assert front.cluster.groups == {}
        assert front.reservations.waiting == 0


async def test_a_place_that_becomes_free_is_taken(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations_module, "_AT_ONCE_S", 0.01)
    front.cluster.full = True
    waiting = asyncio.create_task(front.create("s"))
    await until(lambda: front.reservations.waiting == 1)
    front.cluster.free("b")
    assert (await waiting)[1]["node"] == "b"


async def test_a_node_that_becomes_usable_is_chosen_by_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservations_module, "_AT_ONCE_S", 0.01)
    async with fronting(tmp_path, "a") as front:
        front.node("a").problem = "the engine doesn't answer"
        await front.membership.look()
        waiting = asyncio.create_task(front.create("s"))
        await until(lambda: front.reservations.waiting == 1)
        assert front.cluster.excluded[-1] == {"a"}
        front.node("a").problem = None
        await front.membership.look()
        assert (await waiting)[1]["node"] == "a"
        assert front.cluster.excluded[-1] == frozenset()


async def test_while_rays_head_is_away(front: Front) -> None:
    assert (await front.create("s"))[0] == 200
    front.cluster.away = True
    await front.membership.look()
    assert (await front.post("/ping", "s"))[0] == 200
    async with front.http.post("/create", json={"task_spec": {}}, headers={"X-Session-ID": "new"}) as response:
        assert (response.status, response.headers["X-Backend-State"]) == (503, "starting")
    async with front.http.get("/ready") as response:
        assert response.status == HeadAway.status
        assert "Ray" in (await response.json())["detail"]
    front.cluster.away = False
    await front.membership.look()
    assert (await front.create("new"))[0] == 200


# --- What goes away ---------------------------------------------------------------------------------------------------------


async def lose_by_ray(front: Front, name: str) -> None:
    front.cluster.dead.add(name)
    await front.membership.look()


async def lose_by_refusal(front: Front, name: str) -> None:
    front.node(name).die()
    await front.node(name).stop()
    await front.membership.look()


@pytest.mark.parametrize("lose", [lose_by_ray, lose_by_refusal])
async def test_a_lost_nodes_sessions_say_so_and_hold_nothing(front: Front, lose: Any) -> None:
    assert [(await front.create(sid))[0] for sid in ("s1", "s2")] == [200, 200]
    gone, stays = sorted(("s1", "s2"), key=lambda sid: front.cluster.groups[session_group(sid)].node != "a")
    await lose(front, "a")
    for path in ("/ping", "/env/call"):
        status, body = await front.post(path, gone, {"name": "x", "input": {}})
        assert (status, body["reason"]) == (410, "node_lost")
    assert (await front.post("/ping", stays))[0] == 200
    assert (await front.post("/delete", gone))[0] == 200
    await front.reconciler.give_back()
    assert list(front.cluster.groups) == [session_group(stays)]
    assert front.cluster.forgotten == ["a"]


async def test_a_node_that_was_taken_for_dead_and_is_not(front: Front) -> None:
    """It was not reached, and Ray never said that it is dead. What was said of its sessions stays true."""
    assert (await front.create("s"))[0] == 200
    name = str(front.cluster.groups[session_group("s")].node)
    port = front.node(name).info.port
    await lose_by_refusal(front, name)
    await front.membership.look()
    assert len(list(front.membership)) == 1
    assert front.membership.unusable_ids == {name}  # Ray would place sessions there still
    await front.reconciler.give_back()
    assert (await front.create("new"))[1]["node"] != name
    front.node(name).raylet = socket.create_server(("127.0.0.1", port))
    await front.node(name).start()
    async with looking(front):
        await until(lambda: len(front.membership.usable) == 2)
        assert (await front.post("/ping", "s"))[1]["reason"] == "node_lost"
        for _ in range(4):
            await front.reconciler.compare(front.membership, front.reservations)
    assert front.node(name).ended == ["s"]


async def test_a_stream_of_a_node_that_is_lost_ends_with_the_word_for_it(front: Front) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"event: task_id\r\ndata: t\r\n\r\n")
        await asyncio.Event().wait()
        return response

    await front.create("s")
    node = front.cluster.groups[session_group("s")].node
    assert node is not None
    front.node(node).answer = stream
    async with front.http.post("/env/call", json={"name": "x", "input": {}}, headers={"X-Session-ID": "s"}) as response:
        assert await response.content.readuntil(b"\r\n\r\n") == b"event: task_id\r\ndata: t\r\n\r\n"
        await lose_by_ray(front, node)
        assert b"event: error\r\ndata: node_lost: " in await response.read()


async def test_a_call_that_was_sent_is_not_sent_again(front: Front) -> None:
    """Its host goes away in the middle. The client is cut off, as by a host of its own that restarts, and comes back."""
    await front.create("s")
    node = front.node(str(front.cluster.groups[session_group("s")].node))

    async def break_off(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    node.answer = break_off
    with pytest.raises(aiohttp.ClientError):
        await _text(front, "s")
    assert [request.path for request in node.asked] == ["/create", "/env/call"]
    assert front.membership.owner("s") is not None


async def test_a_call_waits_for_a_host_that_is_started_again(front: Front) -> None:
    await front.create("s")
    node = front.node(str(front.cluster.groups[session_group("s")].node))
    await node.stop()
    async with looking(front):
        call = asyncio.create_task(front.post("/ping", "s"))
        await until(lambda: any(known.state == "preparing" for known in front.membership))
        await node.start()  # on another port
        assert (await call)[0] == 200
    assert len(node.asked) == 2


async def test_a_question_goes_to_the_next_node(front: Front) -> None:
    await front.node("a").stop()
    for _ in range(2):
        async with front.http.get("/env/tools") as response:
            assert (await response.json())["node"] == "b"


async def test_a_node_with_other_settings_or_another_version_gets_no_new_sessions(front: Front) -> None:
    """Those that it has are served."""
    assert (await front.create("s"))[0] == 200
    name = str(front.cluster.groups[session_group("s")].node)
    url = front.node(name).url
    for status, words in (
        (AgentStatus("ready", "", url, KEY, settings={**front.cluster.settings, "memory": 1}), "settings (memory)"),
        (
            AgentStatus("ready", "", url, KEY, settings=front.cluster.settings, version="0.0.1"),
            f"this is {__version__}",
        ),
    ):
        front.cluster.status = status
        for node in front.membership:
            node.url = None  # its host was started again
        await front.membership.look()
        assert front.membership.usable == []
        assert all(node.state == "failed" and words in node.words for node in front.membership)
        assert (await front.post("/ping", "s"))[0] == 200


# --- Putting together what fell apart ---------------------------------------------------------------------------------------


async def test_places_and_sessions_agree_again(front: Front) -> None:
    """A place whose front died before the session was made; a session whose place was given away. Neither at first sight."""
    front.cluster.groups[session_group("orphan")] = Placement("g", "a")
    await front.create("s")
    front.node("b").sessions = [*front.node("b").sessions, "stray"]
    async with looking(front):
        for _ in range(3):
            await front.reconciler.compare(front.membership, front.reservations)
        assert session_group("orphan") in front.cluster.groups
        assert front.node("b").ended == []
        await front.reconciler.compare(front.membership, front.reservations)
        await front.reconciler.compare(front.membership, front.reservations)
    assert list(front.cluster.groups) == [session_group("s")]
    assert set(front.node("b").ended) == {"stray"}


async def test_an_agent_gives_back_only_the_place_that_it_saw(tmp_path: Path) -> None:
    cluster = FakeCluster()
    settings = for_nodes(settings_of(tmp_path))
    agent = Agent(cluster, node="a", address="127.0.0.1", capacity=4, settings=settings)
    names = [session_group(sid) for sid in ("over", "again", "elsewhere")]
    cluster.groups = {names[0]: Placement("1", "a"), names[1]: Placement("2", "a"), names[2]: Placement("3", "b")}
    await agent.give_back({"over", "again", "elsewhere"}, set())
    await agent.give_back(set(), set())
    assert list(cluster.groups) == names
    cluster.groups[names[1]] = Placement("4", "a")  # the id is in use again
    await agent.give_back(set(), set())
    assert list(cluster.groups) == names[1:]


async def test_an_agent_waits_for_rays_head(tmp_path: Path) -> None:
    cluster = FakeCluster()
    agent = Agent(cluster, node="a", address="127.0.0.1", capacity=4, settings=for_nodes(settings_of(tmp_path)))
    cluster.groups = {session_group("s"): Placement("1", "a")}
    await agent.give_back({"s"}, set())
    cluster.away = True
    with pytest.raises(ClusterAway):
        await agent.give_back(set(), set())
    cluster.away = False
    for _ in range(2):
        await agent.give_back(set(), set())
    assert cluster.groups == {}


async def test_an_agent_gives_back_the_place_of_what_no_look_has_found(tmp_path: Path) -> None:
    cluster = FakeCluster()
    agent = Agent(cluster, node="a", address="127.0.0.1", capacity=4, settings=for_nodes(settings_of(tmp_path)))
    cluster.groups = {session_group("short"): Placement("1", "a")}
    await agent.give_back(set(), set())
    await agent.give_back(set(), {"short"})
    assert list(cluster.groups) == [session_group("short")]
    await agent.give_back(set(), {"short"})  # it is told for several looks
    assert cluster.groups == {}


# --- Settings, and a node's host --------------------------------------------------------------------------------------------


def test_nodes_are_told_no_key_and_may_differ_in_what_is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = for_nodes(settings_of(tmp_path, api_key=TRAINER, port=80, images={IMAGE: {"memory": "3GiB", "warm": 2}}))
    assert TRAINER not in str(told)
    monkeypatch.setenv("ORS_HOST_STATE_DIR", "/its/own")
    monkeypatch.setenv("ORS_HOST_API_KEY", "of-somebody-else")
    monkeypatch.setenv("ORS_HOST_MAX_SESSIONS", "1000")
    settings = on_node(told, {"api_key": "k", "max_sessions": 4})
    assert settings.state_dir == Path("/its/own")
    assert settings.api_key is not None and settings.api_key.get_secret_value() == "k"
    assert (settings.max_sessions, settings.port) == (4, 8080)
    assert settings.for_image(IMAGE).memory == 3 << 30
    assert (
        differences(told, for_nodes(settings_of(tmp_path, port=90, images={IMAGE: {"memory": "3GiB", "warm": 2}})))
        == []
    )
    assert differences(told, for_nodes(settings_of(tmp_path, memory="5GiB"))) == ["images", "memory"]


async def test_only_a_node_answers_a_front(serve: Serve) -> None:
    server = await serve()
    for path in ("/node/state", "/node/session"):
        async with server.client.get(path, allow_redirects=False) as response:
            assert response.status == 308  # as any path that no environment has


def test_without_ray_it_is_said_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; from host.cli import main; main()"
    for arguments in (["serve", "--engine", "ray", "--image", "x", "--state-dir", str(tmp_path)], ["nodes"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "pip install 'ors-host[ray]'" in done.stderr and "Traceback" not in done.stderr


class FakeRegistry:
    """An engine without the image, and the registry behind it."""

    def __init__(self, *events: Mapping[str, str]) -> None:
        self.events = events
        self.asked: list[tuple[str, str | None]] = []

    def __enter__(self) -> FakeRegistry:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def inspect_image(self, tag: str) -> None:
        raise docker_client.NotFound(f"no image {tag}")

    def inspect_distribution(self, tag: str) -> None: ...

    def pull(self, repository: str, *, tag: str | None, stream: bool, decode: bool) -> Any:
        self.asked.append((repository, tag))
        return iter(self.events)


@pytest.mark.parametrize(
    ("image", "asked"),
    [
        ("env", ("env", "latest")),
        ("hub:5000/team/env", ("hub:5000/team/env", "latest")),
        ("hub:5000/team/env:3", ("hub:5000/team/env", "3")),
        ("env@sha256:ab", ("env@sha256:ab", None)),
    ],
)
def test_an_image_that_a_node_has_not_is_pulled(
    monkeypatch: pytest.MonkeyPatch, image: str, asked: tuple[str, str | None]
) -> None:
    registry = FakeRegistry(
        {"status": "Pulling fs layer", "id": "1"},
        {"status": "Pulling fs layer", "id": "2"},
        {"status": "Pull complete"},
    )
    monkeypatch.setattr(docker_client, "connect", lambda **_: registry)
    said: list[str] = []
    get_images([image], said.append)
    assert registry.asked == [asked]
    assert said[-1] == f"pulling image {image}: 1 of 2 layers are here"


def test_an_image_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_client, "connect", lambda **_: FakeRegistry({"error": "denied"}))
    with pytest.raises(StartupError, match="^image_not_found: image 'env' is not on this node's engine.*denied"):
        get_images(["env"], lambda _words: None)


async def _text(front: Front, sid: str) -> str:
    body = {"name": "x", "input": {}}
    async with front.http.post("/env/call", json=body, headers={"X-Session-ID": sid}) as response:
        return (await response.read()).decode()
