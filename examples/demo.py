"""Plays whole episodes on the example environments, with the clients of both public SDKs. Run it with `make demo`.

Needs a Docker engine, the five example images, `ors-host` beside this interpreter, and the packages `ors-sdk` and
`openreward`. Exit code 0 means that every episode got the reward it deserves and that the host left nothing behind.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import docker
from episodes import EPISODES, Episode, Outcome, play
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

IMAGES = ("bash-env:latest", "code-env:latest", "gsm8k-env:latest", "plot-env:latest", "node-env:latest")
ENVIRONMENTS = {"bashenv", "codeenv", "gsm8kenv", "plotenv", "nodeenv"}
READY_TIMEOUT_S = 180
"""Catalog containers of all images, matplotlib's first import included, on a slow machine."""
STOP_TIMEOUT_S = 60
EPISODE_TIMEOUT_S = 180
AT_ONCE = 4
LOG_LINES = 60

# In a log, which has no width, the table need not be narrow.
console = Console(width=None if sys.stdout.isatty() else 100)


class DemoFailed(Exception):
    """The demo can't go on; the message says why."""


@dataclass
class Host:
    """A running ``ors-host``."""

    process: subprocess.Popen[bytes]
    url: str
    state_dir: Path
    log: Path

    @property
    def server_id(self) -> str:
        """The id that the labels of this host's containers hold."""
        return (self.state_dir / "server-id").read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class Played:
    """An episode that was played with one client; ``error`` says what went wrong, if anything did."""

    client: str
    episode: Episode
    outcome: Outcome | None
    error: str | None


def main() -> int:
    """Play everything; return the exit code."""
    directory = Path(tempfile.mkdtemp(prefix="ors-", dir="/tmp"))  # short: it holds unix sockets
    try:
        with _host(directory) as host:
            asyncio.run(_wait_ready(host))
            _point_clients_at(host.url)
            played = asyncio.run(_play_all(host.url))
            console.print(_table(played))
            _stop(host)
            problems = [f"{each.episode.title}: {each.error}" for each in played if each.error]
            problems += _leftovers(host)
            if problems:
                raise DemoFailed("\n".join(problems))
    except DemoFailed as exc:
        console.print("[bold red]The demo failed:")
        console.print(str(exc), markup=False, highlight=False)
        _print_log(directory / "host.log")
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    console.print(f"[bold green]{len(played)} episodes, as they should be; no container and no directory left.[/]")
    return 0


# --- The host ---------------------------------------------------------------------------------------------------------


@contextmanager
def _host(directory: Path) -> Iterator[Host]:
    """Start ``ors-host`` on all images; kill it on the way out if it still runs."""
    port = _free_port()
    state_dir, log = directory / "state", directory / "host.log"
    command = [str(Path(sys.executable).with_name("ors-host")), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--state-dir", str(state_dir)] + [word for image in IMAGES for word in ("--image", image)]
    console.print("[dim]$ ors-host " + " ".join(command[1:]), highlight=False, soft_wrap=True)
    with log.open("wb") as output:
        # In a session of its own: Ctrl-C reaches this process only, which then ends the host in order.
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    host = Host(process, f"http://127.0.0.1:{port}", state_dir, log)
    try:
        yield host
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _wait_ready(host: Host) -> None:
    """Return when the host is healthy and lists the five environments."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    with console.status("waiting for the host"):
        async with aiohttp.ClientSession(host.url, timeout=aiohttp.ClientTimeout(10)) as http:
            while time.monotonic() < deadline:
                if host.process.poll() is not None:
                    raise DemoFailed(f"ors-host ended with exit code {host.process.returncode}")
                try:
                    async with http.get("/health") as health, http.get("/list_environments") as names:
                        if health.status == names.status == 200:
                            listed = set(await names.json())
                            if listed != ENVIRONMENTS:
                                raise DemoFailed(f"the host serves {sorted(listed)}")
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass  # not listening yet
                await asyncio.sleep(0.1)
    raise DemoFailed(f"the host was not ready after {READY_TIMEOUT_S} s")


def _stop(host: Host) -> None:
    """Ask the host to end, and wait until it has."""
    with console.status("stopping the host"):
        host.process.send_signal(signal.SIGTERM)
        try:
            code = host.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"ors-host did not end within {STOP_TIMEOUT_S} s of SIGTERM") from None
    if code != 0:
        raise DemoFailed(f"ors-host ended with exit code {code} after SIGTERM")


def _leftovers(host: Host) -> list[str]:
    """Return what the host should have removed and has not, in words."""
    engine = docker.from_env()
    try:
        left = engine.containers.list(all=True, filters={"label": f"ors-host.server={host.server_id}"})
        names = [f"container {container.name} is left" for container in left]
        for container in left:
            container.remove(force=True)
    finally:
        engine.close()
    return names + [f"directory {path} is left" for path in (host.state_dir / "s").iterdir()]


def _print_log(log: Path) -> None:
    if log.exists():
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        console.rule("the end of the host's log")
        console.print("\n".join(lines[-LOG_LINES:]), markup=False, highlight=False, soft_wrap=True)


# --- The clients ------------------------------------------------------------------------------------------------------


def _point_clients_at(url: str) -> None:
    """Set what the SDKs read from the environment."""
    os.environ["OPENREWARD_SESSION_URL"] = os.environ["OPENREWARD_API_URL"] = url
    os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"
    # Both SDKs honour proxy variables, for loopback addresses too.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"


async def _play_all(url: str) -> list[Played]:
    """Play every episode with both clients, several at once."""
    import openreward  # type: ignore[import-untyped]  # it reads the variables above
    import ors.client

    ors_client = ors.client.AsyncORS(base_url=url)
    openreward_client = openreward.AsyncOpenReward()
    gate = asyncio.Semaphore(AT_ONCE)
    progress = Progress(
        TextColumn("playing episodes"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )

    async def play_one(name: str, client: Any, episode: Episode) -> Played:
        async with gate:
            played = await _play(name, client.environments.get(episode.environment), episode)
        progress.console.print(_line(played), highlight=False)
        progress.advance(bar)
        return played

    clients = {"ors-sdk": ors_client, "openreward": openreward_client}
    with progress:
        bar = progress.add_task("episodes", total=len(EPISODES) * len(clients))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(play_one(name, client, episode))
                    for episode in EPISODES
                    for name, client in clients.items()
                ]
        finally:
            await openreward_client.environments.aclose()
    return [task.result() for task in tasks]


async def _play(client: str, environment: Any, episode: Episode) -> Played:
    try:
        async with asyncio.timeout(EPISODE_TIMEOUT_S):
            outcome = await play(environment, episode)
    except Exception as exc:  # whatever a client raises is this episode's failure, and the others go on
        return Played(client, episode, None, f"{type(exc).__name__}: {exc}")
    if outcome.reward != episode.reward:
        return Played(client, episode, outcome, f"reward {outcome.reward}, deserved {episode.reward}")
    return Played(client, episode, outcome, None)


# --- What is shown ----------------------------------------------------------------------------------------------------


def _line(played: Played) -> str:
    mark = "[red]✗[/]" if played.error else "[green]✓[/]"
    return f"{mark} {played.episode.environment} · {played.client} · {played.episode.title}"


def _table(played: list[Played]) -> Table:
    table = Table(title="Episodes")
    for name in ("environment", "client", "task", "agent"):
        table.add_column(name)
    for name in ("steps", "reward", "seconds"):
        table.add_column(name, justify="right")
    for each in sorted(played, key=lambda each: each.episode.environment):
        outcome = each.outcome
        row = [each.episode.environment, each.client, f"{each.episode.split}/{each.episode.index}", each.episode.title]
        row += [str(outcome.steps), str(outcome.reward), f"{outcome.seconds:.1f}"] if outcome else ["–", "–", "–"]
        table.add_row(*row, style="red" if each.error else None)
    return table


if __name__ == "__main__":
    sys.exit(main())
