"""What the process does once it has started and has a moment: for those that wait for their session, and to be small."""

from __future__ import annotations

import contextlib
import ctypes
import gc

from .data_types import complete_models


def settle() -> None:
    """Prepare for calls; give back the memory that only the start needed, and leave what stays out of later collections.

    Takes some 20 ms, once.
    """
    complete_models()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
