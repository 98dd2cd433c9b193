"""The agent's processes: which there are, which command each belongs to, and how to end them for certain.

1. Ours are told by their uid, a command's by the session it was started in. A process that left the session (``setsid``) is
   found through its parents; one whose parents are gone as well was started after its command and belongs to no other.
2. Killing one by one loses against a fork storm. So all are stopped first, until a look finds no new one (a stopped process
   doesn't fork, and the container's process limit bounds how many there can be), and only then killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from .agent import Agent

END_TIMEOUT_S = 10.0
"""How long ending processes may take; far more than hundreds of them need on a busy machine."""

_PAUSE_S = 0.005
_CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids"))  # version 2, version 1


class Process(NamedTuple):
    """A process as ``/proc`` shows it; ``started`` is in clock ticks since boot."""

    pid: int
    uid: int
    state: str
    ppid: int
    session: int
    started: int

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def list_processes() -> dict[int, Process]:
    """Return every process of the container by pid; those that end meanwhile are left out."""
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            uid = (
                entry.stat().st_uid
            )  # of the directory itself: the effective uid, also of a process that hides the rest
            stat = Path(entry.path, "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The name, in parentheses, may hold anything, parentheses and spaces too.
        fields = stat[stat.rindex(b")") + 2 :].split()
        pid = int(entry.name)
        found[pid] = Process(pid, uid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))
    return found


class CommandSessions:
    """The sessions of the commands that were started, those that have ended but left processes included."""

    _PRUNE_AT = 256

    def __init__(self) -> None:
        self._known: set[int] = set()

    def add(self, session: int) -> None:
        """Remember the session of a command just started."""
        if len(self._known) >= self._PRUNE_AT:
            self._known &= {process.session for process in list_processes().values()}
        self._known.add(session)

    def of_command(self, leader: int, agent: Agent, processes: dict[int, Process]) -> list[Process]:
        """Return the processes that belong to the command whose first process is ``leader`` (rule 1)."""
        if leader not in processes:
            return []
        started = processes[leader].started

        def belongs(process: Process) -> bool:
            for _ in processes:  # a parent that is not older, from a reused pid, must not make this endless
                if process.session == leader:
                    return True
                if process.uid != agent.uid or process.session in self._known or process.started < started:
                    return False
                if process.ppid not in processes or processes[process.ppid].uid != agent.uid:
                    # Its parents are gone. Where the agent is the author's own user, it may be anything of theirs.
                    return not agent.same_user
                process = processes[process.ppid]
            return False

        return [process for process in processes.values() if belongs(process)]

    def of_agent(self, agent: Agent, processes: dict[int, Process]) -> list[Process]:
        """Return all of the agent's processes; in same-user mode only those still in a command's session."""
        return [
            process
            for process in processes.values()
            if process.session in self._known or (process.uid == agent.uid and not agent.same_user)
        ]


sessions = CommandSessions()


def end_command(leader: int, agent: Agent) -> bool:
    """End every process of a command that was started with ``leader`` as its session's first process; see ``_end``."""
    return _end(lambda: sessions.of_command(leader, agent, list_processes()))


def end_all(agent: Agent) -> bool:
    """End every process of the agent; see ``_end``."""
    return _end(lambda: sessions.of_agent(agent, list_processes()))


def _end(select: Callable[[], Iterable[Process]]) -> bool:
    """End the processes that ``select`` finds, until it finds none (rule 2); False if some are left after the time limit."""
    deadline = time.monotonic() + END_TIMEOUT_S
    stopped: set[tuple[int, int]] = set()
    while True:
        targets = [process for process in select() if process.alive]
        if not targets:
            return True
        if time.monotonic() > deadline:
            return False
        new = [process for process in targets if (process.pid, process.started) not in stopped]
        for process in new or targets:
            try:
                os.kill(process.pid, signal.SIGSTOP if new else signal.SIGKILL)
            except ProcessLookupError:
                continue
        stopped.update((process.pid, process.started) for process in new)
        if not new:
            time.sleep(_PAUSE_S)


def process_limit_near() -> bool:
    """True if the container's process limit leaves too little room for another command. False where none can be read."""
    for cgroup in _CGROUPS:
        try:
            limit = int((cgroup / "pids.max").read_text())
            used = int((cgroup / "pids.current").read_text())
        except (OSError, ValueError):  # another version's layout, or the limit is "max"
            continue
        return limit - used < max(8, limit // 10)
    return False
