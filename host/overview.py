"""What the dashboard shows, as JSON values: the host, its sessions, one session's steps. Looking changes nothing.

Times are in seconds, points in time since the epoch, sizes in bytes. All text may have been written in a container.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from host import __version__
from host.errors import Failure, NotFound, Reason
from host.history import STEP_S, History
from host.lifecycle import State
from host.memory import machine_memory
from host.pieces import LeftOut
from host.pool import Pool
from host.recording import Recorder
from host.sandbox_host import SandboxHost
from host.session import Session
from host.sessions import Sessions
from host.timeline import Step, Timeline
from host.timelines import Timelines

_ENDED = Failure(Reason.DELETED, "the operator ended the session from the dashboard")

SortKey = Literal[
    "age", "task", "environment", "state", "calls", "errors", "reward", "cpu", "memory", "reason", "ended"
]


class Query(BaseModel):
    """Which sessions are asked for."""

    model_config = ConfigDict(extra="forbid")

    which: Literal["live", "ended"] = "live"
    text: str = Field("", max_length=200)
    """Parts of an id, an environment, a task, a state, a reason or a container's name, in any case; all must be there."""
    sort: SortKey = "age"
    descending: bool = False
    offset: int = Field(0, ge=0, le=1_000_000)
    limit: int = Field(50, ge=1, le=500)


@dataclass(frozen=True)
class Overview:
    """All that is looked at."""

    host: SandboxHost
    pool: Pool
    sessions: Sessions
    history: History
    recorder: Recorder
    started_at: float

    @property
    def timelines(self) -> Timelines:
        """Those of all sessions."""
        return self.sessions.timelines

    def state(self, since: float) -> dict[str, Any]:
        """Return how the host is, and the samples of the last hour that were taken after ``since``."""
        settings, capacity = self.host.settings, self.pool.capacity
        problem = self.sessions.why_not_ready()
        used = self.host.usage.snapshot().values()
        memory_free, memory_total = machine_memory() or (None, None)
        return {
            "version": __version__,
            "instance": f"{self.host.state.server_id}-{self.started_at:.3f}",
            "at": time.time(),
            "up_s": time.time() - self.started_at,
            "problem": None if problem is None else {"reason": problem.reason, "words": str(problem)},
            "engine_up": self.host.engine.problem is None,
            "sessions": self.sessions.count_by_state(),
            "places": {"limit": capacity.limit, "free": capacity.free, "waiting": capacity.waiting},
            "queue_size": settings.queue_size,
            "leftovers": self.host.leftovers,
            "images": [self._image(tag, waiting) for tag, waiting in self.pool.waiting_by_image().items()],
            "reasons": self.timelines.reasons(),
            "use": {
                "cpus": sum(usage.cpu for usage in used),
                "memory": sum(usage.memory_bytes for usage in used),
                "of_cpus": os.cpu_count() or 1,
                "load": os.getloadavg()[0],
                "memory_free": memory_free,
                "memory_total": memory_total,
            },
            "disk": self._disk(),
            "record": self._record(),
            "step_s": STEP_S,
            "history": [list(asdict(sample).values()) for sample in self.history.since(since)],
        }

    def page(self, query: Query) -> dict[str, Any]:
        """Return one page of the sessions that fit, and how many there are."""
        rows = [self._live_row(session) for session in self.sessions] if query.which == "live" else []
        if query.which == "ended":
            rows = [_row(timeline, "ended") for timeline in self.timelines.ended()]
        total = len(rows)
        words = query.text.lower().split()
        if words:
            rows = [row for row in rows if _fits(row, words)]
        rows.sort(key=lambda row: _order(row, query.sort), reverse=query.descending)
        page = rows[query.offset : query.offset + query.limit]
        return {"total": total, "matching": len(rows), "offset": query.offset, "rows": [_short(row) for row in page]}

    def session(self, ref: str, since: int) -> dict[str, Any]:
        """Return one session, and the steps that changed after the revision ``since``.

        Raises:
            NotFound: there is none, or it ended too long ago.
        """
        timeline = self._find(ref)
        session = self._live(timeline)
        row = self._live_row(session) if session else _row(timeline, "ended")
        steps = [_step(step) for step in timeline.steps if step.revision > since]
        return {
            "session": {**row, "container": timeline.container, "start": timeline.start},
            "limits": self._limits(timeline.image),
            "revision": timeline.revision,
            "left_out": timeline.left_out,
            "kept": self.recorder.mode != "off",
            "steps": steps,
        }

    def pieces(self, ref: str, number: int) -> bytes:
        """Return what is kept of one step, as JSON: ``input``, ``output``, ``error``, ``task``, ``left_out``.

        Raises:
            NotFound: as ``session``.
        """
        pieces = self.recorder.pieces.get(self._find(ref).ref, number)
        parts = [b'"%b":%b' % (name.encode(), piece) for name, piece in pieces.items() if isinstance(piece, bytes)]
        left_out = {name: piece.why for name, piece in pieces.items() if isinstance(piece, LeftOut)}
        return b"{" + b",".join([*parts, b'"left_out":' + to_json(left_out)]) + b"}"

    def end(self, ref: str) -> None:
        """Let a session end; does not wait. Fine if it has.

        Raises:
            NotFound: as ``session``.
        """
        if session := self._live(self._find(ref)):
            session.close(_ENDED)

    def _find(self, ref: str) -> Timeline:
        if timeline := self.timelines.find(ref):
            return timeline
        raise NotFound("there is no such session, or it ended more than an hour ago")

    def _live(self, timeline: Timeline) -> Session | None:
        if timeline.ended_at is not None:
            return None
        return next((session for session in self.sessions if session.timeline is timeline), None)

    def _live_row(self, session: Session) -> dict[str, Any]:
        row = _row(session.timeline, session.state.name.lower())
        if usage := self.host.usage.snapshot().get(session.timeline.container):
            row["cpu"], row["memory"] = usage.cpu, usage.memory_bytes
        if session.state is State.CLOSING and session.failure is not None:
            row["reason"], row["words"] = session.failure.reason, session.timeline.mask.text(session.failure.message)
        return row

    def _image(self, tag: str, waiting: int) -> dict[str, Any]:
        return {"tag": tag, "waiting": waiting, "warm": self.host.rules(tag).warm, **self._limits(tag)}

    def _limits(self, tag: str) -> dict[str, Any]:
        limits = self.host.rules(tag).limits
        return {"memory": limits.memory_bytes, "cpus": limits.cpus}

    def _disk(self) -> dict[str, int]:
        usage = shutil.disk_usage(self.host.settings.state_dir)
        return {"free": usage.free, "total": usage.total}

    def _record(self) -> dict[str, Any]:
        recorder = self.recorder
        directory = None if recorder.directory is None else str(recorder.directory)
        return {"mode": recorder.mode, "directory": directory, "problem": recorder.problem, "lost": recorder.lost}


def _row(timeline: Timeline, state: str) -> dict[str, Any]:
    running = min(timeline.running.values(), key=lambda step: step.at, default=None)
    end = timeline.ended_at or time.time()
    reason, words = timeline.failure or (None, None)
    return {
        "ref": timeline.ref,
        "sid": timeline.sid,
        "environment": timeline.environment,
        "image": timeline.image,
        "task": timeline.task,
        "state": state,
        "age": end - timeline.created_at,
        "ended": timeline.ended_at,
        "calls": timeline.calls,
        "errors": timeline.errors,
        "running": None if running is None else {"name": running.name, "for": time.time() - running.at},
        "in_flight": len(timeline.running),
        "reward": timeline.reward,
        "finished": timeline.finished,
        "cpu": None,
        "memory": None,
        "reason": reason,
        "words": words,
        "container": timeline.container,
    }


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the list: what is nothing is left out, and what is long is cut."""
    short = {name: value for name, value in row.items() if value is not None and value is not False}
    short["words"] = (short.get("words") or "")[:200]
    for name in ("age", "cpu", "ended"):
        if name in short:
            short[name] = round(short[name], 3)
    del short["container"]
    return short


def _step(step: Step) -> dict[str, Any]:
    fields = asdict(step)
    del fields["revision"]
    return fields


def _fits(row: Mapping[str, Any], words: list[str]) -> bool:
    text = " ".join(str(row[name] or "") for name in ("sid", "environment", "task", "state", "reason", "container"))
    text = f"{text} {row['image']} {row['running']['name'] if row['running'] else ''}".lower()
    return all(word in text for word in words)


def _order(row: Mapping[str, Any], key: SortKey) -> tuple[bool, Any, float]:
    """What has no value comes first, and so does what is equal in the order of age."""
    value = row[key]
    if isinstance(value, str):
        value = value.lower()
    return (value is not None, value if value is not None else 0, row["age"])
