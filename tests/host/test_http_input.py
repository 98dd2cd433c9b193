"""What a client may send wrong, and the sentence it gets for it. Nothing is started for any of it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from host.engine import Role
from tests.host.fakes import FakeEngine
from tests.host.served import Serve, Server, secrets_header

GOOD_CREATE: dict[str, Any] = {"task_spec": {"id": 0}}
SESSION_ROUTES = [
    ("POST", "/create"),
    ("POST", "/delete"),
    ("POST", "/delete_session"),
    ("POST", "/ping"),
    ("GET", "/bashenv/prompt"),
    ("GET", "/prompt"),
    ("GET", "/bashenv/task_tools"),
    ("POST", "/bashenv/call"),
]


@pytest.mark.parametrize(("method", "path"), SESSION_ROUTES)
@pytest.mark.parametrize("headers", [{}, {"X-Session-ID": ""}, {"X-Session-ID": "   "}])
async def test_session_id_is_required(server: Server, method: str, path: str, headers: dict[str, str]) -> None:
    async with server.client.request(method, path, headers=headers, json=GOOD_CREATE) as response:
        assert response.status == 400
        assert await response.json() == {"detail": "X-Session-ID header is required", "reason": "invalid_request"}


@pytest.mark.parametrize("sid", ["x" * 129, "a b", "a\tb", "é"])
@pytest.mark.parametrize(("method", "path"), SESSION_ROUTES)
async def test_session_id_has_a_form(server: Server, method: str, path: str, sid: str) -> None:
    status, body = await (server.get if method == "GET" else server.post)(path, sid)
    assert status == 400
    assert body["detail"] == "X-Session-ID must be 1 to 128 visible ASCII characters"


async def test_session_id_at_its_limits(server: Server) -> None:
    for sid in ("~", "x" * 128, "!#$%&'*+-.^_`|~\"(),/:;<=>?@[]{}\\"):
        await server.create(sid)
        await server.delete(sid)


async def test_session_id_is_stripped(server: Server) -> None:
    status, body = await server.post("/create", "  s1\t", json=GOOD_CREATE)
    assert (status, body) == (200, {"sid": "s1"})
    assert await server.post("/ping", "s1") == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("raw", "detail"),
    [
        (b"", "the body is not valid JSON"),
        (b"{", "the body is not valid JSON"),
        (b"\xff\xfe", "the body is not valid JSON"),
        (b'{"task_spec": {"x": NaN}}', "the body is not valid JSON"),
        (b'{"task_spec": {"x": "\\ud800"}}', "the body is not valid JSON"),
        (b"[" * 100_000, "the body is not valid JSON"),
        (b"[]", "the body must be a JSON object, not an array"),
        (b'"text"', "the body must be a JSON object, not a string"),
        (b"1.5", "the body must be a JSON object, not a number"),
        (b"true", "the body must be a JSON object, not a boolean"),
        (b"null", "the body must be a JSON object, not null"),
    ],
)
@pytest.mark.parametrize("path", ["/create", "/bashenv/call", "/bashenv/task"])
async def test_body_that_is_no_object(server: Server, path: str, raw: bytes, detail: str) -> None:
    status, body = await server.post(path, "s1", data=raw)
    assert (status, body["reason"]) == (400, "invalid_request")
    assert body["detail"].startswith(detail)


ONE_SOURCE = "give either 'task_spec' or both 'split' and 'index', not both and not neither"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, ONE_SOURCE),
        ({"task_spec": {}, "split": "train", "index": 0}, ONE_SOURCE),
        ({"split": "train"}, "'split' and 'index' must be given together"),
        ({"index": 0}, "'split' and 'index' must be given together"),
        ({"task_spec": [], "env_name": "bashenv"}, "task_spec: Input should be a valid dictionary"),
        ({"task_spec": {}, "extra": 1}, "extra: Extra inputs are not permitted"),
        ({"split": "train", "index": "x"}, "index: Input should be a valid integer"),
        ({"split": 3, "index": 0}, "split: Input should be a valid string"),
        ({"split": "nosuch", "index": 0}, "Invalid split"),
        ({"task_spec": {}, "secrets": {"KEY": 5}}, "secrets.KEY: Input should be a valid string"),
        ({"task_spec": {}, "secrets": "x"}, "secrets: Input should be a valid dictionary"),
        ({"task_spec": {}, "toolset_name": 1}, "toolset_name: Input should be a valid string"),
    ],
)
async def test_create_that_makes_no_sense(
    server: Server, engine: FakeEngine, body: dict[str, Any], detail: str
) -> None:
    status, answer = await server.post("/create", "s1", json=body)
    assert (status, answer["reason"]) == (400, "invalid_request")
    assert detail in answer["detail"]
    assert engine.of(Role.SESSION) == []
    assert (await server.post("/ping", "s1"))[0] == 404


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, "name: Field required; input: Field required"),
        ({"name": "bash", "input": "ls"}, "input: Input should be a valid dictionary"),
        ({"name": "bash", "input": {}, "extra": 1}, "extra: Extra inputs are not permitted"),
        ({"name": "bash", "input": {}, "task_id": ""}, "task_id must be 1 to 128 visible ASCII characters"),
        ({"name": "bash", "input": {}, "task_id": "a\r\nevent: end"}, "task_id must be 1 to 128 visible ASCII"),
        ({"name": "bash", "input": {}, "task_id": "x" * 129}, "task_id must be 1 to 128 visible ASCII characters"),
        ({"name": "bash", "input": {}, "task_id": 7}, "task_id: Input should be a valid string"),
    ],
)
async def test_call_that_makes_no_sense(server: Server, body: dict[str, Any], detail: str) -> None:
    container = await server.create()
    status, answer = await server.post("/bashenv/call", "s1", json=body)
    assert (status, answer["reason"]) == (400, "invalid_request")
    assert detail in answer["detail"]
    assert "call" not in container.runtime.received


async def test_input_is_not_echoed(server: Server) -> None:
    for body in ({"secrets": {"K": ["hush-hush"]}, "task_spec": {}}, {"task_spec": "hush-hush"}):
        _status, answer = await server.post("/create", "s1", json=body)
        assert "hush-hush" not in json.dumps(answer)
    _status, answer = await server.post("/create", "s1", data=b'{"secrets": {"K": "hush-hush')
    assert "hush-hush" not in json.dumps(answer)


# --- Size -------------------------------------------------------------------------------------------------------------


async def test_body_over_the_limit(serve: Serve) -> None:
    server = await serve(max_body=1000)
    status, body = await server.post("/create", "s1", json={"task_spec": {"x": "y" * 1000}})
    assert (status, body["reason"]) == (413, "body_too_large")
    assert "1000" in body["detail"]
    await server.create(task_spec={"x": "y" * 900})


async def test_body_over_the_limit_without_a_length(serve: Serve) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * 100

    server = await serve(max_body=1000)
    assert (await server.post("/create", "s1", data=pieces()))[0] == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP", "identity, gzip"])
async def test_a_body_that_is_packed_is_refused_unopened(serve: Serve, encoding: str) -> None:
    server = await serve(max_body=1000)
    status, body = await server.post("/create", "s1", data=b"\0" * 100, headers={"Content-Encoding": encoding})
    assert (status, body["reason"]) == (415, "unsupported_encoding")


async def test_a_body_of_too_many_values_is_refused_unparsed(server: Server) -> None:
    raw = b'{"task_spec": {"a": [' + b"[]," * 200_000 + b"0]}}"
    status, body = await server.post("/create", "s1", data=raw)
    assert status == 400 and "100000 values" in body["detail"]


async def test_punctuation_in_a_text_is_not_taken_for_values(server: Server) -> None:
    await server.create(task_spec={"text": '[{",\\":' * 100_000})
    await server.delete()


async def test_two_session_ids_are_refused(server: Server) -> None:
    headers = [("X-Session-ID", "s1"), ("X-Session-ID", "s2")]
    async with server.client.post("/ping", headers=headers) as response:
        assert response.status == 400 and "more than once" in (await response.json())["detail"]


async def test_a_body_that_does_not_come_is_not_waited_for(serve: Serve) -> None:
    server = await serve(body_timeout_s=0.05)

    async def slowly() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    async with server.client.post("/create", data=slowly(), headers={"X-Session-ID": "s1"}) as response:
        assert response.status == 408 and (await response.json())["reason"] == "body_timeout"


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /create HTTP/1.1\r\nHost: x\r\nX-Session-ID: s1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /create HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
        b"POST /create HTTP/1.1\r\nHost: x\r\nX-Session-ID: s1\r\nContent-Length: 100\r\n\r\n{",
    ],
)
async def test_what_is_no_http_harms_nothing(server: Server, raw: bytes) -> None:
    url = server.client._base_url
    assert url is not None and url.port is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(raw)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert answer == b"" or answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400")), answer
    assert await server.get("/health") == (200, {"status": "ok"})


# --- Secrets ----------------------------------------------------------------------------------------------------------


async def test_secrets_of_header_and_body_are_merged(server: Server) -> None:
    body = {"task_spec": {}, "secrets": {"A": "body", "B": "body"}}
    headers = secrets_header(B="header", C="header", api_key="")
    assert (await server.post("/create", "s1", json=body, headers=headers))[0] == 200
    got = server.container("s1").runtime.params["create"]["secrets"]
    assert got == {"A": "body", "B": "header", "C": "header", "api_key": ""}


@pytest.mark.parametrize(
    "value",
    [
        "***",
        base64.b64encode(b"not json").decode(),
        base64.b64encode(b"[]").decode(),
        base64.b64encode(b'{"A": "hush-hush"}').decode(),
        base64.b64encode(b'{"A": {"value": 7}}').decode(),
        base64.b64encode(b'{"A": {}}').decode(),
        base64.b64encode(b'{"A": {"value": "\\ud800"}}').decode(),
        base64.b64encode(b"\xff").decode(),
    ],
)
async def test_secrets_header_that_is_malformed(server: Server, value: str) -> None:
    status, body = await server.post("/create", "s1", json=GOOD_CREATE, headers={"X-Secrets": value})
    assert (status, body["reason"]) == (400, "invalid_request")
    assert body["detail"] == 'X-Secrets must be base64 of a JSON object {"NAME": {"value": "…"}}'


async def test_secrets_as_large_as_key_files(server: Server) -> None:
    headers = secrets_header(ACCOUNT=f"{{{'k' * 20_000}}}")
    status, body = await server.post("/create", "s1", json=GOOD_CREATE, headers=headers)
    assert status == 200, body


async def test_secrets_too_large_are_refused_and_not_logged(
    server: Server, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    headers = secrets_header(KEY="hush" * 20_000)
    async with server.client.post("/create", headers={**headers, "X-Session-ID": "s1"}, json=GOOD_CREATE) as response:
        assert response.status == 400
    printed = capfd.readouterr()
    assert headers["X-Secrets"][:20] not in caplog.text + printed.out + printed.err


async def test_no_secrets(server: Server) -> None:
    container = await server.create()
    assert container.runtime.params["create"]["secrets"] == {}
