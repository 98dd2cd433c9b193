"""What all channels share when they take in bytes: a bound on memory, and a process for frames that are heavy to read.

1. A frame may be large, and a runtime may leave it half sent. What all of them hold together is bounded; when it is too much
   the runtime that has kept the host waiting longest loses its channel.
2. Heavy frames are read by one process, one at a time, which is started for the first and ended when it had nothing to do for
   a while. It has a lower priority and a bound on its memory; what comes back is checked JSON.
3. There and back they go through a file in memory, by system calls of other threads: pickled, a large one would keep the event
   loop from running for as long as it takes to copy it, several times over.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Hashable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import anyio.to_thread

from host.answers import CheckedJSON, Verdict
from sandbox_runtime.frames import DEFAULT_MAX_FRAME_BYTES, FrameError

_READER_BYTES = 2 * 1024**3
"""The reading process's address space: a frame of the largest size, its values, and the text made from them, with room."""

_IDLE_S = 10.0
_NICE = 5
_PR_SET_PDEATHSIG = 1


class Intake:
    """One for all channels of a host. Nothing runs until it is needed; ``close()`` ends what does."""

    def __init__(self, *, max_held_bytes: int = 4 * DEFAULT_MAX_FRAME_BYTES) -> None:
        self.max_held_bytes = max_held_bytes
        self.held_bytes = 0
        """What is held of frames that are not finished."""
        self._held: dict[Hashable, tuple[int, Callable[[], None]]] = {}  # the longest waiting first
        self._reader: ProcessPoolExecutor | None = None
        self._readings: set[asyncio.Task[Verdict]] = set()
        self._idle: asyncio.TimerHandle | None = None

    def hold(self, key: Hashable, size: int, evict: Callable[[], None]) -> None:
        """Say that ``key`` now holds ``size`` bytes; ``evict`` ends it, if it comes to that."""
        before = self._held.pop(key, None) if size == 0 else self._held.get(key)
        self.held_bytes += size - (before[0] if before else 0)
        if size > 0:
            self._held[key] = (size, evict)
        while self.held_bytes > self.max_held_bytes:
            longest_waiting = next(iter(self._held))
            size, evict = self._held.pop(longest_waiting)
            self.held_bytes -= size
            evict()

    def check(
        self, body: bytes | bytearray, judge: Callable[[bytes], Verdict], done: Callable[[Verdict | Exception], None]
    ) -> None:
        """Have ``judge``, which must be one that can be pickled, look at ``body`` in the reading process.

        ``done`` gets what it returned or raised, in the event loop.
        """
        reading = asyncio.get_running_loop().create_task(self._check(body, judge))
        self._readings.add(reading)
        reading.add_done_callback(lambda _: self._checked(reading, done))

    async def _check(self, body: bytes | bytearray, judge: Callable[[bytes], Verdict]) -> Verdict:
        file = os.memfd_create("frame")
        try:
            await anyio.to_thread.run_sync(_write_all, file, body)
            del body
            try:
                reading = self._open().submit(_check_file, file, judge)
            except BrokenProcessPool:  # it died since it was last used
                self.close()
                reading = self._open().submit(_check_file, file, judge)
            verdict, size = await asyncio.wrap_future(reading)
            if size is None:
                return verdict
            return replace(verdict, answer=CheckedJSON(await anyio.to_thread.run_sync(os.pread, file, size, 0)))
        finally:
            os.close(file)

    def _checked(self, reading: asyncio.Task[Verdict], done: Callable[[Verdict | Exception], None]) -> None:
        self._readings.discard(reading)
        result: Verdict | BaseException
        if reading.cancelled():
            result = FrameError("the frame was not read: the host is closing")
        else:
            result = reading.exception() or reading.result()
        if isinstance(result, MemoryError | BrokenProcessPool):
            self.close()
            result = FrameError("a frame that is too heavy to be read")
        elif not self._readings and self._reader is not None:
            self._idle = asyncio.get_running_loop().call_later(_IDLE_S, self.close)
        assert not isinstance(result, BaseException) or isinstance(result, Exception)
        done(result)

    def close(self) -> None:
        """End the reading process, if it runs."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)
            self._reader = None

    def _open(self) -> ProcessPoolExecutor:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._reader is None:
            # spawn: a fork would share this process's memory and locks
            self._reader = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_prepare_reader)
        return self._reader


def _write_all(file: int, data: bytes | bytearray) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _check_file(file: int, judge: Callable[[bytes], Verdict]) -> tuple[Verdict, int | None]:
    """In the reading process: check what is in the host's ``file``; return the answer's size in place of it, written there."""
    with open(f"/proc/{os.getppid()}/fd/{file}", "r+b", buffering=0) as frame:
        verdict = judge(frame.readall())
        if verdict.answer is None:
            return verdict, None
        frame.seek(0)
        _write_all(frame.fileno(), verdict.answer.json)
        return replace(verdict, answer=None), len(verdict.answer.json)


def _prepare_reader() -> None:
    with contextlib.suppress(OSError, AttributeError):  # where it isn't known: one more process that init ends
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's to handle
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    resource.setrlimit(resource.RLIMIT_AS, (_READER_BYTES, _READER_BYTES))
