"""Memory that was used once is given back.

A host takes in messages of many megabytes now and then. glibc would learn from them to keep such memory for the next one, in an
arena for each thread, and the process would stay as large as it ever was: after an hour of large results, several times its size.
"""

from __future__ import annotations

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h

_LARGE_BYTES = 1024 * 1024
"""What is larger is mapped by itself and unmapped when it is freed; a fixed threshold also ends glibc's moving of it."""

_ARENAS = 2


def give_back_memory() -> None:
    """Set the C library's allocator to do so; without effect where it is another one than glibc's."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)
