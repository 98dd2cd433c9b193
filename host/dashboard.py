"""The dashboard at ``/ui``: its files, and the questions that they ask, which are answered as JSON.

    GET    /ui/api/state?since=AT                   the host, and the samples of the last hour after AT (``Overview.state``)
    GET    /ui/api/sessions?which=…&text=…&sort=…   one page of the sessions (``overview.Query``, ``Overview.page``)
    GET    /ui/api/sessions/REF?since=REVISION      one session, and the steps that changed (``Overview.session``)
    GET    /ui/api/sessions/REF/steps/N             what was said in a step (``Overview.pieces``)
    DELETE /ui/api/sessions/REF                     end a session

It is for this host's own pages and may change with them. Where there is a key, the trainer's is needed for each question, in a
header: no cookie is used, so another site's page has nothing to ride on. Where there is none, another site's page can't ask
either: what changes something is a method that a browser asks permission for first, which is never given, and what a browser
says comes from another site is refused.

The files are the same for everybody, and open. All that is shown was written by environments and agents, which may be hostile:
the pages make text of it, never markup, and the policy below is the second wall.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from pydantic import ValidationError
from pydantic_core import to_json

from host.errors import Forbidden, InvalidRequest
from host.overview import Overview, Query
from sandbox_runtime.messages import describe

_FOLDER = Path(__file__).parent / "ui"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_PAGE = {
    **_ALWAYS,
    "Cache-Control": "no-cache",
    # Trusted types: the browser itself refuses to make markup of a string.
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_DATA = {
    **_ALWAYS,
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
}


@dataclass(frozen=True)
class _File:
    body: bytes
    content_type: str
    etag: str


class Dashboard:
    """The handlers. The files are read once: no path of a request leads to the disk."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview
        self._files = {path.name: _read(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES}

    def table(self) -> Iterator[web.RouteDef]:
        """Yield all routes: none has a first segment of its own beside ``ui``, nor a second that ORS has."""
        yield web.get("/ui", self.ui_redirect)
        for name in self._files:
            yield web.get("/ui/" + ("" if name == "index.html" else name), self.ui_file)
        yield web.get("/ui/api/state", self.ui_state)
        yield web.get("/ui/api/sessions", self.ui_sessions)
        yield web.get("/ui/api/sessions/{ref:[0-9a-f]{16}}", self.ui_session)
        yield web.delete("/ui/api/sessions/{ref:[0-9a-f]{16}}", self.ui_end)
        yield web.get("/ui/api/sessions/{ref:[0-9a-f]{16}}/steps/{number:[0-9]{1,9}}", self.ui_pieces)

    async def ui_redirect(self, request: web.Request) -> web.Response:
        """Add the slash, relative to wherever a proxy has put us."""
        return web.Response(status=308, headers={"Location": "ui/", **_ALWAYS})

    async def ui_file(self, request: web.Request) -> web.Response:
        """One of the files."""
        file = self._files[request.path.rpartition("/")[2] or "index.html"]
        headers = {**_PAGE, "ETag": file.etag}
        if request.headers.get("If-None-Match") == file.etag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, headers={**headers, "Content-Type": file.content_type})

    async def ui_state(self, request: web.Request) -> web.Response:
        """The host."""
        _check_site(request)
        return _json(to_json(self._overview.state(_number(request, "since"))))

    async def ui_sessions(self, request: web.Request) -> web.Response:
        """A page of sessions."""
        _check_site(request)
        try:
            query = Query.model_validate(dict(request.query))
        except ValidationError as exc:
            raise InvalidRequest(describe(exc)) from None
        return _json(to_json(self._overview.page(query)))

    async def ui_session(self, request: web.Request) -> web.Response:
        """One session."""
        _check_site(request)
        return _json(to_json(self._overview.session(request.match_info["ref"], int(_number(request, "since")))))

    async def ui_pieces(self, request: web.Request) -> web.Response:
        """What was said in one step."""
        _check_site(request)
        return _json(self._overview.pieces(request.match_info["ref"], int(request.match_info["number"])))

    async def ui_end(self, request: web.Request) -> web.Response:
        """End a session."""
        _check_site(request)
        self._overview.end(request.match_info["ref"])
        return _json(b"{}", status=202)


def _read(path: Path) -> _File:
    body = path.read_bytes()
    return _File(body, _TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def _check_site(request: web.Request) -> None:
    """Refuse what a browser says another site's page asks for. Others than browsers say nothing."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("this is for the dashboard's own pages")


def _number(request: web.Request, name: str) -> float:
    text = request.query.get(name, "0")
    try:
        if 0 <= (value := float(text)) < 1e12:
            return value
    except ValueError:
        pass
    raise InvalidRequest(f"{name!r} should be a number, not negative")


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, headers={**_DATA, "Content-Type": "application/json"})
