"""Who serves all may not wait for one, nor die for one: the host before containers, where processors or memory are short."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_NICE = -5


def go_before_containers() -> None:
    """Wait for no container, if this user may ask for that."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)  # of this thread, and so of those that it will start


def die_no_sooner_than_others() -> None:
    """Be chosen by the kernel, where memory runs out, as any process is: who started this one may have put it first."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
