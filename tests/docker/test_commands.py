"""ps, logs, inspect, kill and prune, on a host that lives and on one that was killed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result

from host.cli import main
from host.inventory import Entry
from host.state_view import Life, StateView
from tests.docker.harness import Client, RunningHost, running_host

ORS_HOST = Path(sys.executable).with_name("ors-host")
KEY, SECRET = "the-trainers-key", "hunter2-secret"
ESCAPE = "\x1b]0;title\x07\x1b[2J"


@pytest.fixture(scope="module")
def keyed(probe_image: str) -> Iterator[RunningHost]:
    """A host with a key, which no command is told. The image's id has a second name."""
    subprocess.run(["docker", "tag", probe_image, "a-second-name:latest"], check=True)
    try:
        with running_host(probe_image, env={"ORS_HOST_API_KEY": KEY}, warm=1, memory="256MiB") as host:
            yield host
    finally:
        subprocess.run(["docker", "rmi", "a-second-name:latest"], check=True)


@asynccontextmanager
async def client_of(host: RunningHost) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(host.url, headers={"X-API-Key": KEY}) as http:
        yield Client(http)


async def command(host: RunningHost, *args: str) -> Result:
    words = [args[0], "--state-dir", str(host.state_dir), *args[1:]]
    result = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert KEY not in result.output and SECRET not in result.output
    return result


async def listed(host: RunningHost) -> dict[str, dict[str, Any]]:
    """``ps --json``, sessions by id."""
    result = await command(host, "ps", "--json")
    return {entry["session"]: entry for entry in json.loads(result.stdout) if entry["session"]}


async def test_a_living_host(keyed: RunningHost) -> None:
    async with client_of(keyed) as client:
        task = {"setup": "print", "text": f"{ESCAPE}hello from setup"}
        session, other = [await client.create(task, secrets={"TOKEN": SECRET}) for _ in range(2)]
        assert (await session.get("/any/prompt"))[0] == 200

        entry = (await listed(keyed))[session.sid]
        assert entry["kind"] == "session" and entry["environment"] == "Probe" and entry["state"] == "running"
        assert entry["image"] == "ors-host-test-probe:latest"
        assert 0 <= entry["idle_s"] <= entry["age_s"] < 60
        assert 2**20 < entry["memory_bytes"] <= entry["memory_limit_bytes"] == 256 * 2**20
        assert entry["cpus"] >= 0 and entry["processes"] > 0
        assert entry["host"]["life"] == "alive" and entry["host"]["pid"] == keyed.process.pid

        table = (await command(keyed, "ps")).output
        assert session.sid[:8] in table and session.sid not in table
        assert "(catalog)" in table
        assert session.sid in (await command(keyed, "ps", "--no-trunc")).output

        short = session.sid[:8]
        log = (await command(keyed, "logs", short)).output
        assert "\\x1b]0;title\\x07\\x1b[2Jhello from setup\n" in log and "\x1b" not in log
        line = json.loads((await command(keyed, "logs", short, "--json", "--tail", "1")).output.splitlines()[0])
        assert line["time"].startswith("20") and "hello" in line["text"]

        inspected = json.loads((await command(keyed, "inspect", short, "--json")).output)
        assert inspected["session"] == session.sid and inspected["limits"]["memory_bytes"] == 256 * 2**20
        assert "PYTHONHASHSEED" in inspected["variables"] and inspected["network"] == "none"
        assert "limits.pids" in (await command(keyed, "inspect", short)).output

        # Nothing of a living host's is there to be pruned.
        assert "removed 0 containers and 0 directories" in (await command(keyed, "prune", "--yes")).output
        assert set(await listed(keyed)) == {session.sid, other.sid}

        ended = await command(keyed, "kill", short)
        assert ended.output == f"ended {session.sid}\n" and ended.exit_code == 0
        status, body = await session.post("/ping")
        assert (status, body["reason"]) == (410, "deleted")
        assert set(await listed(keyed)) == {other.sid}
        ended = await command(keyed, "kill", "--all", "--yes", "--json")
        assert json.loads(ended.stdout) == {"ended": [other.sid], "failed": {}}
        assert await listed(keyed) == {}


async def test_a_log_is_followed_to_its_end(keyed: RunningHost) -> None:
    async with client_of(keyed) as client:
        session = await client.create({"setup": "print", "text": "first"})
        words = ("logs", "--follow", "--state-dir", str(keyed.state_dir), session.sid)
        following = await asyncio.create_subprocess_exec(ORS_HOST, *words, stdout=subprocess.PIPE)
        assert following.stdout is not None and await following.stdout.readline() == b"first\n"
        await session.delete()
        assert b"teardown ran\n" in await following.stdout.read()
        assert await following.wait() == 0
        # Of a session that has ended, what was kept is shown, and there is nothing to be followed.
        for args in (("logs", session.sid[:8]), ("logs", session.sid, "-f")):
            ended = await command(keyed, *args)
            assert (
                ended.stdout.startswith("first\n") and "teardown ran\n" in ended.stdout and "ended at" in ended.stderr
            )
        (line,) = (await command(keyed, "logs", session.sid, "--json", "-n", "1")).stdout.splitlines()
        assert json.loads(line)["text"] == "teardown ran"


@pytest.mark.parametrize(
    ("args", "words", "code"),
    [
        (("logs", "nosuch"), "there is no session 'nosuch'", 1),
        (("inspect", "nosuch"), "there is no session 'nosuch'", 1),
        (("kill", "nosuch"), "there is no session 'nosuch'", 1),
        (("kill",), "give a session's id, or --all", 2),
        (("kill", "x", "--all"), "give a session's id, or --all", 2),
    ],
)
async def test_what_is_not_there(keyed: RunningHost, args: tuple[str, ...], words: str, code: int) -> None:
    result = await command(keyed, *args)
    assert words in result.output and result.exit_code == code


async def test_a_catalog_container_is_the_hosts_own(keyed: RunningHost) -> None:
    (catalog,) = keyed.containers(role="catalog")
    result = await command(keyed, "kill", catalog["Labels"]["ors-host.sandbox"])
    assert result.exit_code == 1 and "the host's own (catalog)" in result.output


async def test_a_host_that_was_killed(probe_image: str) -> None:
    with running_host(probe_image, warm=0) as host:
        async with host.client() as client:
            sessions = [await client.create() for _ in range(2)]
        host.kill()
        result = await command(host, "ps")
        assert "is not running" in result.stderr and sessions[0].sid[:8] in result.stdout
        assert (await command(host, "kill", sessions[0].sid)).exit_code == 0
        assert set(await listed(host)) == {sessions[1].sid}
        assert len(host.directories()) == 2  # the other session's, and the catalog's
        # It asks first, and without an answer does nothing.
        asked = await command(host, "prune")
        assert asked.exit_code == 1 and "Remove all this?" in asked.output
        assert len(host.containers()) == 2
        pruned = json.loads((await command(host, "prune", "--yes", "--json")).stdout)
        assert [len(left["containers"]) for left in pruned["removed"]] == [2]
        assert host.containers() == [] and host.directories() == []


async def test_no_host_was_ever_there(tmp_path: Path) -> None:
    for args, code in ((("ps",), 0), (("kill", "--all"), 1), (("prune",), 0)):
        result = await asyncio.to_thread(CliRunner().invoke, main, [*args, "--state-dir", str(tmp_path / "none")])
        assert result.exit_code == code, result.output
    assert not (tmp_path / "none").exists()


def entry(sandbox: str, server: str, view: StateView) -> Entry:
    return Entry(sandbox, sandbox, sandbox, "session", "sid", "Env", "i", "running", 1, 1, view, server)


def test_what_is_pruned() -> None:
    """A living host's never; another's only when all are meant; what can't be told apart from a living one's on request."""
    from host.commands.prune import _sort

    nowhere = Path("/nonexistent")
    own, dead, alive = (
        StateView(nowhere / name, name, life)
        for name, life in (("own", Life.DEAD), ("dead", Life.DEAD), ("alive", Life.ALIVE))
    )
    unseen = StateView(nowhere / "unseen", "", Life.UNKNOWN, problem="Permission denied")
    entries = [entry(f"of-{view.path.name}", view.path.name, view) for view in (own, dead, alive, unseen)]
    entries.append(entry("of-a-former-owner", "another", alive))
    for all_hosts, names in ((False, ["of-own"]), (True, ["of-own", "of-dead"])):
        prunable, doubtful = _sort(entries, own, all_hosts=all_hosts)
        assert [e.name for left in prunable for e in left.entries] == names
        assert [e.name for left in doubtful for e in left.entries] == ["of-unseen", "of-a-former-owner"]
