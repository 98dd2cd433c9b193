"""What Prometheus is told: true, in its own form, and nothing of anybody's."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from host.metrics import Metrics
from tests.host.fakes import TAG, FakeEngine, Gate, ok
from tests.host.served import Serve, Server, until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(server: Server, *, openmetrics: bool = False) -> Samples:
    """Ask as Prometheus does; return the samples by name and labels."""
    accept = "application/openmetrics-text;version=1.0.0" if openmetrics else "text/plain;version=0.0.4"
    async with server.client.get("/metrics", headers={"Accept": accept}) as response:
        assert response.status == 200
        assert response.content_type == accept.partition(";")[0]
        text = await response.text()
    families = list(parse_openmetrics(text) if openmetrics else parse_text(text))  # type: ignore[no-untyped-call]
    assert all(family.documentation for family in families)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


@pytest.mark.parametrize("openmetrics", [True, False])
async def test_a_session_is_counted(serve: Serve, engine: FakeEngine, openmetrics: bool) -> None:
    server = await serve(warm=1, warm_max=1, max_sessions=5)
    await until(lambda: server.pool.waiting == 1)
    await server.create("s1")
    await server.create("s2", task_spec={"secret": "hunter2"})
    await server.call("s1")
    engine.script.handlers["call"] = gate = Gate(ok())
    _, running = await server.begin_call("s2")
    during = await scrape(server, openmetrics=openmetrics)
    assert value(during, "ors_host_sessions", state="ready") == 2
    assert value(during, "ors_host_sessions", state="closing") == 0
    assert value(during, "ors_host_sessions_limit") == 5
    assert value(during, "ors_host_engine_up") == 1
    gate.opened.set()
    await running
    await server.delete("s1")
    after = await scrape(server, openmetrics=openmetrics)
    assert value(after, "ors_host_sessions", state="ready") == 1
    created = {labels: n for (name, labels), n in after.items() if name == "ors_host_session_creation_seconds_count"}
    assert sum(created.values()) == 2
    assert created[frozenset({("environment", "BashEnv"), ("start", "warm")})] >= 1
    assert value(after, "ors_host_call_seconds_count", environment="BashEnv", outcome="end") == 2
    assert value(after, "ors_host_sessions_ended_total", reason="deleted") == 1
    assert value(after, "ors_host_kept_result_bytes") > 0
    assert ("ors_host_warm_containers", frozenset({("image", TAG)})) in after


async def test_nothing_of_a_session_is_told(server: Server) -> None:
    await server.create("very-secret-id", task_spec={"answer": "hunter2"}, secrets={"TOKEN": "hunter3"})
    await server.call("very-secret-id", tool_input={"command": "hunter4"})
    async with server.client.get("/metrics") as response:
        text = await response.text()
    assert not [
        word for word in ("very-secret-id", "hunter", "TOKEN", "call_") if word in text.replace("ors_host_call_", "")
    ]


async def test_the_key_is_needed(serve: Serve) -> None:
    server = await serve(api_key="trainer", agent_key="agent")
    assert (await server.get("/metrics"))[0] == 401
    assert (await server.get("/metrics", headers={"X-API-Key": "agent"}))[0] == 403
    async with server.client.get("/metrics", headers={"Authorization": "Bearer trainer"}) as response:
        assert response.status == 200


def test_requests_to_the_engine() -> None:
    metrics = Metrics()
    metrics.engine_asked("create", "ok", 0.2)
    metrics.engine_asked("create", "silent", 30)
    text = metrics.expose("")[0].decode()
    assert 'ors_host_engine_request_seconds_count{outcome="ok",request="create"} 1.0' in text
    assert 'ors_host_engine_request_seconds_bucket{le="0.1",outcome="ok",request="create"} 0.0' in text
    assert 'ors_host_engine_request_seconds_count{outcome="silent",request="create"} 1.0' in text
