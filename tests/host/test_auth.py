"""Who may ask for what: keys, roles, and not being open by oversight."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from host.auth import Keys, Role, check_exposure
from host.errors import StartupError
from host.settings import Settings
from host.state import StateDir
from tests.host.served import Serve, Server

TRAINER = "trainers-key"
AGENT = "agents-key"
NAMES = {"X-API-Key": "{}", "Authorization": "Bearer {}"}

ROUTES = [
    ("GET", "/list_environments"),
    ("GET", "/version"),
    ("GET", "/tools"),
    ("GET", "/bashenv/tools"),
    ("GET", "/bashenv/splits"),
    ("POST", "/bashenv/tasks"),
    ("POST", "/tasks"),
    ("POST", "/bashenv/num_tasks"),
    ("POST", "/bashenv/task"),
    ("POST", "/bashenv/get_task"),
    ("POST", "/bashenv/task_range"),
    ("POST", "/create_session"),
    ("POST", "/create"),
    ("POST", "/delete"),
    ("POST", "/delete_session"),
    ("GET", "/v1/environments/a/b/required-secrets"),
    ("GET", "/no-such-thing/at/all"),
    ("GET", "/bashenv/nothing"),
]
SPELLINGS = [
    "/bashenv/prompt/../tasks",
    "/bashenv%2Ftasks",
    "/bashenv/%74asks",
    "//bashenv/tasks",
    "/bashenv/tasks/",
    "/prompt%2F..%2Ftasks",
    "/tasks?x=/prompt",
    "/tasks#/prompt",
    "/BASHENV/tasks",
]


def settings(tmp_path: Path, **fields: Any) -> Settings:
    return Settings(image=("x",), state_dir=tmp_path, **fields)


@pytest.fixture
async def server(serve: Serve) -> Server:
    return await serve(api_key=TRAINER, agent_key=AGENT)


def headers(key: str, name: str = "X-API-Key") -> dict[str, str]:
    return {name: NAMES[name].format(key)}


async def test_health_is_open(server: Server) -> None:
    assert (await server.get("/health"))[0] == 200


@pytest.mark.parametrize(("method", "path"), [*ROUTES, ("GET", "/bashenv/prompt"), ("POST", "/bashenv/call")])
@pytest.mark.parametrize("sent", [{}, headers("wrong"), headers(""), {"Authorization": f"Basic {TRAINER}"}])
async def test_nothing_else_is_without_a_key(server: Server, method: str, path: str, sent: dict[str, str]) -> None:
    async with server.client.request(method, path, headers={**sent, "X-Session-ID": "s"}, json={}) as response:
        body = await response.json()
        assert (response.status, body["reason"]) == (401, "unauthorized")
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert "key" in body["detail"] and TRAINER not in body["detail"]


@pytest.mark.parametrize("name", NAMES)
async def test_the_trainer_may_do_everything(server: Server, name: str) -> None:
    key = headers(TRAINER, name)
    assert (await server.get("/list_environments", headers=key))[0] == 200
    assert (await server.post("/create", "s", json={"task_spec": {}}, headers=key))[0] == 200
    assert (await server.get("/bashenv/prompt", "s", headers=key))[0] == 200
    assert (await server.post("/delete", "s", headers=key))[0] == 200


@pytest.mark.parametrize("name", NAMES)
async def test_the_agent_may_play_a_session_that_it_was_told_of(server: Server, name: str) -> None:
    assert (await server.post("/create", "s", json={"task_spec": {}}, headers=headers(TRAINER)))[0] == 200
    key = headers(AGENT, name)
    assert (await server.get("/bashenv/prompt", "s", headers=key))[0] == 200
    assert (await server.get("/task_tools", "s", headers=key))[0] == 200
    assert (await server.post("/ping", "s", headers=key))[0] == 200
    call: Any = {"json": {"name": "bash", "input": {}}, "headers": {**key, "X-Session-ID": "s"}}
    async with server.client.post("/bashenv/call", **call) as response:
        assert response.status == 200 and b"event: end" in await response.read()
    assert (await server.post("/delete", "s", headers=headers(TRAINER)))[0] == 200


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_the_agent_may_do_nothing_else(server: Server, method: str, path: str) -> None:
    async with server.client.request(
        method, path, headers={**headers(AGENT), "X-Session-ID": "s"}, json={"split": "train"}, allow_redirects=False
    ) as response:
        assert (response.status, (await response.json())["reason"]) == (403, "forbidden")


@pytest.mark.parametrize("path", SPELLINGS)
async def test_no_spelling_of_a_path_gets_the_agent_to_the_tasks(server: Server, path: str) -> None:
    from yarl import URL

    url = URL(str(server.client._base_url).rstrip("/") + path, encoded=True)
    async with server.client.post(
        url, headers=headers(AGENT), json={"split": "train"}, allow_redirects=False
    ) as response:
        assert response.status in (403, 404), await response.text()


async def test_a_second_key_lends_nothing_to_the_first(server: Server) -> None:
    """A proxy that adds its own key to whatever it is sent must not make an agent of the wrong side a trainer."""
    both = [("X-API-Key", AGENT), ("Authorization", f"Bearer {TRAINER}")]
    async with server.client.get("/list_environments", headers=both) as response:
        assert response.status == 401


class TestKeys:
    def test_roles(self, tmp_path: Path) -> None:
        keys = Keys.of(settings(tmp_path, api_key=TRAINER, agent_key=AGENT))
        assert keys.needed
        assert [keys.role(key) for key in (TRAINER, AGENT, "", TRAINER + "x")] == [Role.TRAINER, Role.AGENT, None, None]

    def test_from_files(self, tmp_path: Path) -> None:
        (tmp_path / "key").write_text(f"{TRAINER}\n")
        keys = Keys.of(settings(tmp_path, api_key_file=tmp_path / "key"))
        assert keys.role(TRAINER) is Role.TRAINER

    def test_none(self, tmp_path: Path) -> None:
        assert not Keys.of(settings(tmp_path)).needed

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"agent_key": AGENT}, "--api-key"),
            ({"api_key": "same", "agent_key": "same"}, "same"),
            ({"api_key": ""}, "one word"),
            ({"api_key": "two words"}, "one word"),
            ({"api_key": "schlüssel"}, "one word"),
            ({"api_key_file": "/nonexistent"}, "/nonexistent"),
            ({"api_key": "a", "api_key_file": "/nonexistent"}, "not both"),
        ],
    )
    def test_what_is_refused(self, tmp_path: Path, fields: dict[str, Any], words: str) -> None:
        with pytest.raises(StartupError, match=words) as caught:
            Keys.of(settings(tmp_path, **fields))
        assert AGENT not in str(caught.value)

    def test_they_are_not_shown(self, tmp_path: Path) -> None:
        made = settings(tmp_path, api_key=TRAINER, agent_key=AGENT)
        for shown in (repr(made), str(made), repr(Keys.of(made)), made.model_dump_json()):
            assert TRAINER not in shown and AGENT not in shown


class TestExposure:
    @pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.1", "::", "fe80::1%eth0"])
    def test_other_machines_without_a_key(self, tmp_path: Path, address: str) -> None:
        made = settings(tmp_path, host=address)
        with pytest.raises(StartupError, match="--allow-unauthenticated"):
            check_exposure(Keys(), made, address)
        check_exposure(Keys.of(settings(tmp_path, api_key="k")), made, address)
        check_exposure(Keys(), settings(tmp_path, host=address, allow_unauthenticated=True), address)

    @pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1"])
    def test_this_machine(self, tmp_path: Path, address: str) -> None:
        check_exposure(Keys(), settings(tmp_path, host=address), address)


async def test_connections_over_the_limit_are_closed(serve: Serve) -> None:
    server = await serve(max_connections=3)
    host, port = server.client._base_url.host, server.client._base_url.port  # type: ignore[union-attr]
    assert await asyncio.to_thread(_count_closed, host, port, 10) == 7


def _count_closed(host: str | None, port: int | None, opened: int) -> int:
    idle = [socket.create_connection((host, port)) for _ in range(opened)]
    try:
        return sum(_is_closed(sock) for sock in idle)
    finally:
        for sock in idle:
            sock.close()


def _is_closed(sock: socket.socket) -> bool:
    sock.settimeout(0.3)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("rebound.evil.example:8080", 403),
        ("rebound.evil.example.", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("[evil", 403),
        ("localhost:8080", 200),
        ("sub.localhost", 200),
        ("machine", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
    ],
)
async def test_a_web_page_cannot_get_in_by_a_name_of_its_own(serve: Serve, name: str, status: int) -> None:
    """An attack: a name that leads to 127.0.0.1, from a page that somebody on this machine looks at (DNS rebinding)."""
    open_to_all = await serve()
    async with open_to_all.client.get("/list_environments", headers={"Host": name}) as response:
        assert response.status == status
    async with open_to_all.client.get("/health", headers={"Host": name}) as response:
        assert response.status == 200


async def test_with_a_key_any_name_will_do(server: Server) -> None:
    async with server.client.get(
        "/list_environments", headers={**headers(TRAINER), "Host": "ors.example.com"}
    ) as response:
        assert response.status == 200


def test_the_operators_key_opens_all_and_needs_no_other() -> None:
    keys = Keys.of(Settings(api_key=SecretStr("t"), agent_key=SecretStr("a"))).with_operator("o")
    assert [keys.role(key) for key in ("t", "o", "a", "x")] == [Role.TRAINER, Role.TRAINER, Role.AGENT, None]
    assert not Keys().with_operator("o").needed


def test_the_operators_key_is_no_sandboxs_token(tmp_path: Path) -> None:
    """An attack: a container sends its token, which is made from the same secret, as a key to the API."""
    with closing(StateDir.open(tmp_path / "s")) as state:
        keys = Keys.of(Settings(api_key=SecretStr("t"))).with_operator(state.operator_key)
        assert keys.role(state.operator_key) is Role.TRAINER
        assert keys.role(state.token(state.new_sandbox_id())) is None
