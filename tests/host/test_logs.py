"""What is in the host's log: whose line it is on every line, and nothing that is nobody's business, at level debug too."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from host import logs
from sandbox_runtime.messages import Fault
from tests.host.fakes import FakeEngine, ok, raising
from tests.host.served import Serve, secrets_header, until


class Written(io.StringIO):
    """What stands in place of stderr."""

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines, decoded."""
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """Log as ``--log-format json --log-level debug`` does."""
    root, stderr = logging.getLogger(), Written()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logs, "sys", SimpleNamespace(stderr=stderr))  # pytest gives the real one back after this
    level = root.level
    logs.configure(format="json", level="debug")
    yield stderr
    root.setLevel(level)
    structlog.reset_defaults()


async def test_whose_line_it_is_and_nothing_else(serve: Serve, engine: FakeEngine, written: Written) -> None:
    server = await serve()
    spec = {"task_spec": {"x": "hush-task"}, "secrets": {"BODY": "hush-body"}}
    header = secrets_header(HEADER="hush-header")
    engine.script.handlers["prompt"] = [{"type": "text", "text": "hush-prompt"}]
    engine.script.handlers["call"] = ok("hush-output")
    await server.post("/create", "s1", json=spec, headers=header)
    await server.get("/bashenv/prompt", "s1")
    await server.call("s1", tool_input={"x": "hush-input"}, task_id="c1")
    engine.script.handlers["call"] = raising(Fault.ENVIRONMENT_RAISED, "KeyError: hush-fault")
    await server.call("s1", tool_input={"x": "hush-input"}, task_id="c2")
    engine.script.handlers["call"] = {"ok": "hush-invalid"}
    await server.call("s1", task_id="c3")
    await until(lambda: len(server.sessions) == 0)
    for number, method in enumerate(("create", "setup", "teardown"), start=2):
        engine.script.handlers[method] = raising(Fault.ENVIRONMENT_RAISED, "KeyError: hush-fault")
        await server.post("/create", f"s{number}", json=spec, headers=header)
        await server.get("/bashenv/prompt", f"s{number}")
        await server.delete(f"s{number}")
        engine.script.handlers[method] = None
    await server.create("s5", **spec)
    await server.container("s5").die(1, log="hush-log")
    await until(lambda: len(server.sessions) == 0)

    words = "hush-crash"

    async def broken(name: str) -> None:
        raise KeyError(words)

    engine.hooks["create"] = broken
    assert (await server.post("/create?key=hush-query", "s6", json=spec, headers=header))[0] == 500
    del engine.hooks["create"]
    assert (await server.post("/create", "s7", json={"task_spec": "hush-type"}, headers=header))[0] in (400, 422)
    assert (await server.post("/create", "s7", data='{"hush-json', headers=header))[0] in (400, 422)

    lines = written.lines()
    assert "hush" not in json.dumps(lines)
    by_event: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_event.setdefault(line["event"], []).append(line)
    assert [line["session"] for line in by_event["session_ended"]] == ["s1", "s2", "s3", "s4", "s5", "s6"]
    assert [(line["session"], line["call"]) for line in by_event["call_failed"]] == [("s1", "c2")]
    assert [line["session"] for line in by_event["teardown_failed"]] == ["s4"]
    (crash,) = by_event["session_crashed"]
    assert crash["session"] == "s6" and "KeyError\n" in crash["exception"] and "in broken" in crash["exception"]
    calls = [line for line in by_event["request"] if line["path"] == "/bashenv/call"]
    assert [(line["method"], line["status"], line["session"]) for line in calls] == [("POST", 200, "s1")] * 3
    assert all(line["seconds"] >= 0 and line["client"] == "127.0.0.1" for line in by_event["request"])


async def test_requests_are_not_logged_at_the_usual_level(serve: Serve, written: Written) -> None:
    logs.configure(format="json", level="info")
    server = await serve()
    await server.create()
    await server.delete()
    assert {"session_created"} <= {line["event"] for line in written.lines()} and "request" not in written.getvalue()


def test_a_line_about_a_container_names_its_session(written: Written) -> None:
    log = structlog.get_logger()
    logs.belongs("ors-1", "s1")
    log.warning("disk_full", container="ors-1")
    logs.forget("ors-1")
    log.warning("disk_full", container="ors-1")
    assert [line.get("session") for line in written.lines()] == ["s1", None]


async def test_what_libraries_and_the_event_loop_say(written: Written) -> None:
    logging.getLogger("urllib3").warning("pool of %s is full", "x")
    logs.heed_loop(asyncio.get_running_loop())

    words = "hush-loop"

    async def fail() -> None:
        try:
            open("/nonexistent/place").close()  # noqa: ASYNC230
        except OSError as exc:
            raise ValueError(words) from exc

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    del task
    library, loop = written.lines()
    assert (library["event"], library["logger"], library["level"]) == ("pool of x is full", "urllib3", "warning")
    assert loop["event"] == "event_loop" and "never retrieved" in loop["what"]
    assert "FileNotFoundError: No such file" in loop["exception"] and loop["exception"].endswith("ValueError\n")
    assert "hush" not in json.dumps(loop)


@pytest.mark.parametrize("format_", ["human", "json"])
def test_control_characters_and_local_variables(written: Written, format_: Any) -> None:
    logs.configure(format=format_, level="info")
    secret = "-".join(("hush", "local"))
    try:
        raise ExceptionGroup(secret, [ValueError(secret)])
    except ExceptionGroup:
        structlog.get_logger().exception("it_failed", name="\x1b[2J")
    text = written.getvalue()
    assert "ValueError" in text and secret not in text
    assert "\x1b" not in text
