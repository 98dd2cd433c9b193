"""What sessions' containers wrote, for a while after they are gone: the end of it, in files of the state directory.

The engine writes a container's output to a file of its own. That is opened before the container is removed and read afterwards,
so that the last words are in it and a removal takes no longer; where it can't be opened (an engine elsewhere), the engine is
asked beforehand, with a deadline. The text was written by whoever was in the container: it is cut to a size and kept as JSON
strings, and nothing in it is taken for anything but text. It may hold secrets that an environment printed, so only the host's
own user may read the files.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import anyio
import anyio.to_thread
import structlog

from host.engine import Engine, EngineError
from host.errors import StartupError
from host.settings import Settings
from host.state import Assignment

log = structlog.get_logger()

_DIRECTORY = "logs"
_ASK_S = 2.0
_SAVE_S = 5.0
_LINES = 2000
"""Of those that the engine is asked for."""

_READ_TIMES = 4
"""How much is read for one byte that is kept: the engine's file has more around each line."""

_MOST_FILES = 10_000
_MAX_HEAD_BYTES = 4096


class _File(NamedTuple):  # there are thousands
    name: str
    size: int
    ended_at: float


@dataclass(frozen=True)
class KeptLog:
    """One session's. ``ended_at``: seconds since the epoch."""

    session: str
    ended_at: float
    path: Path

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield (time, text) of each line. Raises OSError if the file is gone meanwhile."""
        with self.path.open("rb") as file:
            next(file)
            for line in file:
                entry = json.loads(line)
                yield entry["time"], entry["text"]


class KeptLogs:
    """The logs that one host keeps."""

    def __init__(self, engine: Engine, state_dir: Path, settings: Settings) -> None:
        self._engine = engine
        self._on = settings.log_keep == "on"
        self._each = settings.log_keep_bytes
        self._total = settings.log_keep_total
        self._age_s = settings.log_keep_age_s
        self._directory = state_dir / _DIRECTORY
        self._files = deque(_files(self._directory))
        self._held_bytes = sum(file.size for file in self._files)
        self._thread = anyio.CapacityLimiter(2)
        self.prune()

    @asynccontextmanager
    async def keeping(self, container: str, sandbox_id: str, assignment: Assignment | None) -> AsyncIterator[None]:
        """Remove a container in this block: what it wrote is kept, if it was a session's. Never raises by itself."""
        if not self._on or assignment is None:
            yield
            return
        with ExitStack() as stack:
            sources = self._open(container, stack)
            asked = b"" if sources else await self._ask(container)
            try:
                yield
            finally:
                with anyio.move_on_after(_SAVE_S, shield=True):
                    await anyio.to_thread.run_sync(
                        self._save, sandbox_id, assignment, sources, asked, limiter=self._thread
                    )
                self.prune()

    def prune(self) -> None:
        """Remove what is too old, and the oldest of what is too much."""
        oldest = time.time() - self._age_s
        while self._files and (
            self._files[0].ended_at < oldest or self._held_bytes > self._total or len(self._files) > _MOST_FILES
        ):
            file = self._files.popleft()
            self._held_bytes -= file.size
            with contextlib.suppress(OSError):  # somebody has removed it, or the directory
                (self._directory / file.name).unlink()

    def _open(self, container: str, stack: ExitStack) -> list[BinaryIO]:
        """Open the files that the engine writes, the older first; none if they are not here or not ours to read."""
        opened: list[BinaryIO] = []
        for path in self._engine.log_files(container):
            with contextlib.suppress(OSError):  # the older is there only if there was much
                opened.append(stack.enter_context(path.open("rb")))
        return opened

    async def _ask(self, container: str) -> bytes:
        output = b""
        with contextlib.suppress(EngineError), anyio.move_on_after(_ASK_S):
            output = await self._engine.log(container, lines=_LINES)
        return output

    def _save(self, sandbox_id: str, assignment: Assignment, sources: list[BinaryIO], asked: bytes) -> None:
        try:
            entries = _of_files(sources, self._each * _READ_TIMES) if sources else _of_answer(asked)
            kept = _end(entries, self._each)
            if not kept:
                return
            ended_at = time.time()
            head = {"session": assignment.session, "sandbox": sandbox_id, "ended_at": ended_at}
            content = json.dumps(head).encode() + b"\n" + b"".join(kept)
            self._directory.mkdir(mode=0o700, exist_ok=True)
            path = self._directory / f"{int(ended_at * 1000):014d}-{sandbox_id}"
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
            self._files.append(_File(path.name, len(content), ended_at))
            self._held_bytes += len(content)
        except OSError as exc:
            log.warning("log_not_kept", error=exc.strerror)


def find(state_dir: Path, word: str) -> KeptLog | None:
    """Return the kept log of the session whose id, or the beginning of one that is like no other, is given; the last of it.

    Raises:
        StartupError: more than one session's id begins so.
    """
    found: dict[str, KeptLog] = {}
    with contextlib.suppress(OSError):
        for file in _files(state_dir / _DIRECTORY):
            path = state_dir / _DIRECTORY / file.name
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError), path.open("rb") as content:
                head = json.loads(content.readline(_MAX_HEAD_BYTES))
                if head["session"].startswith(word) or head["sandbox"] == word:
                    found[head["session"]] = KeptLog(head["session"], file.ended_at, path)
    if word in found:
        return found[word]
    if len(found) > 1:
        raise StartupError(
            f"{word!r} begins the ids of {len(found)} sessions that ended: give more of the one that you mean"
        )
    return next(iter(found.values()), None)


def _files(directory: Path) -> list[_File]:
    """Return what is kept in a directory, the oldest first; whatever else is there is left alone."""
    files = []
    for path in sorted(directory.glob("*-*")):
        ended_ms = path.name.partition("-")[0]
        with contextlib.suppress(OSError):
            if ended_ms.isdecimal() and path.is_file():
                files.append(_File(path.name, path.stat().st_size, int(ended_ms) / 1000))
    return files


def _of_files(sources: list[BinaryIO], most_bytes: int) -> Iterator[tuple[str, str]]:
    """Yield (time, text) of the last lines in the engine's files."""
    raw = b""
    for source in reversed(sources):
        size = os.fstat(source.fileno()).st_size
        source.seek(max(0, size - (most_bytes - len(raw))))
        raw = source.read(most_bytes - len(raw)) + raw
        if len(raw) >= most_bytes:
            raw = raw.partition(b"\n")[2]  # it begins somewhere in a line
            break
    begun: tuple[str, str] | None = None
    for line in raw.split(b"\n"):
        try:
            entry = json.loads(line)
            at, text = str(entry["time"]), str(entry["log"])
        except (ValueError, KeyError, TypeError):  # not written to its end, or the engine writes in another way
            continue
        if begun is not None:  # the engine cuts long lines
            at, text = begun[0], begun[1] + text
        begun = None
        if text.endswith("\n"):
            yield at, text[:-1]
        else:
            begun = (at, text)
    if begun is not None:
        yield begun


def _of_answer(output: bytes) -> Iterator[tuple[str, str]]:
    for line in output.decode(errors="replace").removesuffix("\n").split("\n"):
        at, _, text = line.partition(" ")
        if at:
            yield at, text


def _end(entries: Iterator[tuple[str, str]], most_bytes: int) -> list[bytes]:
    """Return the last of these as lines of JSON, which are no more bytes than that together."""
    kept: deque[bytes] = deque()
    size = 0
    for at, text in entries:
        # A character takes six bytes at most: what is over the limit even so is not worth being encoded.
        line = json.dumps({"time": at[:64], "text": text[-most_bytes:]}).encode() + b"\n"
        if len(line) > most_bytes:
            line = json.dumps({"time": at[:64], "text": text[-most_bytes // 12 :]}).encode() + b"\n"
        kept.append(line)
        size += len(line)
        while size > most_bytes:
            size -= len(kept.popleft())
    return list(kept)
