"""The agent against the environment: reading what is not its own, and becoming more than it is.

Each is a command of the agent's that prints its loot. First it is run where nothing stands in its way, and must succeed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pytest
import pytest_asyncio

from tests.attacks.board import AGENT, attack
from tests.attacks.targets import Served, Weakened
from tests.docker.harness import RunningHost

pytestmark = pytest.mark.asyncio(loop_scope="module")

# The runtime's process: not the container's init, which has its name in its arguments too.
RUNTIME = """
R=$(for p in /proc/[0-9]*; do
    tr '\\0' ' ' <"$p/cmdline" 2>/dev/null | grep -q -- '-m [s]andbox_runtime' && echo "${p#/proc/}"
done | grep -vx 1 | head -n 1); [ -n "$R" ] || R=1
"""


class Theft(NamedTuple):
    """``loot`` is what the output holds if it succeeds; ``shown`` is False where this machine would let nobody do it."""

    id: str
    what: str
    loot: str
    command: str
    shown: bool = True


def python(program: str) -> str:
    """Return a command that runs a program, which is given the runtime's pid."""
    return f"{RUNTIME}\npython3 - $R <<'EOF'\nimport ctypes, os, re, socket, sys\nR = int(sys.argv[1])\n{program}\nEOF"


# The process that starts the agent's commands. A command without one has nothing to try it on.
SPAWNER = """
R=$(for p in /proc/[0-9]*; do tr '\\0' ' ' <"$p/cmdline" | grep -q 'import [s]pawner' && echo "${p#/proc/}"; done 2>/dev/null)
[ -n "$R" ] || echo 'ATTACK-DONE [heap] socket:'
"""

SYSCALL = "libc = ctypes.CDLL(None, use_errno=True)"

THEFTS = [
    Theft("A01", "read the runtime's variables", "ORS_RUNTIME_RECONNECT_S", f"{RUNTIME} cat /proc/$R/environ"),
    Theft(
        "A02",
        "search the runtime's memory",
        "secret",
        python(
            """
for line in open(f"/proc/{R}/maps"):
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    if " rw" not in line or end - start > 1 << 28:
        continue
    try:
        with open(f"/proc/{R}/mem", "rb") as memory:
            memory.seek(start)
            for found in re.findall(rb"secret-[0-9a-f]{32}", memory.read(end - start)):
                print(found.decode())
    except OSError:
        pass
"""
        ),
    ),
    Theft("A03", "see the layout of the runtime's memory", "[heap]", f"{RUNTIME} cat /proc/$R/maps"),
    Theft("A04", "list the runtime's descriptors", "socket:", f"{RUNTIME} ls -l /proc/$R/fd"),
    Theft(
        "A05",
        "read a file through the runtime's descriptor",
        "secret",
        f"{RUNTIME} for f in /proc/$R/fd/*; do [ -f $f ] && timeout 1 cat $f; done",
    ),
    Theft("A06", "go through the runtime's root to its code", "grader", f"{RUNTIME} cat /proc/$R/root/opt/env/env.py"),
    Theft("A07", "see the runtime's working directory", "/opt/env", f"{RUNTIME} readlink /proc/$R/cwd"),
    Theft("A08", "see which program the runtime is", "python", f"{RUNTIME} readlink /proc/$R/exe"),
    Theft(
        "A09",
        "attach a debugger to the runtime",
        "done",
        python(
            f"""
{SYSCALL}
if libc.ptrace(16, R, 0, 0) == 0:
    os.waitpid(R, 0x40000000)
    libc.ptrace(17, R, 0, 0)
    print("ATTACK-DONE")
"""
        ),
    ),
    Theft(
        "A10",
        "read the runtime's memory by system call",
        "done",
        python(
            f"""
{SYSCALL}
class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
try:
    start = int(open(f"/proc/{{R}}/maps").readline().split("-")[0], 16)
except OSError:
    start = 0x400000
here = ctypes.create_string_buffer(16)
if libc.process_vm_readv(R, ctypes.byref(iovec(ctypes.addressof(here), 16)), 1,
                         ctypes.byref(iovec(start, 16)), 1, 0) > 0:
    print("ATTACK-DONE")
"""
        ),
    ),
    Theft(
        "A11",
        "take a copy of one of the runtime's descriptors",
        "done",
        python(
            f"""
{SYSCALL}
pidfd = libc.syscall(434, R, 0)
if any(libc.syscall(438, pidfd, fd, 0) >= 0 for fd in range(3, 20)):
    print("ATTACK-DONE")
"""
        ),
    ),
    Theft("A12", "turn core dumps on", "done", "ulimit -c unlimited && echo ATTACK-DONE", shown=False),
    Theft("A13", "read shared memory of the environment", "secret", "cat /dev/shm/*"),
    Theft("A14", "read temporary files of the environment", "secret", "cat /tmp/vault-*"),
    Theft("A15", "inherit the environment's variables", "secret", "env"),
    Theft(
        "A16",
        "inherit the environment's descriptors",
        "secret",
        "for f in $(seq 3 40); do timeout 1 cat <&$f; done 2>/dev/null",
    ),
    Theft("A17", "read the grader's source", "grader", "cat /opt/env/*"),
    Theft("A18", "read the grader's compiled code", "grader", "cat /opt/env/__pycache__/* | tr -c '[:print:]' '\\n'"),
    Theft(
        "A19",
        "import the grader",
        "grader",
        "cd /tmp && python3 -c 'import sys; sys.path.insert(0, \"/opt/env\"); import env; print(env.GRADER_MARK)'",
    ),
    Theft("A20", "list the environment's code", "env.py", "ls /opt/env"),
    Theft("A21", "read the environment's private directory", "answer", "cat /run/private/* /tmp/private-*/*"),
    Theft("A22", "read the runtime's token", "token", "cat /run/ors/token"),
    Theft("A23", "write in the environment's log", "done", f"{RUNTIME} echo forged >/proc/$R/fd/1 && echo ATTACK-DONE"),
    Theft(
        "A24",
        "take priority from the runtime",
        "done",
        f"{RUNTIME} renice -n 7 -p $R >/dev/null && echo ATTACK-DONE",
    ),
    Theft("A25", "take priority for itself", "done", "[ $(nice -n -5 nice) -lt 0 ] && echo ATTACK-DONE"),
    Theft("A26", "run in real time", "done", "chrt -f 10 true && echo ATTACK-DONE", shown=False),
    Theft(
        "A27",
        "have the kernel spare it when memory is short",
        "done",
        "echo -1000 >/proc/self/oom_score_adj && echo ATTACK-DONE",
        shown=False,
    ),
    Theft(
        "A28",
        "have every program load its library",
        "done",
        "touch /etc/ld.so.preload && echo ATTACK-DONE && rm /etc/ld.so.preload",
    ),
    Theft(
        "A29",
        "put a module where every Python looks",
        "done",
        "python3 -c 'import sys, os; print(\"ATTACK-DONE\" if any(os.access(p, os.W_OK) for p in sys.path[1:]) else 0)'",
    ),
    Theft("A30", "replace a program", "done", "[ -w /bin/bash -o -w /usr/bin -o -w /usr/bin/env ] && echo ATTACK-DONE"),
    Theft(
        "A31",
        "write anywhere but in its own places",
        "done",
        r"""find / -xdev \( -path /workspace -o -path /home/agent -o -path /proc -o -path /sys -o -path /dev \
                -o -path /tmp -o -path /var/tmp -o -path /run/lock \) -prune -o \( -type f -o -type d \) -writable -print \
            2>/dev/null | grep -q . && echo ATTACK-DONE""",
    ),
    Theft("A32", "become root", "done", "python3 -c 'import os; os.setuid(0); os.setgid(0); print(\"ATTACK-DONE\")'"),
    Theft("A33", "become somebody else", "done", "setpriv --reuid=1234 --clear-groups true && echo ATTACK-DONE"),
    Theft("A34", "make a user namespace", "done", "unshare --user --map-root-user true && echo ATTACK-DONE"),
    Theft("A35", "mount a file system", "done", "unshare --mount true && echo ATTACK-DONE"),
    Theft(
        "A36",
        "change the limits of the runtime",
        "done",
        f"{RUNTIME} prlimit --pid $R --nofile=8192:8192 && echo ATTACK-DONE",
    ),
    Theft(
        "A37", "listen to the network as raw packets", "done", python('socket.socket(17, 3, 768); print("ATTACK-DONE")')
    ),
]


OF_THE_SPAWNER = {
    "A02": "A38",
    "A03": "A39",
    "A04": "A40",
    "A09": "A41",
    "A10": "A42",
    "A11": "A43",
    "A24": "A44",
    "A36": "A45",
}
THEFTS += [
    Theft(OF_THE_SPAWNER[theft.id], theft.what.replace("runtime", "spawner"), theft.loot, command, shown=False)
    for theft in THEFTS
    if theft.id in OF_THE_SPAWNER and (command := theft.command.replace(RUNTIME, SPAWNER)) != theft.command
]
THEFTS += [
    Theft(
        "A46",
        "end, stop or raise the score of the spawner",
        "done",
        f"{SPAWNER} kill -KILL $R && echo ATTACK-DONE; kill -STOP $R && echo ATTACK-DONE; "
        "echo 1000 >/proc/$R/oom_score_adj && echo ATTACK-DONE",
        shown=False,
    )
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def victim(vault_host: RunningHost) -> AsyncIterator[Served]:
    """One session for all."""
    async with vault_host.client() as client, Served.open(vault_host, client) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undefended(vault_image: str) -> AsyncIterator[Weakened]:
    """One container without defences for all."""
    async with Weakened.open(vault_image) as weakened:
        yield weakened


@pytest.mark.parametrize(
    "theft", [pytest.param(theft, marks=attack(theft.id, AGENT, theft.what), id=theft.id) for theft in THEFTS]
)
async def test_theft(
    theft: Theft, undefended: Weakened, victim: Served, record_property: Callable[[str, object], None]
) -> None:
    if theft.shown:
        easily = await undefended.run(theft.command)
        assert undefended.worth(theft.loot) in easily, f"this attack can't succeed anywhere: {easily}"
        record_property("shown", True)
    output = await victim.run(theft.command)
    for loot in (theft.loot, "secret", "answer", "token", "grader"):
        assert victim.worth(loot) not in output
    assert await victim.alive()
