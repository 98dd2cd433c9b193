"""Traces, by OpenTelemetry, where its standard variables ask for them; else nothing is imported, and a span is nothing.

A trace begins with a client's request, or goes on from the client's ``traceparent``. What is done for nobody in particular
(containers started beforehand, sweeping) is in no trace. Attributes are ids and words, never an input, an output, a task or an
error's text.

    POST /create       session.create: queue, engine create, engine start, runtime.hello, runtime create; session.setup
    POST /{env}/call   execute_tool NAME: runtime call
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from host import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

    Trace = Context

log = structlog.get_logger()

Kind = Literal["internal", "client", "server"]

_UNTRACED = frozenset({"health", "ready", "metrics"})
"""Asked every few seconds by those who watch."""

_FLUSH_MS = 2000
"""For what is left to be sent when the host stops."""

_tracer: Tracer | None = None


class Span:
    """A step of a trace, for the length of a ``with`` block; this one is nothing."""

    def set(self, **attributes: str | int | float | bool) -> None:
        """Add attributes; two underscores in a name are a dot."""

    def fail(self, reason: str) -> None:
        """Let it count as failed, for a reason in one word."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        return None


_NOTHING = Span()


def wanted() -> bool:
    """Tell whether the environment asks for traces."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip()
    if exporter:
        return exporter != "none"
    return bool(os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"))


@contextmanager
def running(server_id: str) -> Iterator[None]:
    """Send traces for the length of the block, if the environment asks for it and the extra ``otel`` is installed."""
    global _tracer
    if not wanted():
        yield
        return
    if (problem := _problem()) is not None:
        log.warning("traces_not_sent", reason=problem)
        yield
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    about = {"service.name": "ors-host", "service.version": __version__, "service.instance.id": server_id}
    resource = Resource.create(about).merge(OTELResourceDetector().detect())  # what the variables say counts more
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    processor = BatchSpanProcessor(OTLPSpanExporter())
    provider.add_span_processor(processor)
    _tracer = provider.get_tracer("ors-host", __version__)
    log.info("traces", exporter="otlp", protocol="http/protobuf")
    try:
        yield
    finally:
        _tracer = None
        # Its thread is left behind if the collector hangs: it is a daemon, and holds nothing.
        processor.force_flush(_FLUSH_MS)


def span(name: str, kind: Kind = "internal", *, within: Context | None = None, **attributes: str | int) -> Span:
    """Return a step of the trace that is current, or of ``within``; nothing where there is none.

    Two underscores in an attribute's name are a dot. An error that leaves the block is told by its type or reason.
    """
    if _tracer is None:
        return _NOTHING
    from opentelemetry import trace

    if not trace.get_current_span(within).get_span_context().is_valid:
        return _NOTHING
    return _Recorded(_tracer, name, kind, within, {key.replace("__", "."): value for key, value in attributes.items()})


def current() -> Context | None:
    """Return what a span can later be ``within``, from another task."""
    if _tracer is None:
        return None
    from opentelemetry import context

    return context.get_current()


def leave() -> None:
    """Have the current task, and those that it starts, in no trace: it goes on when what began it is long over."""
    if _tracer is not None:
        from opentelemetry import context

        context.attach(context.Context())


def middleware() -> list[Middleware]:
    """Return the middleware that begins a trace with each request; none where nobody wants any."""
    return [] if _tracer is None else [_trace_request]


@web.middleware
async def _trace_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    name = getattr(request.match_info.handler, "__name__", "")
    if _tracer is None or name in _UNTRACED or request.path.startswith("/ui"):
        return await handler(request)
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else ""
    attributes = {"http.request.method": request.method, "url.scheme": request.scheme}
    if route:
        attributes["http.route"] = route
    if session := request.headers.get("X-Session-ID"):
        attributes["session.id"] = session[:128]
    carrier = {key: request.headers[key] for key in ("traceparent", "tracestate") if key in request.headers}
    from opentelemetry.context import Context

    above = TraceContextTextMapPropagator().extract(carrier, context=Context())
    with _Recorded(_tracer, f"{request.method} {route}".strip(), "server", above, attributes) as recorded:
        response = await handler(request)
        recorded.set(http__response__status_code=response.status)
        if response.status >= 500:
            recorded.fail(str(response.status))
        return response


class _Recorded(Span):
    def __init__(
        self, tracer: Tracer, name: str, kind: Kind, within: Context | None, attributes: Mapping[str, str | int]
    ) -> None:
        from opentelemetry.trace import SpanKind

        kinds = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}
        self._within = within
        self._span = tracer.start_span(name, within, kind=kinds[kind], attributes=attributes, record_exception=False)
        self._token: Any = None

    def set(self, **attributes: str | int | float | bool) -> None:
        for key, value in attributes.items():
            self._span.set_attribute(key.replace("__", "."), value)

    def fail(self, reason: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_status(StatusCode.ERROR)
        self._span.set_attribute("error.type", reason)

    def __enter__(self) -> Self:
        from opentelemetry import context, trace

        self._token = context.attach(trace.set_span_in_context(self._span, self._within))
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        from opentelemetry import context

        if exc is not None:
            failure = getattr(exc, "failure", exc)
            self.fail(str(getattr(failure, "reason", None) or type(exc).__qualname__))
        context.detach(self._token)
        self._span.end()


def _problem() -> str | None:
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if exporter != "otlp":
        return f"OTEL_TRACES_EXPORTER is {exporter}; there is only otlp"
    if (protocol or "http/protobuf") != "http/protobuf":
        return f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}; there is only http/protobuf"
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError:
        return "OpenTelemetry is not installed: pip install 'ors-host[otel]'"
    return None
