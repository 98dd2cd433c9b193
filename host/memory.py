"""Memory that was used once is given back.

A host takes in messages of many megabytes now and then. glibc would learn from them to keep such memory for the next one, in
an arena for each thread, and the process would stay as large as it ever was.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h

_LARGE_BYTES = 4 * 1024 * 1024
"""What is larger is mapped by itself and unmapped when it is freed. Not less: a result of a MiB is copied several times, and to
map, clear and unmap each copy takes longer than all else that is done with it. ``give_back_memory`` gives back what stays."""

_ARENAS = 2

_SHORT = 0.1
"""Of the machine's memory; below that the kernel begins to look for what it can take away."""


def keep_no_memory() -> None:
    """Set interpreter and allocator to keep little, for the life of the process; called when everything is loaded."""
    gc.collect()
    gc.freeze()  # what is there now stays: looking through it each time would take tens of milliseconds
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def give_back_memory() -> None:
    """Free what only refers to itself, and return what is free to the kernel; takes a few milliseconds.

    Bodies and messages are few and large, so the interpreter, which counts objects, would not look for them for hours.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def machine_memory() -> tuple[int, int] | None:
    """Return how many bytes of this machine's memory are available, and how many there are; None where that can't be told."""
    try:
        text = Path("/proc/meminfo").read_text()
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()}
        return sizes["MemAvailable"] * 1024, sizes["MemTotal"] * 1024
    except (OSError, LookupError, ValueError):
        return None


def memory_is_short() -> bool:
    """Tell whether little of this machine's memory is left. False where that can't be told."""
    memory = machine_memory()
    return memory is not None and memory[0] < _SHORT * memory[1]
