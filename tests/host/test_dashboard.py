"""What the dashboard's pages are told, who may ask, and what its files may do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import host.dashboard
from tests.host.served import Serve, Server

KEY, AGENT_KEY = "trainers-key", "agents-key"
REF = "0" * 16
QUESTIONS = [
    ("GET", "/ui/api/state"),
    ("GET", "/ui/api/sessions"),
    ("GET", f"/ui/api/sessions/{REF}"),
    ("GET", f"/ui/api/sessions/{REF}/steps/0"),
    ("DELETE", f"/ui/api/sessions/{REF}"),
]
FILES = sorted(path.name for path in (Path(host.dashboard.__file__).parent / "ui").iterdir())


@pytest.mark.parametrize(("method", "path"), QUESTIONS)
@pytest.mark.parametrize(("key", "status"), [(None, 401), ("wrong", 401), (AGENT_KEY, 403), (KEY, None)])
async def test_who_may_ask(serve: Serve, method: str, path: str, key: str | None, status: int | None) -> None:
    server = await serve(api_key=KEY, agent_key=AGENT_KEY)
    headers = {} if key is None else {"X-API-Key": key}
    got, _body = await server._json(method, path, None, headers=headers)
    assert got == (status or (404 if REF in path else 200))


async def test_files_are_open_and_confined(serve: Serve) -> None:
    server = await serve(api_key=KEY)
    assert "index.html" in FILES
    for name in FILES:
        async with server.client.get("/ui/" + ("" if name == "index.html" else name)) as response:
            assert response.status == 200
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            etag = response.headers["ETag"]
        async with server.client.get(response.url, headers={"If-None-Match": etag}) as response:
            assert response.status == 304


async def test_files_need_nothing_from_elsewhere() -> None:
    folder = Path(host.dashboard.__file__).parent / "ui"
    for name in FILES:
        text = (folder / name).read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        assert not any(word in text for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("))


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(("method", "path"), QUESTIONS)
async def test_another_sites_page_is_refused(server: Server, method: str, path: str, site: str) -> None:
    status, _body = await server._json(method, path, None, headers={"Sec-Fetch-Site": site})
    assert status == 403


@pytest.mark.parametrize(
    "path", ["/ui/..%2fapp.py", "/ui/%2e%2e/app.py", "/ui/api/sessions/../../etc", "/ui/api/sessions/x", "/ui/app.py"]
)
async def test_paths_lead_nowhere(server: Server, path: str) -> None:
    async with server.client.get(path, allow_redirects=False) as response:
        assert response.status in (308, 404)


@pytest.mark.parametrize(
    "query", ["sort=sid", "limit=0", "limit=501", "offset=-1", "which=all", "x=1", "text=" + "x" * 201]
)
async def test_what_is_no_question(server: Server, query: str) -> None:
    assert (await server.get(f"/ui/api/sessions?{query}"))[0] == 400


async def test_sessions_are_found_sorted_and_ended(server: Server) -> None:
    for number in range(5):
        await server.create(f"s{number}", task_spec={"id": f"task-{number}"})
    _status, page = await server.get("/ui/api/sessions?text=task-3")
    assert (page["total"], page["matching"], page["rows"][0]["sid"]) == (5, 1, "s3")
    _status, page = await server.get("/ui/api/sessions?sort=task&descending=true&limit=2&offset=1")
    assert [row["sid"] for row in page["rows"]] == ["s3", "s2"]
    ref = page["rows"][0]["ref"]
    assert (await server._json("DELETE", f"/ui/api/sessions/{ref}", None))[0] == 202
    status, body = await server.post("/ping", "s3")
    assert (status, body["reason"]) == (410, "deleted")
    await server.delete("s3")
    _status, page = await server.get("/ui/api/sessions?which=ended")
    assert [(row["sid"], row["reason"]) for row in page["rows"]] == [("s3", "deleted")]
    _status, state = await server.get("/ui/api/state")
    assert (state["reasons"], state["places"]["free"]) == ({"deleted": 1}, 60)


async def test_pieces_are_what_was_said(serve: Serve) -> None:
    server = await serve(record="memory")
    await server.create()
    await server.call(tool_input={"command": "</script>"})
    server.overview.recorder.drain()
    (session,) = server.sessions
    call = next(step for step in session.timeline.steps if step.kind == "call")
    _status, said = await server.get(f"/ui/api/sessions/{session.timeline.ref}/steps/{call.number}")
    assert (said["input"], said["left_out"]) == ({"command": "</script>"}, {})
    assert json.dumps(said["output"]).count("done") == 1
