"""Running commands: as ourselves for what any user can show, as another user for what needs root."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox_runtime import processes, shell
from sandbox_runtime.agent import Agent, AgentUnavailable
from sandbox_runtime.command import Command
from sandbox_runtime.scope import CallScope, current_scope
from sandbox_runtime.spawning import the_spawner

WRITE_PID_AND_SLEEP = "until [ -p pid ]; do :; done; echo $$ > pid; sleep 100"


def alive(pid: int) -> bool:
    process = processes.list_processes().get(pid)
    return process is not None and process.alive


def agents(agent: Agent) -> list[processes.Process]:
    return [process for process in processes.list_processes().values() if process.uid == agent.uid and process.alive]


async def through_fifo(path: Path) -> str:
    """Make a fifo and return what a command that runs meanwhile writes to it."""
    os.mkfifo(path)
    return await asyncio.to_thread(path.read_text)


@pytest.mark.usefixtures("same_user")
class TestRun:
    async def test_output_in_order_and_exit_code(self) -> None:
        result = await shell.run("echo one; echo two >&2; echo three; exit 3")
        assert result.output == "one\ntwo\nthree\n"
        assert (result.exit_code, result.signal, result.timed_out) == (3, None, False)
        assert (result.output_bytes, result.is_cut, result.ok) == (14, False, False)
        assert result.status == "exit code 3"

    async def test_success(self) -> None:
        assert (await shell.run("true")).ok

    def test_sync_is_the_same(self) -> None:
        assert shell.run_sync("echo $A", env={"A": "b"}, stdin=b"").output == "b\n"

    async def test_killed_by_a_signal(self) -> None:
        result = await shell.run("kill -SEGV $$")
        assert (result.exit_code, result.signal, result.status) == (None, 11, "killed by SIGSEGV")

    async def test_killed_by_a_nameless_signal(self) -> None:
        assert (await shell.run("kill -40 $$")).status == "killed by signal 40"

    async def test_where_and_with_what(self, same_user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_OF_THE_RUNTIME", "s")
        assert (await shell.run("pwd; umask")).output == f"{same_user}\n0022\n"
        assert (await shell.run("pwd", cwd="/")).output == "/\n"
        assert "SECRET" not in (await shell.run("env")).output
        assert (await shell.run("ls /proc/self/fd | wc -l")).output == "4\n"  # 0 to 2 and the listing's own

    async def test_a_directory_that_is_not_there(self) -> None:
        result = await shell.run("true", cwd="/nowhere")
        assert result.exit_code == 126
        assert "No such file or directory: '/nowhere'" in result.output

    async def test_stdin(self) -> None:
        data = os.urandom(300_000)
        assert (await shell.run("md5sum", stdin=data)).output == (await shell.run("md5sum", stdin=data)).output
        assert (await shell.run("wc -c", stdin=data)).output == "300000\n"
        assert (await shell.run("cat")).output == ""
        assert (await shell.run("exec true", stdin=data)).ok  # leaves it unread

    async def test_any_bytes(self) -> None:
        result = await shell.run("head -c 1M /dev/urandom")
        assert (result.output_bytes, result.is_cut) == (1 << 20, True)
        assert f" of {1 << 20} bytes shown]" in result.output
        assert (await shell.run(r"printf 'a\0b\377'")).output == "a\0b\ufffd"

    async def test_output_is_bounded(self) -> None:
        result = await shell.run("seq 100000", max_output_bytes=100)
        assert result.output.startswith("1\n2\n")
        assert result.output.endswith("99999\n100000\n")
        assert "\n[output cut: 100 of 588895 bytes shown]\n" in result.output

    @pytest.mark.parametrize(("command", "reason"), [("x" * 200_000, "too long"), ("echo a\0b", "NUL character")])
    async def test_what_can_not_be_started_is_a_result(self, command: str, reason: str) -> None:
        result = await shell.run(command)
        assert result.exit_code == 126
        assert reason in result.output

    async def test_a_bad_variable_is_the_authors_mistake(self) -> None:
        with pytest.raises(ValueError, match="environment variable"):
            await shell.run("true", env={"A=B": "c"})

    async def test_time_is_up(self) -> None:
        started = time.monotonic()
        result = await shell.run("echo before; sleep 100; echo after", timeout_s=0.3)
        assert time.monotonic() - started < 30
        assert (result.output, result.timed_out, result.signal) == ("before\n", True, 9)
        assert result.status == "timed out"

    async def test_time_is_up_for_endless_output(self) -> None:
        result = await shell.run("yes", timeout_s=0.3, max_output_bytes=1000)
        assert result.timed_out
        assert result.is_cut
        assert len(result.output) < 1100

    async def test_no_waiting_for_a_background_process(self) -> None:
        started = time.monotonic()
        result = await shell.run("sleep 100 & echo $!")
        assert time.monotonic() - started < 30
        assert result.exit_code == 0
        assert alive(int(result.output))
        await shell.end_processes()
        assert not alive(int(result.output))

    async def test_late_output_of_a_child_is_kept(self) -> None:
        assert (await shell.run("(sleep 0.02; echo late) & echo now")).output == "now\nlate\n"

    async def test_no_descriptor_is_left(self) -> None:
        await shell.run("true", stdin=b"x")
        before = sorted(os.listdir("/proc/self/fd"))
        await shell.run("true", stdin=b"x")
        await shell.run("sleep 100", timeout_s=0.05)
        await shell.run("a\0b", stdin=b"x")
        assert sorted(os.listdir("/proc/self/fd")) == before

    async def test_cancelling_ends_the_command(self, same_user: Path) -> None:
        task = asyncio.create_task(shell.run(WRITE_PID_AND_SLEEP))
        pid = int(await through_fifo(same_user / "pid"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not alive(pid)

    async def test_cancelling_the_call_ends_a_sync_command(self, same_user: Path) -> None:
        scope = CallScope()
        current_scope.set(scope)
        task = asyncio.create_task(asyncio.to_thread(shell.run_sync, WRITE_PID_AND_SLEEP))
        pid = int(await through_fifo(same_user / "pid"))
        scope.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not alive(pid)
        with pytest.raises(asyncio.CancelledError):
            shell.run_sync("true")

    async def test_an_error_while_reading_ends_the_command(
        self, same_user: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(command: Command, output: int) -> bool:
            raise MemoryError

        monkeypatch.setattr(Command, "_read", fail)
        with pytest.raises(MemoryError):
            await shell.run("echo x; sleep 100")
        known = processes.sessions._known
        assert not [p for p in processes.list_processes().values() if p.session in known and p.alive]

    async def test_no_room_for_a_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        spawn: Callable[..., object] = the_spawner.start
        failures = [BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")]

        def start(*args: object, **kwargs: object) -> object:
            if failures:
                raise failures.pop()
            return spawn(*args, **kwargs)

        monkeypatch.setattr(the_spawner, "start", start)
        result = await shell.run("echo x")
        assert result.output.endswith("and were ended]\nx\n")
        failures += [BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")] * 2
        assert (await shell.run("echo x")).exit_code == 126


class TestFiles:
    pytestmark = pytest.mark.usefixtures("same_user")

    async def test_round_trip(self, same_user: Path) -> None:
        data = os.urandom(200_000)
        await shell.write_file("a b/-c", data, mode=0o600)
        assert (same_user / "a b" / "-c").read_bytes() == data
        assert stat.S_IMODE((same_user / "a b" / "-c").stat().st_mode) == 0o600
        assert await shell.read_file("a b/-c") == data
        shell.write_file_sync(str(same_user / "x"), "ü\n")
        assert shell.read_file_sync("x") == "ü\n".encode()
        assert stat.S_IMODE((same_user / "x").stat().st_mode) == 0o644

    async def test_of_exactly_the_limit(self) -> None:
        await shell.write_file("f", b"12345")
        assert await shell.read_file("f", max_bytes=5) == b"12345"

    @pytest.mark.parametrize("path", ["f", "/dev/zero"])
    async def test_over_the_limit(self, path: str) -> None:
        await shell.write_file("f", b"12345")
        with pytest.raises(OSError, match="longer than 4 bytes") as caught:
            await shell.read_file(path, max_bytes=4)
        assert caught.value.errno == errno.EFBIG

    @pytest.mark.parametrize("path", ["missing", "missing/inside", "dangling"])
    async def test_missing(self, same_user: Path, path: str) -> None:
        (same_user / "dangling").symlink_to("nowhere")
        with pytest.raises(FileNotFoundError):
            await shell.read_file(path)

    async def test_a_directory_can_not_be_read_or_written(self, same_user: Path) -> None:
        with pytest.raises(OSError, match="Is a directory"):
            await shell.read_file(str(same_user))
        with pytest.raises(OSError, match="Is a directory"):
            await shell.write_file(str(same_user), b"")

    async def test_a_fifo_takes_its_time_and_no_more(self, same_user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shell, "FILE_TIMEOUT_S", 0.2)
        os.mkfifo(same_user / "fifo")
        with pytest.raises(TimeoutError, match=r"not done in 0\.2 s"):
            await shell.read_file("fifo")
        with pytest.raises(TimeoutError):
            await shell.write_file("fifo", b"x")


class TestAsAnotherUser:
    async def test_what_a_command_is_and_may(self, other_user: Agent) -> None:
        script = "id -u; id -g; id -G; nice; cat /proc/self/oom_score_adj; grep -E 'CapEff|NoNewPrivs' /proc/self/status; pwd"
        assert (await shell.run(script)).output.split() == [
            *[str(other_user.uid), str(other_user.gid), str(other_user.gid), "19", "1000"],
            *["CapEff:", "0000000000000000", "NoNewPrivs:", "1", other_user.workspace],
        ]

    async def test_it_can_not_look_into_the_runtime_or_signal_it(self, other_user: Agent) -> None:
        result = await shell.run(f"cat /proc/{os.getpid()}/environ; kill -9 {os.getpid()}")
        assert result.output.count("ermission denied") + result.output.count("not permitted") == 2

    async def test_kill_everything_and_go_on(self, other_user: Agent) -> None:
        await shell.run("sleep 100 & sleep 100 & kill -9 -1")
        assert (await shell.run("echo still here")).output == "still here\n"

    async def test_time_limit_ends_what_left_the_session(self, other_user: Agent) -> None:
        script = "(setsid sleep 101 &); (setsid bash -c 'sleep 102 & sleep 103 & disown -a' &); echo x; sleep 104"
        result = await shell.run(script, timeout_s=1)
        assert (result.timed_out, result.output) == (True, "x\n")
        assert agents(other_user) == []

    async def test_time_limit_leaves_other_commands_alone(self, other_user: Agent) -> None:
        earlier = await shell.run("(setsid sleep 101 >&- 2>&- &); sleep 102 >&- 2>&- & echo x")
        assert earlier.ok
        assert (await shell.run("mkfifo start stop")).ok
        other = asyncio.create_task(shell.run("sleep 103 & echo > start; read < stop; kill %1 && echo done"))
        assert (await shell.run("read < start")).ok
        assert (await shell.run("sleep 104", timeout_s=0.3)).timed_out
        assert (await shell.run("echo > stop")).ok
        assert (await other).output == "done\n"
        assert len(agents(other_user)) == 2
        await shell.end_processes()
        assert agents(other_user) == []

    async def test_a_fork_storm_ends(self, other_user: Agent) -> None:
        # Bounded by itself where a container would bound it: each of two generations of loops forks without pause.
        storm = "f() { while :; do sleep 100 & [ $(jobs -p | wc -l) -lt 40 ] || wait -n; done; }; f & f & f & wait"
        result = await shell.run(storm, timeout_s=0.7)
        assert result.timed_out
        assert agents(other_user) == []

    async def test_files_are_the_agents(self, other_user: Agent, tmp_path: Path) -> None:
        await shell.write_file("mine", b"x")
        assert os.stat(f"{other_user.workspace}/mine").st_uid == other_user.uid
        secret = tmp_path / "secret"
        secret.write_text("s")
        secret.chmod(0o600)
        await shell.run(f"ln -s {secret} link")
        with pytest.raises(OSError, match="Permission denied|No such file"):
            await shell.read_file("link")
        with pytest.raises(OSError, match="Permission denied"):
            await shell.write_file("/etc/ors-host-test", b"x")

    async def test_a_full_process_limit_is_relieved(self, other_user: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
        background = await shell.run("sleep 100 >&- 2>&- & echo $!")
        near = iter([True])
        monkeypatch.setattr(processes, "process_limit_near", lambda: next(near))
        result = await shell.run("echo x")
        assert result.output == shell._RELIEVED + "x\n"
        assert not alive(int(background.output))


def test_without_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORS_RUNTIME_UNSAFE_SAME_USER", raising=False)
    monkeypatch.setattr("sandbox_runtime.agent.AGENT_USER", "no-such-user")
    with pytest.raises(AgentUnavailable):
        shell.run_sync("true")
