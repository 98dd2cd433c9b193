"""The questions that need no session, and which environment a path means."""

from __future__ import annotations

from typing import Any

import pytest

from host.engine import Role
from sandbox_runtime.messages import Fault
from tests.host.fakes import TAG, FakeEngine, Faulty, Script
from tests.host.served import Serve, Server

OTHER = "other-env:1"


@pytest.fixture
async def two(serve: Serve, engine: FakeEngine) -> Server:
    """A host with three environments in two images: BashEnv (the default), MathEnv and Second."""
    engine.script.environments = ["BashEnv", "Second"]
    engine.add_image(OTHER, Script(environments=["MathEnv"]))
    return await serve((TAG, OTHER))


async def test_health_and_version(server: Server) -> None:
    assert await server.get("/health") == (200, {"status": "ok"})
    status, body = await server.get("/version")
    assert status == 200 and isinstance(body["version"], str)


async def test_list_environments(two: Server) -> None:
    assert await two.get("/list_environments") == (200, ["bashenv", "second", "mathenv"])


@pytest.mark.parametrize("path", ["/bashenv/tools", "/BashENV/tools", "/tools"])
async def test_tools_have_exactly_three_keys(server: Server, path: str) -> None:
    tool = {"name": "bash", "description": "run", "input_schema": {"type": "object"}}
    assert await server.get(path) == (200, {"tools": [tool]})


async def test_tool_without_parameters_keeps_its_null(serve: Serve, engine: FakeEngine) -> None:
    tool = {"name": "go", "description": "", "input_schema": None}
    engine.script.handlers["list_tools"] = {"tools": [tool]}
    assert await (await serve()).get("/tools") == (200, {"tools": [tool]})


async def test_splits(server: Server) -> None:
    expected = [{"name": "train", "type": "train"}, {"name": "test", "type": "test"}]
    assert await server.get("/bashenv/splits") == (200, expected)
    assert await server.get("/splits") == (200, expected)


@pytest.mark.parametrize(
    ("name", "body", "answer"),
    [
        ("tasks", {"split": "train"}, {"tasks": [{"id": 0}, {"id": 1}, {"id": 2}]}),
        ("task", {"split": "train", "index": 1}, {"task": {"id": 1}}),
        ("task", {"split": "train", "index": -1}, {"task": {"id": 2}}),
        ("get_task", {"split": "train", "index": 1}, {"task": {"id": 1}}),
        ("task_range", {"split": "train", "start": 1, "stop": 9}, {"tasks": [{"id": 1}, {"id": 2}]}),
        ("task_range", {"split": "train", "start": -2}, {"tasks": [{"id": 1}, {"id": 2}]}),
        ("get_task_range", {"split": "train", "stop": 1}, {"tasks": [{"id": 0}]}),
    ],
)
async def test_tasks_with_the_environment_as_the_path_has_it(
    server: Server, name: str, body: dict[str, Any], answer: dict[str, Any]
) -> None:
    assert await server.post(f"/BashEnv/{name}", json=body) == (200, {**answer, "env_name": "BashEnv"})
    assert await server.post(f"/{name}", json=body) == (200, {**answer, "env_name": "bashenv"})


async def test_num_tasks(server: Server) -> None:
    assert await server.post("/bashenv/num_tasks", json={"split": "test"}) == (200, {"num_tasks": 3})


async def test_session_id_means_nothing_here(server: Server) -> None:
    assert (await server.get("/tools", "no such session, and no valid id"))[0] == 200


@pytest.mark.parametrize("name", ["tasks", "num_tasks", "task", "task_range"])
async def test_invalid_split(server: Server, engine: FakeEngine, name: str) -> None:
    body: dict[str, Any] = {"split": "nosuch", **({"index": 0} if name == "task" else {})}
    assert await server.post(f"/{name}", json=body) == (400, {"detail": "Invalid split", "reason": "invalid_request"})
    assert name not in engine.of(Role.CATALOG)[0].runtime.received


LIST_TASKS = "list_tasks is not supported for this environment. Use the index-based API (num_tasks + get_task) instead."


@pytest.mark.parametrize(
    ("fault", "message", "status"),
    [
        (Fault.INVALID_INDEX, "Invalid index", 400),
        (Fault.INVALID_SPLIT, "Invalid split", 400),
        (Fault.NOT_SUPPORTED, LIST_TASKS, 400),
        (Fault.ENVIRONMENT_RAISED, "ValueError: no", 422),
        (Fault.BAD_RESULT, "get_task returned None", 422),
        (Fault.RESULT_TOO_LARGE, "too large", 422),
    ],
)
async def test_faults_by_whose_they_are(
    server: Server, engine: FakeEngine, fault: Fault, message: str, status: int
) -> None:
    def refuse(_runtime: object, _params: object) -> None:
        raise Faulty(fault, message)

    engine.script.handlers.update(list_tasks=refuse, get_task=refuse)
    got, body = await server.post("/tasks", json={"split": "train"})
    assert (got, body["detail"]) == (status, message)
    got, body = await server.post("/create", "s1", json={"split": "train", "index": 99})
    assert (got, body["detail"]) == (status, message)
    assert engine.of(Role.SESSION) == []


@pytest.mark.parametrize("answer", [None, 7, "x", [1], [None], {"id": 0}])
async def test_answer_of_a_wrong_shape(server: Server, engine: FakeEngine, answer: object) -> None:
    engine.script.handlers["list_tasks"] = answer
    status, body = await server.post("/tasks", json={"split": "train"})
    assert (status, body["reason"]) == (422, "environment_failed")
    assert "the answer to list_tasks is not valid" in body["detail"]


async def test_question_without_an_answer(serve: Serve, engine: FakeEngine) -> None:
    from tests.host.fakes import NO_ANSWER

    server = await serve(discovery_timeout_s=0.3)
    engine.script.handlers["list_tasks"] = NO_ANSWER
    status, body = await server.post("/tasks", json={"split": "train"})
    assert (status, body["detail"]) == (422, "list_tasks took longer than 0.3 s")


# --- Which environment ------------------------------------------------------------------------------------------------


async def created_environment(server: Server, path: str = "/create", **kwargs: Any) -> str:
    status, body = await server.post(path, "s1", **kwargs)
    assert status == 200, body
    name = str(server.container("s1").runtime.params["create"]["env"])
    await server.delete()
    return name


@pytest.mark.parametrize(
    ("deployment", "env_name", "expected"),
    [
        (None, None, "BashEnv"),
        (None, "mathenv", "MathEnv"),
        (None, "MATHENV", "MathEnv"),
        ("owner/MathEnv", None, "MathEnv"),
        ("mathenv", None, "MathEnv"),
        (" mathenv ", None, "MathEnv"),
        ("owner/second", "mathenv", "Second"),
        ("owner/nosuch", "mathenv", "MathEnv"),
        ("owner/nosuch", None, "BashEnv"),
        ("owner/", None, "BashEnv"),
        ("", "second", "Second"),
    ],
)
async def test_environment_of_create(two: Server, deployment: str | None, env_name: str | None, expected: str) -> None:
    headers = {} if deployment is None else {"X-Deployment": deployment}
    body: dict[str, Any] = {"task_spec": {}, "env_name": env_name}
    assert await created_environment(two, headers=headers, json=body) == expected


async def test_sessions_come_from_their_environments_image(two: Server) -> None:
    container = await two.create("m", task_spec={}, env_name="mathenv")
    assert container.spec.image.tag == OTHER


async def test_create_with_an_unknown_environment(two: Server) -> None:
    status, body = await two.post("/create", "s1", json={"task_spec": {}, "env_name": "nosuch"})
    assert (status, body["reason"]) == (404, "unknown_environment")
    assert body["detail"] == "unknown environment 'nosuch'; there are: bashenv, second, mathenv"


async def test_deployment_on_bare_discovery_paths(two: Server) -> None:
    body = {"split": "train", "index": 0}
    _status, answer = await two.post("/task", json=body, headers={"X-Deployment": "owner/MathEnv"})
    assert answer["env_name"] == "mathenv"
    _status, answer = await two.post("/second/task", json=body, headers={"X-Deployment": "owner/MathEnv"})
    assert answer["env_name"] == "second"


@pytest.mark.parametrize(
    ("method", "path", "location"),
    [
        ("GET", "/nosuch/tools", "/bashenv/nosuch/tools"),
        ("POST", "/nosuch/tasks?a=b%20c", "/bashenv/nosuch/tasks?a=b%20c"),
        ("GET", "/other", "/bashenv/other"),
        ("GET", "/", "/bashenv/"),
        ("GET", "/%0d%0aX:%20y", "/bashenv/%0D%0AX:%20y"),
    ],
)
async def test_unknown_first_segment_is_redirected_to_the_default(
    two: Server, method: str, path: str, location: str
) -> None:
    async with two.client.request(method, path, json={"split": "train"}, allow_redirects=False) as response:
        assert response.status == 308
        assert response.headers["Location"] == location


@pytest.mark.parametrize("path", ["/bashenv/nosuch", "/mathenv", "/MathEnv/x/y", "/bashenv/nosuch/tools"])
async def test_unknown_path_of_a_known_environment(two: Server, path: str) -> None:
    status, body = await two.get(path)
    assert (status, body["reason"]) == (404, "not_found")
    assert path in body["detail"]


async def test_wrong_method(server: Server) -> None:
    async with server.client.get("/create") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert (await response.json())["reason"] == "http_error"


@pytest.mark.parametrize("owner", ["owner", ""])
async def test_required_secrets(two: Server, owner: str) -> None:
    path = f"/v1/environments/{owner}/MathEnv/required-secrets"
    assert await two.get(path) == (200, {"secrets": []})
    assert (await two.get(f"/v1/environments/{owner}/nosuch/required-secrets"))[0] == 404


async def test_create_session_as_json(server: Server, engine: FakeEngine) -> None:
    first, second = [(await server.post("/create_session"))[1]["sid"] for _ in range(2)]
    assert first != second
    assert engine.of(Role.SESSION) == []


async def test_create_session_as_a_stream(server: Server) -> None:
    from ors.client._http import resumable_sse

    seen: list[tuple[str, str]] = []
    result = await resumable_sse(server.client, "/create_session", on_event=lambda *event: seen.append(event))
    assert result is None
    assert [name for name, _data in seen] == ["task_id", "end"]
    assert seen[1][1] == ""
    assert await server.post("/delete_session", seen[0][1]) == (200, {"sid": seen[0][1]})
