"""What a server can do wrong. ``ANSWERS`` are answers to any request, ``CALLS`` those to a tool call."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

FILL = b"x" * 65536
BOMB_BYTES = 8 * 2**30


class HangUp(Exception):
    """The connection is closed without another word."""


def result(text: str, **more: Any) -> str:
    """Return a good result, as JSON."""
    block = {"type": "text", "text": text, "detail": None}
    output = {"blocks": [block], "metadata": None, "reward": None, "finished": False, **more}
    return json.dumps({"ok": True, "output": output}, ensure_ascii=False)


def event(name: str, data: str, end: str = "\n") -> bytes:
    return f"event: {name}{end}data: {data}{end}{end}".encode()


def hang(it: Any, given: Any) -> None:
    time.sleep(3600)


def endless(it: Any, piece: bytes) -> None:
    while True:
        it.raw(piece)


def endless_json(it: Any, given: Any) -> None:
    it.head(200, "application/json", "Transfer-Encoding: chunked\r\n")
    it.chunk(b'{"a": "')
    while True:
        it.chunk(FILL)


def endless_header(it: Any, given: Any) -> None:
    it.raw(b"HTTP/1.1 200 OK\r\n")
    endless(it, b"X-More: " + b"y" * 1000 + b"\r\n")


def endless_hints(it: Any, given: Any) -> None:
    while True:
        it.raw(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        time.sleep(0.0001)


def drip(it: Any, given: Any) -> None:
    it.head(200, "application/json", "Content-Length: 100000\r\n")
    while True:
        it.raw(b" ")
        time.sleep(0.05)


def bomb(it: Any, given: Any) -> None:
    it.head(200, given.get("type", "application/json"), "Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n")
    packer = zlib.compressobj(9, wbits=31)
    piece = b" " * 2**20
    for _ in range(BOMB_BYTES // len(piece)):
        if packed := packer.compress(piece):
            it.chunk(packed)
    it.finish(packer.flush())


def redirect(it: Any, given: Any) -> None:
    it.text(given.get("status", 307), b"", "text/plain", f"Location: {given.get('to', 'http://127.0.0.1:9/')}\r\n")


def early_end(it: Any, given: Any) -> None:
    it.head(200, "application/json", "Content-Length: 1000\r\n")
    it.raw(b'{"half":')
    raise HangUp


def hang_up(it: Any, given: Any) -> None:
    raise HangUp


def nested(it: Any, given: Any) -> None:
    it.text(200, b"[" * 100_000 + b"]" * 100_000, "application/json")


def many(it: Any, given: Any) -> None:
    it.text(200, b"[" + b"0," * 1_900_000 + b"0]", "application/json")


ANSWERS: dict[str, Callable[[Any, Any], None]] = {
    "html": lambda it, given: it.text(200, b"<!DOCTYPE html><title>Welcome</title><p>It works!", "text/html"),
    "500": lambda it, given: it.json(500, {"detail": "the server is out of sorts"}),
    "500_html": lambda it, given: it.text(500, b"<h1>Internal Server Error</h1>" * 10_000, "text/html"),
    "503": lambda it, given: it.json(503, {"detail": "come again"}, "Retry-After: 100000\r\n"),
    "204": lambda it, given: it.raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "101": lambda it, given: it.raw(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nxxxx"),
    "redirect": redirect,
    "endless_json": endless_json,
    "endless_header": endless_header,
    "endless_hints": endless_hints,
    "drip": drip,
    "silent": hang,
    "bomb": bomb,
    "early_end": early_end,
    "hang_up": hang_up,
    "not_http": lambda it, given: endless(it, b"SSH-2.0-OpenSSH_9.2p1\r\n"),
    "two_lengths": lambda it, given: it.text(200, b"{}", "application/json", "Content-Length: 4\r\n"),
    "not_json": lambda it, given: it.text(200, b'{"a": ', "application/json"),
    "not_utf8": lambda it, given: it.text(200, b'["\xff\xfe"]', "application/json"),
    "wrong_shape": lambda it, given: it.json(200, {"blocks": 7, "tasks": "none", "tools": [{}], "num_tasks": "three"}),
    "nested": nested,
    "many": many,
    "nan": lambda it, given: it.text(200, b'[{"type": "text", "text": NaN}]', "application/json"),
    "long_number": lambda it, given: it.text(200, b'{"num_tasks": ' + b"9" * 20_000 + b"}", "application/json"),
}


# --- Calls ------------------------------------------------------------------------------------------------------------


def stream(*pieces: bytes, pause_s: float = 0) -> Callable[..., None]:
    """Return a misdeed that sends these bytes after a good beginning, each as a chunk of its own."""

    def answer(server: Any, it: Any, given: Any, task_id: str) -> None:
        it.begin_events()
        it.event("task_id", task_id)
        for piece in pieces:
            it.chunk(piece)
            time.sleep(pause_s)
        it.finish()

    return answer


def pour(*pieces: bytes) -> Callable[..., None]:
    """Return a misdeed that never stops after these bytes."""

    def answer(server: Any, it: Any, given: Any, task_id: str) -> None:
        it.begin_events()
        it.event("task_id", task_id)
        while True:
            for piece in pieces:
                it.chunk(piece)

    return answer


def told(server: Any, it: Any, given: Any, task_id: str) -> None:
    """Send the data that the test wants."""
    stream(event("end", given["data"]))(server, it, given, task_id)


def leave_port(server: Any, it: Any, given: Any, task_id: str) -> None:
    server.listener.shutdown(socket.SHUT_RDWR)  # who waits in accept() would hold it open
    server.listener.close()
    it.begin_events()
    it.event("task_id", task_id)
    raise HangUp


def fork_and_exit(server: Any, it: Any, given: Any, task_id: str) -> None:
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(0)


def hog(server: Any, it: Any, given: Any, task_id: str) -> None:
    it.begin_events()
    it.event("task_id", task_id)
    hoard = []
    while True:
        hoard.append(os.urandom(1) * 2**24)


def fill_disk(server: Any, it: Any, given: Any, task_id: str) -> None:
    it.begin_events()
    it.event("task_id", task_id)
    with open("/var/full", "wb") as file:
        while True:
            file.write(FILL)


def threads(server: Any, it: Any, given: Any, task_id: str) -> None:
    made = 0
    try:
        while made < 5000:
            threading.Thread(target=time.sleep, args=[3600], daemon=True).start()
            made += 1
    except RuntimeError:
        pass
    stream(event("end", result(str(made))))(server, it, given, task_id)


def as_any(name: str) -> Callable[..., None]:
    return lambda server, it, given, task_id: ANSWERS[name](it, given)


BYTEWISE = event("end", result("äöü 👩\u200d🚀 \u2028 end"))
CALLS: dict[str, Callable[..., None]] = {
    **{name: as_any(name) for name in ANSWERS},
    "exit": lambda *_: os._exit(9),
    "fork_and_exit": fork_and_exit,
    "leave_port": leave_port,
    "hog": hog,
    "fill_disk": fill_disk,
    "threads": threads,
    "told": told,
    "no_end": stream(event("chunk", '{"ok": true')),
    "nothing": stream(),
    "endless_line": pour(FILL),
    "endless_data": pour(b"data: " + FILL + b"\n"),
    "endless_chunks": pour(event("chunk", FILL.decode())),
    "endless_pings": pour(b": ping\n\n"),
    "endless_names": pour(b"event: " + FILL[:100] + b"\n"),
    "two_results": stream(event("end", result("first", reward=0.0)), event("end", result("second", reward=1.0))),
    "result_then_error": stream(event("end", result("first")), event("error", "no")),
    "another_id": stream(event("task_id", "somebody-elses"), event("end", result("x"))),
    "odd_id": lambda server, it, given, task_id: it.events(("task_id", "\x1b[31m" + "i" * 5000), ("end", result("x"))),
    "no_id": lambda server, it, given, task_id: it.events(("end", result("without an id"))),
    "unknown_event": stream(event("weather", "fine"), event("end", result("and the result"))),
    "no_colon": stream(b"what is this\n", event("end", result("after a line without a colon"))),
    "error": stream(b"event: error\ndata: it broke\ndata: in two places\n\n"),
    "empty_error": stream(b"event: error\ndata:\n\n"),
    "long_error": stream(event("error", "e" * 3_000_000)),
    "crlf": stream(event("end", result("crlf"), "\r\n")),
    "cr": stream(event("end", result("cr"), "\r")),
    "bytewise": stream(*[BYTEWISE[n : n + 1] for n in range(len(BYTEWISE))]),
    "slow_bytes": stream(*[BYTEWISE[n : n + 7] for n in range(0, len(BYTEWISE), 7)], pause_s=0.01),
    "pings": stream(b": ping\n\n:\n", event("end", result("after pings"))),
    "cut_in_middle": stream(event("chunk", result("in two pieces")[:30]), event("end", result("in two pieces")[30:])),
    "not_events": lambda server, it, given, task_id: it.text(200, result("plain JSON").encode(), "application/json"),
    "surrogate": stream(event("end", result("a_b").replace("_", "\\ud800"))),
    "shout": lambda server, it, given, task_id: (
        sys.stdout.write("x" * 10_000_000),
        it.events(("end", result("shouted"))),
    ),
}
