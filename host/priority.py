"""Who serves all may not wait for one: where processors are short, the host goes before containers."""

from __future__ import annotations

import contextlib
import os

_NICE = -5


def go_before_containers() -> None:
    """Wait for no container, if this user may ask for that."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)  # of this thread, and so of those that it will start
