"""The agent against the environment: using up the container's memory so that the kernel kills the runtime for it.

The kernel ends the process that has the most, those with a high ``oom_score_adj`` first. So the attacks take memory that is
nobody's, or little for each of many, after they have done what they can to look harmless; and once all of the agent's
processes are ended, what they leave must be gone with them. Each is first done in a container without defences, where it
kills the runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.attacks.board import AGENT, IN_FULL, attack
from tests.attacks.targets import DONE, Served, Weakened

ROOM_MB = 60
"""Of the container's 384 MiB, when the agent's processes are gone."""

LOOK_HARMLESS = """
import ctypes, os
for name, value in (("oom_score_adj", "0"), ("oom_adj", "0")):
    try:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(value)
    except OSError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
os.chdir("/tmp")
"""
FILL_NOBODYS_MEMORY = """
fd = os.memfd_create("x")
while True:
    os.write(fd, bytes(1 << 20))
"""
LEAVE_THE_SESSION = """
for _ in range(2):
    if os.fork():
        os._exit(0)
    os.setsid()
for fd in range(3):
    os.close(fd)
"""
UNTIL_IT_IS_GONE = """
while ls -l /proc/[0-9]*/exe 2>/dev/null | grep -q python; do sleep 0.1; done
"""


def python(*parts: str) -> str:
    program = LOOK_HARMLESS + "".join(parts)
    return f"python3 -I -S - <<'EOF'\n{program}\nEOF"


class Hunger(NamedTuple):
    """``command`` uses up what there is; ``timeout_s`` is its time limit. ``shown`` is False where a container without defences
    has fewer places to fill."""

    id: str
    what: str
    command: str
    timeout_s: float = 10
    shown: bool = True


HUNGERS = [
    Hunger(
        "B19",
        "have the runtime killed for memory: one that is small, with memory of nobody's",
        python(FILL_NOBODYS_MEMORY),
    ),
    Hunger(
        "B20",
        "the same with many small processes",
        python("for _ in range(60):\n    if os.fork() == 0:\n        break\n", FILL_NOBODYS_MEMORY),
    ),
    Hunger(
        "B21",
        "the same from a process that left the command",
        python(LEAVE_THE_SESSION, FILL_NOBODYS_MEMORY) + UNTIL_IT_IS_GONE,
    ),
    Hunger(
        "B22",
        "the same with a parent that shares its memory and can't be killed before its child",
        python("if libc.vfork() == 0:\n    pass\n", FILL_NOBODYS_MEMORY),
    ),
    Hunger(
        "B23",
        "the same with shared memory that outlives who made it",
        python(
            """
while True:
    if os.fork() == 0:
        segment = libc.shmget(0, 8 << 20, 0o1600)
        libc.shmat.restype = ctypes.c_void_p
        place = libc.shmat(segment, None, 0)
        ctypes.memset(place, 1, 8 << 20)
        os._exit(0)
    os.wait()
"""
        ),
    ),
    Hunger(
        "B24",
        "the same with messages that nobody takes",
        python(
            """
message = ctypes.create_string_buffer(8 + 8000)
message[0] = 1
while (queue := libc.msgget(0, 0o1600)) >= 0:
    while libc.msgsnd(queue, message, 8000, 0o4000) == 0:
        pass
"""
        ),
    ),
    Hunger(
        "B25",
        "the same with semaphores",
        python("while libc.semget(0, 32000, 0o1600) >= 0:\n    pass\n"),
    ),
    Hunger(
        "B26",
        "the same with empty files in shared memory",
        python(
            """
os.mkdir("/dev/shm/many")
os.chdir("/dev/shm/many")
for n in range(2_000_000):
    try:
        os.close(os.open(str(n).rjust(200, "x"), os.O_CREAT | os.O_WRONLY))
    except OSError:
        break
"""
        ),
        25,
    ),
    Hunger(
        "B27",
        "the same with all files, full and empty, that it can have in memory",
        r"""
for place in /tmp /var/tmp /workspace /home/agent /dev/shm; do
    [ $(stat -f -c %T $place) = tmpfs ] || continue
    python3 -I -S -c 'import os, sys
os.chdir(sys.argv[1])
try:
    for n in range(1_000_000):
        os.close(os.open(str(n).rjust(250, "x"), os.O_CREAT | os.O_WRONLY))
except OSError:
    pass' $place
    cat /dev/zero >$place/$(ls -f $place | tail -n 1)
done 2>/dev/null
""",
        25,
        shown=False,
    ),
]


@pytest.mark.parametrize(
    "hunger", [pytest.param(hunger, marks=attack(hunger.id, AGENT, hunger.what), id=hunger.id) for hunger in HUNGERS]
)
async def test_hunger(
    hunger: Hunger, vault_image: str, profile: str, served: Served, record_property: Callable[[str, object], None]
) -> None:
    if hunger.shown and profile == IN_FULL[0]:
        async with Weakened.open(vault_image) as weakened:
            await weakened.run(hunger.command, hunger.timeout_s)
            async with asyncio.timeout(20):  # else it can't succeed anywhere
                while await weakened.alive():  # noqa: ASYNC110 - nothing announces it
                    await asyncio.sleep(0.1)
        record_property("shown", True)
    output = await served.run(hunger.command, hunger.timeout_s)
    assert await served.alive(), output
    await served.judged("judge")  # which ends the agent's processes first
    assert await served.output("keep", megabytes=ROOM_MB) is not None, "what the agent left takes the grader's room"
    assert "still here" in await served.run("echo still here")
    assert (await served.run("cat /proc/self/oom_score_adj")).strip() == "1000"
    assert DONE not in await served.run(f"echo 999 >/proc/self/oom_score_adj && echo {DONE}")
