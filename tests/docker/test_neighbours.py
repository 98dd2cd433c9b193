"""What happens in one session stays in it."""

from __future__ import annotations

import asyncio
import time

from tests.docker.harness import Client, RunningHost, Session


async def test_ten_sessions_see_nothing_of_each_other(client: Client) -> None:
    sessions = await asyncio.gather(*(client.create({"n": n}) for n in range(10)))

    async def leave_traces(n: int, session: Session) -> None:
        await session.bash(
            f"echo mine > /workspace/file-{n}; echo mine > /tmp/file-{n}; sleep {1000 + n} >/dev/null 2>&1 &"
        )

    await asyncio.gather(*(leave_traces(n, session) for n, session in enumerate(sessions)))
    for n, session in enumerate(sessions):
        files = await session.bash("cd /; ls /workspace /tmp | grep file-")
        assert set(files.split()) == {f"file-{n}"}
        sleepers = await session.bash("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done | grep ^sleep")
        assert sleepers.strip() == f"sleep {1000 + n}"
    await asyncio.gather(*(session.delete() for session in sessions))


async def test_what_one_does_to_itself_leaves_nine_unharmed(host: RunningHost, client: Client) -> None:
    """A ``kill -9 -1``, an ``rm -rf /``, endless output, a fork bomb and a full ``/tmp``, each in one of ten sessions."""
    sessions = await asyncio.gather(*(client.create({"n": n}) for n in range(10)))
    vandals, bystanders = sessions[:5], sessions[5:]
    deeds = [
        "kill -9 -1",
        "rm -rf --no-preserve-root / 2>/dev/null; echo gone",
        "yes",
        "bomb() { bomb | bomb & }; bomb; sleep 5",
        "head -c 300M /dev/zero > /tmp/full; yes | head -c 1G > /workspace/full",  # less than ends the container
    ]
    damage = asyncio.gather(
        *(vandal.call("bash", command=deed, timeout_s=5) for vandal, deed in zip(vandals, deeds, strict=True))
    )
    rounds = 0
    while not damage.done() or rounds < 3:
        for session in bystanders:
            started = time.monotonic()
            assert (await session.bash("echo fine")).strip() == "fine"
            assert time.monotonic() - started < 10
        rounds += 1
    for reply in await damage:
        assert reply.event == "end", reply
    for session in bystanders:
        assert int((await session.call("count")).text) == 1
    for vandal in vandals:  # not even their own sessions are lost
        assert (await vandal.call("count")).text == "1"
    async with client.http.get("/health") as response:
        assert response.status == 200
    await asyncio.gather(*(session.delete() for session in sessions))


async def test_a_call_does_not_wait_for_another_session(client: Client) -> None:
    slow, quick = await asyncio.gather(client.create(), client.create())
    async with slow.calling("sleep", seconds=30):
        started = time.monotonic()
        assert (await quick.call("count")).text == "1"
        assert time.monotonic() - started < 5
    await asyncio.gather(slow.delete(), quick.delete())
