"""Recording: what clients and environments say in episodes, without secrets, kept in memory and in files if asked for.

The event loop only puts things into a queue that is bounded in number and bytes; a thread masks them (``masking.py``), keeps
them for the dashboard (``pieces.py``) and writes them down (``transcripts.py``). Where that is too slow, or a disk is full,
things are lost, and what was lost is said; no session waits for it or fails by it.

Of a session that an earlier host began nobody here knows the secrets that its client gave. So its pieces are not kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import structlog
from pydantic_core import to_json

from host import __version__
from host.masking import Mask
from host.pieces import LeftOut, Piece, Pieces
from host.settings import Settings
from host.timeline import Timeline
from host.transcripts import Transcripts

log = structlog.get_logger()

_MAX_PIECE_BYTES = 4 * 1024 * 1024
"""Larger ones are not kept: a screenshot is a tenth of it. What is masked is looked through with no other thread running."""

_MAX_QUEUED_BYTES = 64 * 1024 * 1024
_MAX_QUEUED = 20_000
_MAX_NODES = 20_000
_CLOSE_S = 5.0
_TELL_S = 30.0

_TOO_LARGE = LeftOut(f"it is larger than {_MAX_PIECE_BYTES // 1024**2} MiB")
_UNREADABLE = LeftOut("a secret may be in it, and it can't be taken out")
_OF_ANOTHER_HOST = LeftOut("the session's secrets are not known to this host, which was started after it")


@dataclass
class _Recorded:
    """One session's recording. ``file`` is the thread's; ``gap`` counts what was lost since the last step that was not."""

    recorder: Recorder
    timeline: Timeline
    mask: Mask
    began_at: float
    resumed: bool
    file: str | None = None
    gap: int = 0

    def write(self, kind: str, fields: Mapping[str, Any], pieces: Mapping[str, Any]) -> None:
        """See ``timeline.Recording``."""
        if self.resumed:
            pieces = dict.fromkeys(pieces, _OF_ANOTHER_HOST)
        self.recorder.take(self, kind, fields, pieces)

    def end(self, fields: Mapping[str, Any]) -> None:
        """See ``timeline.Recording``."""
        if self.resumed:
            fields = {**fields, "message": ""}
        self.recorder.take(self, "end", fields, {})


class Recorder:
    """All recordings of one host."""

    def __init__(self, settings: Settings) -> None:
        """Raises StartupError: the directory can't be used."""
        self.mode = settings.record
        bounds = {"max_session_bytes": settings.record_session}
        self.pieces = Pieces(max_bytes=settings.record_memory, **bounds)
        self.problem: str | None = None
        """Why files can't be written at the moment, in words."""
        self.lost = 0
        """Steps that came faster than they could be kept."""
        self._transcripts: Transcripts | None = None
        if settings.record == "directory":
            directory = directory_of(settings)
            self._transcripts = Transcripts(directory, max_bytes=settings.record_disk, **bounds)
        self._queue: SimpleQueue[tuple[int, Callable[[], None]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._queued_bytes = 0
        self._queued_jobs = 0
        self._told_at = -_TELL_S

    @property
    def directory(self) -> Path | None:
        """Where the files are."""
        return self._transcripts.directory if self._transcripts else None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Work for the length of the block; at its end what is queued is still written, if that doesn't take long."""
        if self.mode == "off":
            yield
            return
        thread = threading.Thread(target=self._run, name="recording", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._queue.put(None)
            thread.join(_CLOSE_S)
            if thread.is_alive():
                log.warning("recording_cut_short", steps=self._queued_jobs)
            elif self._transcripts is not None:
                self._transcripts.close()

    def begin(self, timeline: Timeline, *, resumed: bool) -> None:
        """Have a session recorded from now on, if anything is."""
        if self.mode == "off":
            return
        recording = _Recorded(self, timeline, timeline.mask, timeline.created_at, resumed)
        timeline.recording = recording
        if self._transcripts is not None:
            self._put(0, partial(self._begin_file, recording, self._transcripts))

    def take(self, recording: _Recorded, kind: str, fields: Mapping[str, Any], pieces: Mapping[str, Any]) -> None:
        """Queue a step; it is lost if there is no room."""
        weighed = {name: _weigh(piece) for name, piece in pieces.items()}
        kept = {name: piece if weighed[name] is not None else _TOO_LARGE for name, piece in pieces.items()}
        size = sum(weight or 0 for weight in weighed.values())
        last = kind == "end"
        if not last and (self._queued_bytes + size > _MAX_QUEUED_BYTES or self._queued_jobs >= _MAX_QUEUED):
            recording.gap += 1
            self.lost += 1
            return
        gap, recording.gap = recording.gap, 0
        self._put(size, partial(self._keep, recording, kind, fields, kept, gap))

    def forget(self, timeline: Timeline) -> None:
        """Drop what is kept of a session in memory."""
        if self.mode != "off":
            self._put(0, partial(self.pieces.forget, timeline.ref))

    def drain(self) -> None:
        """Wait until everything is kept that was taken before. For tests, and where blocking is no matter."""
        done = threading.Event()
        self._put(0, done.set)
        done.wait(_CLOSE_S)

    # --- On the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            size, job = item
            try:
                job()
            except OSError as exc:
                self._failed(exc)
            except Exception:
                log.exception("recording_crashed")  # of one step; the others go on
            finally:
                with self._lock:
                    self._queued_bytes -= size
                    self._queued_jobs -= 1

    def _begin_file(self, recording: _Recorded, transcripts: Transcripts) -> None:
        timeline = recording.timeline
        fields = {"format": 1, "session": timeline.sid, "environment": timeline.environment, "image": timeline.image}
        line = _line(
            "session", {"at": recording.began_at, **fields, "host": __version__, "resumed": recording.resumed}, {}
        )
        start = transcripts.resume if recording.resumed else transcripts.begin
        recording.file = start(timeline.sid, recording.began_at, line)
        self.problem = None

    def _keep(
        self, recording: _Recorded, kind: str, fields: Mapping[str, Any], pieces: Mapping[str, Any], gap: int
    ) -> None:
        masked = {name: _masked(recording.mask, piece) for name, piece in pieces.items()}
        self.pieces.add(recording.timeline.ref, fields["number"], masked)
        if self._transcripts is None or recording.file is None:
            return
        name, last = recording.file, kind == "end"
        try:
            if gap:
                self._transcripts.append(name, _line("lost", {"lines": gap}, {}))
            self._transcripts.append(name, _line(kind, fields, masked), last=last)
            self.problem = None
        except OSError:
            recording.file, last = None, True  # no line is to look as if it followed the one before
            raise
        finally:
            if last:
                self._transcripts.leave(name)

    def _failed(self, exc: OSError) -> None:
        self.problem = exc.strerror or type(exc).__name__
        if (now := time.monotonic()) - self._told_at >= _TELL_S:
            self._told_at = now
            log.warning("recording_failed", error=self.problem, consequence="transcripts end here; sessions go on")

    def _put(self, size: int, job: Callable[[], None]) -> None:
        with self._lock:
            self._queued_bytes += size
            self._queued_jobs += 1
        self._queue.put((size, job))


def directory_of(settings: Settings) -> Path:
    """Return where transcripts are, if there are any."""
    return settings.record_dir or settings.state_dir / "transcripts"


def _masked(mask: Mask, piece: Any) -> Piece:
    if isinstance(piece, LeftOut):
        return piece
    try:
        raw = piece if isinstance(piece, bytes) else piece.encode() if isinstance(piece, str) else to_json(piece)
    except ValueError:  # what is not text in any encoding
        return _UNREADABLE
    return mask.json(raw) or _UNREADABLE if len(raw) <= _MAX_PIECE_BYTES else _TOO_LARGE


def _line(kind: str, fields: Mapping[str, Any], pieces: Mapping[str, Piece]) -> bytes:
    """Return a line of a file. Pieces are JSON already, without line breaks, and go in as they are."""
    left_out = {name: piece.why for name, piece in pieces.items() if isinstance(piece, LeftOut)}
    head = to_json({"type": kind, **fields, **({"left_out": left_out} if left_out else {})})
    parts = [b',"%b":%b' % (name.encode(), piece) for name, piece in pieces.items() if isinstance(piece, bytes)]
    return head[:-1] + b"".join(parts) + b"}\n"


def _weigh(piece: Any) -> int | None:
    """Return about how many bytes a piece takes, None if it is too large to keep; a few thousand steps at most."""
    if isinstance(piece, str | bytes):
        return len(piece) if len(piece) <= _MAX_PIECE_BYTES else None
    size, nodes, todo = 0, 0, [piece]
    while todo:
        match todo.pop():
            case str() as text:
                size += len(text)
            case Mapping() as mapping:
                todo += mapping.values()
                size += sum(map(len, mapping))
            case list() | tuple() as items:
                todo += items
        nodes += 1
        if size > _MAX_PIECE_BYTES or nodes + len(todo) > _MAX_NODES:
            return None
    return size + 8 * nodes
