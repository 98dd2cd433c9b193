"""The spawner: it starts commands as they are to be, outlives nobody, and is replaced when it must be."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_runtime import processes, shell, spawner, spawning
from sandbox_runtime.agent import Agent
from sandbox_runtime.spawning import Spawned, the_spawner

PRIVATE_KB = 4096
_RUNTIME = """
import os
from sandbox_runtime import shell
shell.run_sync(f"echo $PPID $$ >/proc/{os.getpid()}/fd/1; sleep 1000")
"""
CONFINED = pytest.mark.skipif(not spawner.can_keep_off_proc(), reason="this kernel has no Landlock")


@pytest.fixture
def own_spawner() -> Iterator[int]:
    """The pid of a spawner that was started for this test, by a command."""
    the_spawner._end()
    assert shell.run_sync("true").ok
    yield current()
    the_spawner._end()


def current() -> int:
    assert the_spawner._current is not None
    return the_spawner._current.pid


def read(path: str) -> str:
    return Path(path).read_text()


def gone(pid: int) -> bool:
    process = processes.list_processes().get(pid)
    return process is None or not process.alive


async def until_gone(*pids: int) -> None:
    async with asyncio.timeout(20):
        while not all(gone(pid) for pid in pids):  # noqa: ASYNC110 - nothing announces it: they are not our children
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("same_user")
class TestLife:
    async def test_it_is_small_and_holds_nothing_open(self, own_spawner: int) -> None:
        rollup = read(f"/proc/{own_spawner}/smaps_rollup")
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
        assert kilobytes["Private_Dirty"] <= PRIVATE_KB
        assert sorted(os.listdir(f"/proc/{own_spawner}/fd"), key=int)[:4] == ["0", "1", "2", "3"]
        before = len(os.listdir(f"/proc/{own_spawner}/fd"))
        await shell.run("true", stdin=b"x")
        await shell.run("sleep 100", timeout_s=0.05)
        async with asyncio.timeout(20):
            while len(os.listdir(f"/proc/{own_spawner}/fd")) > before:  # noqa: ASYNC110 - it forgets a moment later
                await asyncio.sleep(0.01)

    async def test_one_that_was_killed_is_replaced(self, own_spawner: int) -> None:
        os.kill(own_spawner, signal.SIGKILL)
        assert (await shell.run("echo next")).output == "next\n"
        assert current() != own_spawner

    async def test_its_commands_go_with_it(self, own_spawner: int, same_user: Path) -> None:
        os.mkfifo(same_user / "fifo")
        running = asyncio.create_task(shell.run("echo $$ >fifo; sleep 100"))
        pid = int(await asyncio.to_thread((same_user / "fifo").read_text))
        os.kill(own_spawner, signal.SIGKILL)
        result = await running
        assert (result.signal, result.timed_out) == (signal.SIGKILL, False)
        assert gone(pid)

    async def test_a_former_one_stays_for_its_commands(
        self, own_spawner: int, same_user: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.mkfifo(same_user / "started")
        os.mkfifo(same_user / "stop")
        running = asyncio.create_task(shell.run("echo x >started; read <stop; echo done"))
        await asyncio.to_thread((same_user / "started").read_text)
        changed = spawning._MadeFor.now()._replace(places_ns=0)
        monkeypatch.setattr(spawning._MadeFor, "now", lambda: changed)
        assert (await shell.run("echo >stop")).ok
        assert current() != own_spawner
        assert (await running).output == "done\n"
        await until_gone(own_spawner)

    async def test_it_ends_with_the_runtime(self) -> None:
        environ = {**os.environ, "ORS_RUNTIME_UNSAFE_SAME_USER": "1"}
        runtime = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _RUNTIME, env=environ, stdout=subprocess.PIPE
        )
        assert runtime.stdout is not None
        pids = [int(pid) for pid in (await runtime.stdout.readline()).split()]
        runtime.kill()
        await runtime.wait()
        await until_gone(*pids)


@pytest.mark.usefixtures("same_user")
class TestCommands:
    async def test_no_signal_is_ignored_or_blocked(self) -> None:
        output = (await shell.run("grep -E 'Sig(Blk|Ign)' /proc/self/status")).output
        blocked, ignored = (int(mask, 16) for mask in output.split()[1::2])
        libcs = 0b11 << 31  # which no program can do anything about
        assert (blocked, ignored & ~libcs) == (0, 0)

    async def test_many_at_once(self) -> None:
        results = await asyncio.gather(*(shell.run(f"echo {n}; exit {n}") for n in range(40)))
        assert [(result.output, result.exit_code) for result in results] == [(f"{n}\n", n) for n in range(40)]

    async def test_arguments_of_any_length_and_bytes(self) -> None:
        long = "ä" * 60_000
        assert (await shell.run(f"printf %s {long} | wc -c")).output == "120000\n"
        assert (await shell.run("printf %s \udcff")).output == "\ufffd"

    def test_the_end_of_one_that_nobody_waits_for_is_not_the_next_ones(self, same_user: Path) -> None:
        """The runtime hangs up before the spawner has seen the end, and the next command has the same descriptor there."""
        with open(os.devnull, "r+b") as null:
            me = Agent("me", os.getuid(), os.getgid(), "/", "/", same_user=True)

            def start(*argv: str) -> Spawned:
                environ = {"PATH": "/usr/bin:/bin"}
                return the_spawner.start(argv, environ, "/", me, stdin=null.fileno(), stdout=null.fileno())

            for _ in range(100):
                start("sleep", "60").close()
                process = start("sh", "-c", "exit 5")
                process.wait(20)
                process.close()
                assert process.returncode == 5

    def test_a_program_that_is_none(self, same_user: Path) -> None:
        (same_user / "program").write_text("not one")
        with open(os.devnull, "r+b") as null:
            me = Agent("me", os.getuid(), os.getgid(), "/", "/", same_user=True)
            for name, error in (
                ("./program", PermissionError),
                ("./none", FileNotFoundError),
                ("none", FileNotFoundError),
            ):
                process = the_spawner.start(
                    [name], {"PATH": "/usr/bin"}, str(same_user), me, stdin=null.fileno(), stdout=null.fileno()
                )
                with pytest.raises(error, match=name):
                    process.wait(20)
                process.close()


@CONFINED
class TestConfined:
    async def test_the_agent_is_the_first_to_go_and_stays_it(self, other_user: Agent) -> None:
        attempts = " ".join(f"(echo {value} >/proc/self/oom_score_adj) 2>&1;" for value in (0, 500, 999, 1000))
        output = (await shell.run(f"{attempts} (echo 0 >/proc/self/oom_adj) 2>&1; cat /proc/self/oom_score_adj")).output
        assert output.count("Permission denied") == 5
        assert output.endswith("1000\n")

    async def test_anything_else_can_be_written(self, other_user: Agent) -> None:
        script = (
            "mkdir a b && echo x >a/f && mv a/f b/g && ln b/g a/h && cat a/h && echo y >/dev/null && echo z >/dev/stdout && "
            "made=$(mktemp) && echo t >$made && rm $made && echo 3 >/proc/self/fd/1"
        )
        assert (await shell.run(script)).output == "x\nz\n3\n"

    async def test_one_command_sees_the_processes_of_another(self, other_user: Agent) -> None:
        background = await shell.run("sleep 100 >&- 2>&- <&- & echo $!")
        seen = await shell.run(f"readlink /proc/{background.output.strip()}/exe && tr '\\0' '\\n' <$_/environ")
        assert "sleep" in seen.output or "coreutils" in seen.output

    async def test_the_spawner_is_none_of_its(self, other_user: Agent) -> None:
        await shell.run("true")
        pid = current()
        script = f"kill -9 {pid}; cat /proc/{pid}/environ; ls /proc/{pid}/fd; cat /proc/{pid}/maps"
        output = (await shell.run(script)).output
        assert output.count("not permitted") == 1 and output.count("Permission denied") == 3
        assert read(f"/proc/{pid}/oom_score_adj") == "0\n"
