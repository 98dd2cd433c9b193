"""Memory that was used once is given back.

A host takes in messages of many megabytes now and then. glibc would learn from them to keep such memory for the next one, in
an arena for each thread, and the process would stay as large as it ever was.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h

_LARGE_BYTES = 320 * 1024
"""What is larger is mapped by itself and unmapped when it is freed; a fixed threshold also ends glibc's moving of it."""

_ARENAS = 2


def give_back_memory() -> None:
    """Return what is free now to the kernel; without effect where the C library is another one than glibc."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_no_memory() -> None:
    """Set the allocator to keep little, for the life of the process."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)
