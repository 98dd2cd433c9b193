"""Traces of a real host, as a collector gets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.docker.harness import running_host

TRACE, ABOVE = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SERVER, CLIENT = Span.SpanKind.SPAN_KIND_SERVER, Span.SpanKind.SPAN_KIND_CLIENT


class Collector:
    """What was received so far: spans, and everything as it came."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []
        self.raw = b""
        self._changed = asyncio.Condition()

    async def receive(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        body = await request.read()
        async with self._changed:
            self.raw += body
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append({each.key: each.value.string_value for each in group.resource.attributes})
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
            self._changed.notify_all()
        return web.Response(content_type="application/x-protobuf")

    async def wait(self, *names: str) -> dict[str, Span]:
        """Wait until there are spans of these names; return the last of each name."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: {*names} <= {span.name for span in self.spans})
        return {span.name: span for span in self.spans}


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield collector
    finally:
        await runner.cleanup()


def attributes(span: Span) -> dict[str, str | int]:
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


async def test_traces_of_a_session(probe_image: str) -> None:
    async with collecting() as collector:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        }
        host = await asyncio.to_thread((held := running_host(probe_image, env=env)).__enter__)
        try:
            async with host.client() as client:
                client.http.headers["traceparent"] = f"00-{TRACE}-{ABOVE}-01"
                session = await client.create({"n": 1, "hush": "hush-task"}, secrets={"KEY": "hush-secret"})
                assert (await session.call("bash", command="echo hush-output")).event == "end"
                assert (await session.call("fail", what="raise")).event == "error"
                await session.delete()
                async with client.http.get("/health") as response:
                    assert response.status == 200
            spans = await collector.wait("POST /create", "session.setup", "POST /{env}/call", "execute_tool fail")
        finally:
            await asyncio.to_thread(held.__exit__, None, None, None)

    create = spans["POST /create"]
    assert (create.trace_id.hex(), create.parent_span_id.hex(), create.kind) == (TRACE, ABOVE, SERVER)
    assert attributes(create) == {
        "http.request.method": "POST",
        "http.route": "/create",
        "http.response.status_code": 200,
        "session.id": session.sid,
        "url.scheme": "http",
    }
    children: dict[str, set[str]] = {}
    by_id = {span.span_id: span for span in collector.spans}
    for span in collector.spans:
        assert span.start_time_unix_nano <= span.end_time_unix_nano and span.trace_id.hex() == TRACE
        above = by_id[span.parent_span_id].name if span.parent_span_id in by_id else ""
        children.setdefault(above, set()).add(span.name)
    assert children[""] == {"POST /create", "POST /{env}/call", "POST /delete"}
    assert children["POST /create"] == {"session.create", "session.setup"}
    assert children["session.create"] == {
        "pool.take",
        "queue",
        "engine create",
        "engine start",
        "runtime.hello",
        "runtime create",
    }
    assert children["session.setup"] == {"runtime setup"}
    assert children["POST /{env}/call"] == {"execute_tool bash", "execute_tool fail"}
    assert children["execute_tool bash"] == {"runtime call"}
    assert spans["engine start"].kind == spans["runtime call"].kind == CLIENT
    assert attributes(spans["execute_tool bash"])["gen_ai.tool.name"] == "bash"
    failed = spans["execute_tool fail"]
    assert failed.status.code == failed.status.STATUS_CODE_ERROR and not failed.status.message
    assert {r["service.name"]: r["deployment.environment.name"] for r in collector.resources} == {"ors-host": "test"}
    assert b"hush" not in collector.raw


async def test_a_collector_that_is_not_there_hinders_nobody(probe_image: str) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    host = await asyncio.to_thread((held := running_host(probe_image, env=env)).__enter__)
    try:
        async with host.client() as client:
            session = await client.create()
            assert (await session.call("bash", command="true")).event == "end"
            await session.delete()
    finally:
        await asyncio.to_thread(held.__exit__, None, None, None)


@pytest.mark.parametrize("protocol", ["grpc", "http/json"])
def test_what_it_cannot_send_is_said(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    from structlog.testing import capture_logs

    from host import tracing

    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with capture_logs() as logs, tracing.running("server"):
        assert tracing.middleware() == [] and tracing.current() is None
        with tracing.span("x") as span:
            span.fail("y")
    assert [(line["event"], protocol in line["reason"]) for line in logs] == [("traces_not_sent", True)]
