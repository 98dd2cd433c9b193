"""What a server answered, in the form in which answers are compared; and the places where two of them differ."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

HEADERS = ("Content-Type", "Location", "Allow", "Retry-After", "X-Backend-State")
"""The headers that a client acts on. Of the content type, only the media type: JSON is UTF-8 whether or not it says so."""

STREAM_HEADERS = ("Cache-Control", "X-Accel-Buffering")
"""Those that keep proxies from holding a stream back; compared on streams."""

ABSENT = "(absent)"
"""Stands for a key that one side has and the other has not."""


@dataclass(frozen=True)
class Request:
    """One request of the list. ``topic`` is its flow, or a part of that; ``body`` was sent as JSON, or is the raw text."""

    topic: str
    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        body = "" if self.body is None else f" {json.dumps(self.body)[:160]}"
        return f"[{self.topic}] {self.method} {self.path}{body}"


@dataclass
class Reply:
    """Status, headers that matter, and the body: JSON, text, or the events of a stream."""

    status: int
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Exchange:
    """One request, what the reference server answered, and what ours did."""

    dialect: str
    request: Request
    theirs: Reply
    ours: Reply

    def deltas(self) -> list[Delta]:
        """Return every place where the two answers differ."""
        return list(_deltas("", _plain(self.theirs), _plain(self.ours)))


@dataclass(frozen=True)
class Delta:
    """One place (``body.detail``, ``body.events.1.data.reason``) where two answers differ."""

    place: str
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        return f"{self.place}: theirs {_short(self.theirs)}, ours {_short(self.ours)}"


def _plain(reply: Reply) -> dict[str, Any]:
    return {"status": reply.status, "headers": reply.headers, "body": reply.body}


def _deltas(place: str, theirs: Any, ours: Any) -> Iterator[Delta]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            inner = f"{place}.{key}" if place else key
            if key not in theirs or key not in ours:
                yield Delta(inner, theirs.get(key, ABSENT), ours.get(key, ABSENT))
            else:
                yield from _deltas(inner, theirs[key], ours[key])
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, (left, right) in enumerate(zip(theirs, ours, strict=True)):
            yield from _deltas(f"{place}.{index}", left, right)
    elif type(theirs) is not type(ours) or theirs != ours:  # 1 is not 1.0 here, and not True
        yield Delta(place, theirs, ours)


def _short(value: Any) -> str:
    text = value if value == ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"


async def plain_reply(response: aiohttp.ClientResponse) -> Reply:
    """Read an answer that is no stream."""
    text = await response.text()
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    return Reply(response.status, headers_of(response), body)


def headers_of(response: aiohttp.ClientResponse) -> dict[str, str]:
    """Return the headers that are compared."""
    names = HEADERS + (STREAM_HEADERS if response.content_type == "text/event-stream" else ())
    found = {name: response.headers[name] for name in names if name in response.headers}
    if "Content-Type" in found:
        found["Content-Type"] = response.content_type
    return found


@dataclass
class Event:
    """One event of a stream, as the standard reads it and as both public clients do."""

    name: str
    data: str
    as_clients_read: str


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    """Yield the events of a stream; comments are left out."""
    name, lines = "", []
    async for raw in response.content:
        line = raw.decode().rstrip("\r\n")
        if line.startswith(":"):
            continue
        if line:
            key, _, value = line.partition(":")
            if key == "event":
                name = value.strip()
            elif key == "data":
                lines.append(value)
        elif name:
            strict = "\n".join(value.removeprefix(" ") for value in lines)
            yield Event(name, strict, "\n".join(value.lstrip() for value in lines))
            name, lines = "", []


def stream_body(found: Sequence[Event], *, finished: bool) -> dict[str, Any]:
    """Return the events of one stream in the form that is compared: the pieces of a result put together, ids left out."""
    shown: list[dict[str, Any]] = []
    pieces: list[Event] = []
    for event in found:
        if event.name == "task_id":
            shown.append({"event": "task_id"})
        elif event.name == "chunk":
            pieces.append(event)
        else:
            pieces.append(event)
            data = "".join(piece.data for piece in pieces)
            read = "".join(piece.as_clients_read for piece in pieces)
            entry: dict[str, Any] = {"event": event.name, "data": _json_or_text(data) if event.name == "end" else data}
            if len(pieces) > 1:
                entry["in chunks of at most 4096"] = max(len(piece.data) for piece in pieces) <= 4096
            if read != data:
                entry["clients lose characters"] = True
            shown.append(entry)
            pieces = []
    body: dict[str, Any] = {"events": shown}
    if not finished:
        body["never ends"] = True
    return body


def _json_or_text(data: str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data
