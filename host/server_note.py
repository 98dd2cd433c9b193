"""What the next host must know of a session in somebody else's server: its id there, and under which names its calls run.

A file of lines, each a JSON object, added to as things happen: what was written is there after ``kill -9``, and a last line
that is not whole is none. No secrets, inputs or results are in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from sandbox_runtime.messages import EpisodeState, Method

_LINES = 2000
"""Then the file is written anew, with what still counts."""

_LINGER_S = 50.0
"""How long a server keeps a result for certain: both SDKs' keep it for 60 s."""

_MAX_FORGOTTEN = 10_000

_SOON_S = 0.005
"""A small call is named and has ended within this time: one line of two is written, not two."""


@dataclass
class NotedCall:
    """One call. ``task_id`` is the server's name for it, once that is known; ``ended_at`` in seconds since the epoch."""

    method: Method
    task_id: str | None = None
    ended_at: float | None = None


@dataclass
class ServerNote:
    """The note on one session; nothing is written before ``begin``."""

    path: Path
    sid: str | None = None
    environment: str = ""
    is_set_up: bool = False
    is_finished: bool = False
    calls: dict[str, NotedCall] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)
    """Calls whose results are gone, and that are not among ``calls`` any more."""

    _fd: int = -1
    _lines: int = 0
    _waiting: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> ServerNote:
        """Return what an earlier host noted; an empty note if there is none."""
        note = cls(path)
        with contextlib.suppress(OSError):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    note._apply(from_json(line))
        return note

    def begin(self, sid: str, environment: str) -> None:
        """Note that the server has a session.

        Raises:
            OSError: it can't be written.
        """
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._add({"sid": sid, "environment": environment})

    def resume(self) -> None:
        """Go on with a note that was read.

        Raises:
            OSError: it can't be written.
        """
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def set_up(self) -> None:
        """Note that its environment is set up."""
        self._add({"set_up": True})

    def finished(self) -> None:
        """Note that the episode has finished."""
        self._add({"finished": True})

    def started(self, call_id: str, method: Method) -> None:
        """Note a call, before it is sent."""
        self.calls[call_id] = NotedCall(method)
        self._write(f'{{"call":{_quoted(call_id)},"method":"{method}"}}\n')

    def named(self, call_id: str, task_id: str) -> None:
        """Note what the server calls it, in a moment: often its result has come by then."""
        self.calls[call_id].task_id = task_id
        self._write_soon(f'{{"call":{_quoted(call_id)},"task":{_quoted(task_id)}}}\n')

    def ended(self, call_id: str) -> None:
        """Note that its result has come, when whoever waits for that has been told."""
        at = self.calls[call_id].ended_at = time.time()
        self._write_soon(f'{{"call":{_quoted(call_id)},"ended":{at!r}}}\n')

    def episode(self) -> EpisodeState | None:
        """Return what goes on in the server, as far as it was noted; None if it has no session."""
        if self.sid is None:
            return None
        running = [call_id for call_id, call in self.calls.items() if call.ended_at is None]
        kept = [call_id for call_id, call in self.calls.items() if self.is_kept(call)]
        known = {*running, *kept}
        return EpisodeState(
            environment=self.environment,
            running_calls=running,
            finished_calls=kept,
            forgotten_calls=[*self.over, *(call_id for call_id in self.calls if call_id not in known)],
        )

    def is_kept(self, call: NotedCall) -> bool:
        """Tell whether the server still has a result that has come."""
        return call.task_id is not None and call.ended_at is not None and time.time() - call.ended_at < _LINGER_S

    def flush(self) -> None:
        """Write what is still to be written."""
        lines, self._waiting = self._waiting, []
        if lines:
            self._write("".join(lines), len(lines))

    def close(self) -> None:
        """Write what is still to be written, and no more."""
        self.flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _add(self, entry: dict[str, Any]) -> None:
        self._apply(entry)
        self._write(_line(entry))

    def _write_soon(self, line: str) -> None:
        self._waiting.append(line)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(_SOON_S, self.flush)

    def _write(self, text: str, lines: int = 1) -> None:
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):  # a full disk costs the next host its knowledge, not this one its sessions
            os.write(self._fd, text.encode())
            self._lines += lines
            if self._lines >= _LINES:
                self._write_anew()

    def _apply(self, entry: dict[str, Any]) -> None:
        if "sid" in entry:
            self.sid, self.environment = str(entry["sid"]), str(entry["environment"])
        self.is_set_up |= "set_up" in entry
        self.is_finished |= "finished" in entry
        if (call_id := entry.get("call")) is not None:
            if "method" in entry:
                self.calls[call_id] = NotedCall(Method(entry["method"]))
            call = self.calls[call_id]
            call.task_id = entry.get("task", call.task_id)
            call.ended_at = entry.get("ended", call.ended_at)
        for call_id, (method, task_id, ended_at) in entry.get("calls", {}).items():
            self.calls[call_id] = NotedCall(Method(method), task_id, ended_at)
        self.over += entry.get("over", ())

    def _write_anew(self) -> None:
        over = [call_id for call_id, call in self.calls.items() if call.ended_at is not None and not self.is_kept(call)]
        for call_id in over:
            del self.calls[call_id]
        self.over = [*self.over, *over][-_MAX_FORGOTTEN:]
        lines = [_line({"sid": self.sid, "environment": self.environment})]
        lines += [_line({"set_up": True})] * self.is_set_up + [_line({"finished": True})] * self.is_finished
        # Thousands in one line: one for each would hold the event loop up.
        calls = {call_id: (call.method, call.task_id, call.ended_at) for call_id, call in self.calls.items()}
        lines.append(_line({"calls": calls, "over": self.over}))
        temporary = self.path.with_name(self.path.name + ".new")
        temporary.write_text("".join(lines))
        temporary.chmod(0o600)
        temporary.rename(self.path)
        self._waiting.clear()  # it is in there
        os.close(self._fd)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._lines = 0


_quoted = json.encoder.encode_basestring_ascii
"""A string in JSON. The three lines of each call are put together by hand: an encoder takes longer than all else about them."""


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":")) + "\n"
