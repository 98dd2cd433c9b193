"""What an attack is tried on: a session as it is served, and a container whose defences were taken away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from host import docker_client
from host.channel import ChannelBroken, ChannelClosed, ProtocolViolation, RequestTimeout, RuntimeFault
from host.runtime_channel import RuntimeChannel
from sandbox_runtime.messages import Method
from tests.docker.harness import Client, RunningHost, Session, until

DONE = "ATTACK-DONE"
"""What an attack that steals nothing prints when it has succeeded."""

GRADER = "the-graders-own-words-4711"
WEAK_LABEL = "ors-host.test.weakened"
_GONE = (ChannelBroken, ChannelClosed, ProtocolViolation, RequestTimeout, RuntimeFault, OSError)


@dataclass
class Loot:
    """What is worth stealing, of one session's own."""

    secret: str = field(default_factory=lambda: f"secret-{uuid.uuid4().hex}")
    answer: str = field(default_factory=lambda: f"answer-{uuid.uuid4().hex}")

    def create(self) -> dict[str, Any]:
        """Return the params of ``create``, but for the environment's name."""
        return {"task_spec": {"answer": self.answer}, "secrets": {"key": self.secret}}


class Target:
    """An environment with its agent. ``token`` is what its runtime proves itself with."""

    loot: Loot
    token: str

    async def output(self, tool: str, **tool_input: Any) -> dict[str, Any] | None:
        """Call a tool; return its output, None if it failed or the environment is no more."""
        raise NotImplementedError

    async def run(self, command: str, timeout_s: float = 20) -> str:
        """Run a command as the agent."""
        raise NotImplementedError

    async def judged(self, tool: str) -> float | None:
        """Return the reward that a grader gives."""
        raise NotImplementedError

    async def alive(self) -> bool:
        """Tell whether the environment answers, and soon."""
        try:
            async with asyncio.timeout(4):
                output = await self.output("ping")
        except TimeoutError:
            return False
        return output is not None and output["blocks"][0]["text"] == "pong"

    def worth(self, name: str) -> str:
        """Return what an attack's output holds if it has succeeded."""
        return {
            "secret": self.loot.secret,
            "answer": self.loot.answer,
            "token": self.token,
            "grader": GRADER,
            "done": DONE,
        }.get(name, name)


class Served(Target):
    """A session of a host, with everything that protects it."""

    def __init__(self, session: Session, loot: Loot, token: str) -> None:
        self.session = session
        self.loot = loot
        self.token = token

    @classmethod
    @asynccontextmanager
    async def open(cls, host: RunningHost, client: Client) -> AsyncIterator[Served]:
        loot = Loot()
        create = loot.create()
        session = await client.create(create["task_spec"], secrets=create["secrets"])
        try:
            sandbox = host.inspect(session.sid)["Config"]["Labels"]["ors-host.sandbox"]
            yield cls(session, loot, (host.state_dir / "s" / sandbox / "token").read_text())
        finally:
            await session.delete()

    async def output(self, tool: str, **tool_input: Any) -> dict[str, Any] | None:
        try:
            reply = await self.session.call(tool, **tool_input)
        except (AssertionError, aiohttp.ClientError):  # the session is gone
            return None
        if reply.event != "end" or not reply.result["ok"]:
            return None
        output: dict[str, Any] = reply.result["output"]
        return output

    async def run(self, command: str, timeout_s: float = 20) -> str:
        output = await self.output("bash", command=command, timeout_s=timeout_s)
        return "" if output is None else str(output["blocks"][0]["text"])

    async def judged(self, tool: str) -> float | None:
        output = await self.output(tool)
        return None if output is None else output["reward"]


class Weakened(Target):
    """The same image, started by hand: commands as plain subprocesses of the environment's own user, with more capabilities, no
    seccomp, a socket directory that can be written to, one file system for all, core dumps."""

    def __init__(self, channel: RuntimeChannel, loot: Loot, token: str) -> None:
        self._channel = channel
        self.loot = loot
        self.token = token

    @classmethod
    @asynccontextmanager
    async def open(cls, image: str) -> AsyncIterator[Weakened]:
        loot, token = Loot(), uuid.uuid4().hex
        with tempfile.TemporaryDirectory(prefix="ors-", dir="/tmp") as directory:
            channel = RuntimeChannel(Path(directory) / "s", token=token, runtime_uid=0, max_frame_bytes=2**26)
            await channel.listen(owner=None)
            container = None
            try:
                container = await asyncio.to_thread(_start_weakened, image, channel.directory)
                async with asyncio.timeout(60):
                    await channel.wait_hello()
                await channel.request(
                    Method.CREATE, {"env": "Vault", "toolset_name": None, **loot.create()}, timeout_s=30
                )
                await channel.request(Method.SETUP, {}, timeout_s=30)
                yield cls(channel, loot, token)
            finally:
                await channel.aclose()
                if container is not None:
                    await asyncio.to_thread(_remove, container)

    async def output(self, tool: str, **tool_input: Any) -> dict[str, Any] | None:
        timeout_s = tool_input.get("timeout_s", 5) + 2
        params = {"call_id": uuid.uuid4().hex, "name": tool, "input": tool_input}
        try:
            result = await self._channel.request(Method.CALL, params, timeout_s=timeout_s)
        except _GONE:
            return None
        return result["output"] if result["ok"] else None

    async def run(self, command: str, timeout_s: float = 20) -> str:
        output = await self.output("naive", command=command, timeout_s=timeout_s)
        return "" if output is None else str(output["blocks"][0]["text"])

    async def judged(self, tool: str) -> float | None:
        output = await self.output(f"naive_{tool}")
        return None if output is None else output["reward"]


def _start_weakened(image: str, directory: Path) -> str:
    with contextlib.closing(docker_client.connect()) as engine:
        container = engine.create_container(
            image,
            labels={WEAK_LABEL: "1"},
            environment={
                "ORS_RUNTIME_UNSAFE_SAME_USER": "1",
                "ORS_RUNTIME_RECONNECT_S": "1",
                "ORS_RUNTIME_SOCKET_DIR": "/run/ors",
            },
            host_config=engine.create_host_config(
                network_mode="none",
                cap_add=["SYS_PTRACE", "SYS_NICE", "SYS_ADMIN", "NET_ADMIN"],
                security_opt=["seccomp=unconfined"],
                init=True,
                mem_limit=256 * 2**20,
                memswap_limit=256 * 2**20,
                pids_limit=128,
                tmpfs={"/tmp": "rw,exec,mode=1777,size=16m,nr_inodes=500"},
                ulimits=[docker_client.Ulimit(name="core", soft=0, hard=-1)],
                mounts=[docker_client.Mount("/run/ors", str(directory), type="bind")],
            ),
            user="0:0",
        )
        identity: str = container["Id"]
        try:
            engine.start(identity)
        except docker_client.APIError:
            _remove(identity)
            raise
        return identity


def _remove(container: str) -> None:
    with contextlib.closing(docker_client.connect()) as engine, contextlib.suppress(docker_client.NotFound):
        engine.remove_container(container, force=True, v=True)


def processes_on_the_machine(words: str) -> list[int]:
    """Return the processes, in whatever container, whose command line holds ``words``."""
    found = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and words.encode() in Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" "):
                found.append(int(entry.name))
    return found


__all__ = ["DONE", "Loot", "Served", "Target", "Weakened", "processes_on_the_machine", "until"]
