"""The HTTP application: the routes, and the one place where an error becomes a response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from weakref import WeakSet

import structlog
from aiohttp import web

from host import tracing
from host.access_log import access_log, what_is_asked
from host.auth import Keys, guard
from host.catalog import Catalog
from host.connections import SERVED
from host.dashboard import Dashboard
from host.errors import BodyTooLarge, HostError, NotFound
from host.node_api import NodeApi
from host.parsing import BODY_LIMITS, BodyLimits
from host.routes import Routes
from host.sessions import Sessions

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    catalog: Catalog,
    sessions: Sessions,
    *,
    max_body_bytes: int,
    body_timeout_s: float = 60,
    keys: Keys | None = None,
    dashboard: Dashboard | None = None,
    node_api: bool = False,
) -> web.Application:
    """Return the application over objects that are open already; it owns none of them.

    ``node_api`` adds what the front of a cluster asks.
    """
    tables: list[web.RouteDef] = list(Routes(catalog, sessions).table())
    if node_api:
        tables = [*NodeApi(catalog, sessions).table(), *tables]
    if dashboard is not None:
        tables = [*dashboard.table(), *tables]
    return application(
        tables,
        lambda request: _redirect(request, catalog),
        max_body_bytes=max_body_bytes,
        body_timeout_s=body_timeout_s,
        keys=keys,
    )


def application(
    table: Iterable[web.RouteDef],
    elsewhere: Callable[[web.Request], web.Response | None],
    *,
    max_body_bytes: int,
    body_timeout_s: float = 60,
    keys: Keys | None = None,
) -> web.Application:
    """Return an application of these routes; ``elsewhere`` may answer what none of them is for."""

    @web.middleware
    async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.transport is not None:
            request.app[SERVED].add(request.transport)
        try:
            return await handler(request)
        except HostError as exc:
            return _response(exc)
        except web.HTTPNotFound:
            return elsewhere(request) or _response(NotFound(f"there is no {request.method} {request.path} here"))
        except web.HTTPRequestEntityTooLarge:
            return _response(BodyTooLarge(f"the body is over the limit of {max_body_bytes} bytes"))
        except web.HTTPException as exc:
            return web.json_response(
                {"detail": exc.reason, "reason": "http_error"}, status=exc.status, headers=_allow(exc)
            )
        except Exception as exc:
            log.exception("request_failed", **what_is_asked(request))
            return _response(HostError(f"internal error: {type(exc).__name__}"))

    app = web.Application(
        middlewares=[*access_log(), *tracing.middleware(), errors, guard(keys or Keys())],
        client_max_size=max_body_bytes,
    )
    app[SERVED] = WeakSet()
    app[BODY_LIMITS] = BodyLimits(max_bytes=max_body_bytes, timeout_s=body_timeout_s)
    app.add_routes(table)
    return app


def _response(error: HostError) -> web.Response:
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.starting:
        headers["X-Backend-State"] = "starting"
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.json_response({"detail": str(error), "reason": error.reason}, status=error.status, headers=headers)


def _redirect(request: web.Request, catalog: Catalog) -> web.Response | None:
    """Return the 308 to the default environment for a path whose first segment is no environment, else None."""
    first_segment = request.path.lstrip("/").partition("/")[0]
    if catalog.find(first_segment):
        return None
    location = f"/{catalog.default.name}{request.rel_url.raw_path_qs}"
    return web.Response(status=308, headers={"Location": location})


def _allow(exc: web.HTTPException) -> dict[str, str]:
    return {"Allow": exc.headers["Allow"]} if "Allow" in exc.headers else {}
