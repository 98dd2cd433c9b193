"""The process itself: started as in a container, but here."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import sandbox_runtime
from tests.runtime.fake_host import FakeHost, HostLink

ENV = """
import asyncio, ctypes, os, sys, threading, time
from sandbox_runtime import Environment, TextBlock, ToolOutput, tool

print("loaded", flush=False)

class Env(Environment):
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]
    def get_prompt(self): return [TextBlock(text="p")]

    @tool
    def look(self) -> ToolOutput:
        print("looking \\ud800", end="")
        status = open("/proc/self/status").read()
        core = open("/proc/self/limits").read().split("Max core file size")[1].split()[:2]
        umask = [line for line in status.splitlines() if line.startswith("Umask")]
        dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)  # PR_GET_DUMPABLE
        fds = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)]
        open_fds = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
        inheritable = [fd for fd in open_fds if os.get_inheritable(fd)]
        metadata = dict(core=core, umask=umask, dumpable=dumpable, fds=fds, inheritable=inheritable)
        return ToolOutput(blocks=[TextBlock(text="t")], metadata=metadata)

    @tool
    async def break_out(self) -> ToolOutput:
        async def leave(): raise SystemExit(5)
        self.task = asyncio.create_task(leave())
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop)
        return ToolOutput(blocks=[TextBlock(text="t")])

    @tool
    def thread(self) -> ToolOutput:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        return ToolOutput(blocks=[TextBlock(text="t")])

    @tool
    def exits(self) -> ToolOutput:
        os._exit(9)
"""

OURS = Path(sandbox_runtime.__file__).parents[1]

Start = Callable[..., Coroutine[Any, Any, asyncio.subprocess.Process]]


@pytest.fixture
async def start(tmp_path: Path, short_directory: Path) -> AsyncIterator[Start]:
    """Start the runtime with the environment above; it is killed in the end."""
    (tmp_path / "env.py").write_text(ENV)
    started: list[asyncio.subprocess.Process] = []

    async def start_process(*specs: str, **environ: str) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "sandbox_runtime"),
            *specs,
            env={"PYTHONPATH": f"{tmp_path}:{OURS}", "ORS_RUNTIME_SOCKET_DIR": str(short_directory), **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start_process
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def created(host: FakeHost) -> HostLink:
    link, hello = await host.welcome()
    assert hello.environments == ["Env"]
    assert hello.runtime_version == sandbox_runtime.__version__
    await link.request("create", env="env", task_spec={})
    return link


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == sandbox_runtime.__version__


def test_nothing_but_the_standard_library_and_pydantic_is_imported() -> None:
    script = (
        "import sys, sandbox_runtime.process, sandbox_runtime.shell; "
        "print(*{m.partition('.')[0] for m in sys.modules if not m.startswith('_')} - set(sys.stdlib_module_names))"
    )
    found = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    ours = {"sandbox_runtime", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
    # An editable install's finder, and what else a virtual environment imports at start-up, is none of ours.
    assert {name for name in found if not name.startswith(("distutils", "virtualenv"))} <= ours


def test_a_start_imports_no_more_than_it_needs() -> None:
    script = (
        "import sys, sandbox_runtime; assert 'pydantic' not in sys.modules; import sandbox_runtime.process; "
        "unneeded = 'bodies', 'conversations', 'greeting', 'ors_sdk', 'openreward_sdk'; "
        "print(*(name for name in unneeded if f'sandbox_runtime.{name}' in sys.modules)); "
        "from sandbox_runtime.messages import Hello, Message, ToolOutput; "
        "print(*(m.__pydantic_complete__ for m in (Hello, Message, ToolOutput)))"
    )
    found = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout
    assert found == "\nFalse False False\n"


def test_all_that_authors_are_offered_is_there() -> None:
    assert all(getattr(sandbox_runtime, name) is not None for name in sandbox_runtime.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = sandbox_runtime.Nothing


async def test_hardening(host: FakeHost, start: Start) -> None:
    process = await start("env:Env")
    link = await created(host)
    metadata = (await link.request("call", name="look", input={}))["output"]["metadata"]
    assert metadata["core"] == ["0", "0"]
    assert metadata["umask"] == ["Umask:\t0077"]
    assert metadata["inheritable"] == []
    assert metadata["fds"][0] == "/dev/null"
    assert all("socket" not in name for name in metadata["fds"])
    assert metadata["dumpable"] == 0
    process.send_signal(signal.SIGTERM)
    stdout, stderr = await process.communicate()
    assert process.returncode == 143
    assert stdout == b"loaded\nlooking \\ud800"
    assert stderr == b""


async def test_closed_standard_descriptors_are_taken(host: FakeHost, tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(ENV)
    command = f"exec {sys.executable} -P -m sandbox_runtime env:Env <&- >&- 2>&-"
    environ = {"PYTHONPATH": f"{tmp_path}:{OURS}", "ORS_RUNTIME_SOCKET_DIR": str(host.directory)}
    process = await asyncio.create_subprocess_exec("bash", "-c", command, env=environ)
    try:
        link = await created(host)
        assert (await link.request("call", name="look", input={}))["output"]["metadata"]["fds"] == ["/dev/null"] * 3
    finally:
        process.kill()
        await process.wait()


async def test_what_breaks_out_of_the_loop_breaks_nothing(host: FakeHost, start: Start) -> None:
    process = await start("env:Env")
    link = await created(host)
    await link.request("call", name="break_out", input={})
    assert await link.request("prompt")
    process.kill()
    _, stderr = await process.communicate()
    assert b"SystemExit: 5" in stderr


async def test_a_thread_of_the_authors_does_not_keep_it_from_ending(host: FakeHost, start: Start) -> None:
    process = await start("env:Env", ORS_RUNTIME_RECONNECT_S="0")
    link = await created(host)
    await link.request("call", name="thread", input={})
    host.close()
    _, stderr = await process.communicate()
    assert process.returncode == 0
    assert b"no host for 0 s" in stderr


async def test_a_tool_that_exits_the_process(host: FakeHost, start: Start) -> None:
    process = await start("env:Env")
    link = await created(host)
    link.ask("call", name="exits", input={})
    with pytest.raises(EOFError):
        await link.receive()
    assert await process.wait() == 9


async def test_a_host_that_breaks_the_protocol(host: FakeHost, start: Start) -> None:
    process = await start("env:Env")
    (await created(host)).send_bytes(b"\xff" * 4)
    _, stderr = await process.communicate()
    assert process.returncode == 76
    assert b"the host broke the protocol" in stderr


@pytest.mark.parametrize(
    ("specs", "environ", "message"),
    [
        ([], {}, "no environment given"),
        (["env:Missing"], {}, "module 'env' has no 'Missing'; environments in it: Env"),
        (["env"], {"ORS_RUNTIME_RECONNECT_S": "soon"}, "ORS_RUNTIME_RECONNECT_S"),
    ],
)
async def test_what_can_not_be_loaded(start: Start, specs: list[str], environ: dict[str, str], message: str) -> None:
    process = await start(*specs, **environ)
    _, stderr = await process.communicate()
    assert process.returncode == 78
    assert message in stderr.decode()
