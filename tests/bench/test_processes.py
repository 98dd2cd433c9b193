"""What is read of the kernel, on a process whose use is known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench import processes

_HOLDS = 40_000_000
_PROGRAM = f"""
import os, time
held = b"x" * {_HOLDS}
if os.fork() == 0:
    time.sleep(60)
begin = time.process_time()
while time.process_time() - begin < 0.2:
    pass
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    """A process that holds memory, shares it with a child, and has used 0.2 s of CPU time."""
    command = [sys.executable, "-c", _PROGRAM, "a word", "--option"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        for each in reversed(processes.tree(process.pid)):
            subprocess.run(["kill", "-9", str(each)], check=True)


def test_memory_is_shared_out_among_those_that_share_it(pid: int) -> None:
    parent, child = processes.tree(pid)
    assert processes.rss_bytes(parent) > _HOLDS
    assert processes.pss_bytes(parent) < _HOLDS
    assert processes.total_pss_bytes([parent, child]) > _HOLDS


def test_cpu_time(pid: int) -> None:
    assert 0.19 <= processes.total_cpu_s(processes.tree(pid)) < 5


def test_what_a_process_is(pid: int) -> None:
    assert processes.arguments(pid)[3:5] == ["a word", "--option"]
    assert pid in processes.named("python")
    assert pid not in processes.named("dockerd")


def test_a_process_that_is_gone() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    gone = process.pid
    assert processes.pss_bytes(gone) == processes.rss_bytes(gone) == processes.cpu_s(gone) == 0
    assert processes.arguments(gone) == []
    assert processes.tree(gone) == [gone]
