"""Which process belongs to which command, and ending them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from sandbox_runtime import processes
from sandbox_runtime.agent import Agent
from sandbox_runtime.processes import CommandSessions, Process, list_processes

UID = 10000
AGENT = Agent("agent", UID, UID, "/", "/", same_user=False)
SELF = Agent("me", UID, UID, "/", "/", same_user=True)


def table(*rows: tuple[int, int, int, int, int]) -> dict[int, Process]:
    """Rows of pid, ppid, session, started, uid."""
    return {pid: Process(pid, uid, "S", ppid, session, started) for pid, ppid, session, started, uid in rows}


PROCESSES = table(
    (1, 0, 1, 0, 0),  # init
    (7, 1, 1, 1, 0),  # the runtime
    (50, 7, 50, 100, UID),  # our command
    (51, 50, 50, 101, UID),  # its child
    (52, 1, 50, 102, UID),  # its orphan, same session
    (53, 51, 53, 103, UID),  # left the session, parent alive
    (54, 53, 54, 104, UID),  # and its child
    (55, 1, 55, 105, UID),  # left the session, parent gone
    (56, 55, 55, 106, UID),  # and its child
    (60, 7, 60, 110, UID),  # another command, started later
    (61, 60, 61, 111, UID),  # left its session, parent alive
    (70, 1, 40, 112, UID),  # a background process of a command that has ended
    (80, 1, 80, 90, UID),  # a stray older than our command
    (81, 80, 80, 120, UID),  # and its child
    (90, 7, 90, 130, 0),  # root's
)


@pytest.fixture
def sessions() -> CommandSessions:
    known = CommandSessions()
    for leader in (40, 50, 60):
        known.add(leader)
    return known


def pids(found: list[Process]) -> set[int]:
    return {process.pid for process in found}


def test_a_command_is_its_session_its_descendants_and_the_strays_since(sessions: CommandSessions) -> None:
    assert pids(sessions.of_command(50, AGENT, PROCESSES)) == {50, 51, 52, 53, 54, 55, 56}


def test_strays_may_be_anyones_in_same_user_mode(sessions: CommandSessions) -> None:
    assert pids(sessions.of_command(50, SELF, PROCESSES)) == {50, 51, 52, 53, 54}


def test_a_command_that_has_not_yet_given_up_its_uid_counts(sessions: CommandSessions) -> None:
    starting = PROCESSES | table((50, 7, 50, 100, 0))
    assert 50 in pids(sessions.of_command(50, AGENT, starting))


def test_a_command_that_is_gone_has_no_processes(sessions: CommandSessions) -> None:
    assert sessions.of_command(99, AGENT, PROCESSES) == []


def test_a_circle_of_parents_ends(sessions: CommandSessions) -> None:
    circle = PROCESSES | table((55, 56, 55, 105, UID))
    assert pids(sessions.of_command(50, AGENT, circle)) == {50, 51, 52, 53, 54}


def test_all_of_the_agents(sessions: CommandSessions) -> None:
    everything = {50, 51, 52, 53, 54, 55, 56, 60, 61, 70, 80, 81}
    assert pids(sessions.of_agent(AGENT, PROCESSES)) == everything
    assert pids(sessions.of_agent(SELF, PROCESSES)) == {50, 51, 52, 60, 70}


def test_sessions_that_are_gone_are_forgotten() -> None:
    known = CommandSessions()
    own = os.getsid(0)
    known.add(own)
    for session in range(5_000_000, 5_000_000 + CommandSessions._PRUNE_AT):  # over the largest pid
        known.add(session)
    assert known._known == {own, 5_000_000 + CommandSessions._PRUNE_AT - 1}


def test_proc_is_read_right() -> None:
    with subprocess.Popen(["sleep", "100"], start_new_session=True) as child:
        try:
            process = list_processes()[child.pid]
            assert (process.uid, process.ppid, process.session) == (os.getuid(), os.getpid(), child.pid)
            assert process.alive
            assert process.started >= list_processes()[os.getpid()].started
        finally:
            child.kill()


def test_a_name_with_parentheses(tmp_path: Path) -> None:
    odd = tmp_path / ") S 1 2 ("
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "100"]) as child:
        try:
            assert list_processes()[child.pid].ppid == os.getpid()
        finally:
            child.kill()


def test_ending_stops_before_it_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Process(2, UID, "R", 1, 1, 1)
    late = Process(3, UID, "R", 2, 1, 2)
    looks = iter([[child], [child, late], [child, late], [Process(3, UID, "Z", 1, 1, 2)]])
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    assert processes._end(lambda: next(looks))
    assert sent == [(2, signal.SIGSTOP), (3, signal.SIGSTOP), (2, signal.SIGKILL), (3, signal.SIGKILL)]


def test_ending_gives_up_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "END_TIMEOUT_S", 0.0)
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    assert not processes._end(lambda: [Process(2, UID, "D", 1, 1, 1)])


def test_ending_what_has_just_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([[Process(2, UID, "R", 1, 1, 1)], []])

    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    assert processes._end(lambda: next(looks))


@pytest.mark.parametrize(
    ("limit", "used", "near"),
    [("100", "89", False), ("100", "91", True), ("20", "12", False), ("20", "13", True), ("max", "5", False)],
)
@pytest.mark.parametrize("version", [0, 1])
def test_the_process_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, used: str, near: bool, version: int
) -> None:
    cgroups = (tmp_path / "v2", tmp_path / "v1")
    monkeypatch.setattr(processes, "_CGROUPS", cgroups)
    assert not processes.process_limit_near()
    cgroups[version].mkdir()
    (cgroups[version] / "pids.max").write_text(limit + "\n")
    (cgroups[version] / "pids.current").write_text(used + "\n")
    assert processes.process_limit_near() is near
