"""The end of the host itself: under load, with teardowns that are stuck, and when it is told twice."""

from __future__ import annotations

import asyncio
import signal
import time

from host.stopping import _SAME_WORD_S
from tests.docker.harness import running_host, until
from tests.lifecycle.test_deaths import remove

GRACE_S = 6
MARGIN_S = 6
"""For a machine that is busy; without a bound the teardowns alone take 60 s."""


async def test_stopping_under_load_ends_within_the_grace_period(probe_image: str) -> None:
    """Ten sessions in calls, half of them with a teardown that never ends: each call is told, no container stays."""
    with running_host(probe_image, shutdown_grace=GRACE_S, teardown_timeout=60) as host:
        async with host.client() as client:
            tasks = [{"teardown": "sleep"} if n % 2 else {} for n in range(10)]
            sessions = await asyncio.gather(*map(client.create, tasks))
            streams = [session.calling("sleep_async", seconds=3600) for session in sessions]
            opened = await asyncio.gather(*(stream.__aenter__() for stream in streams))
            started = time.monotonic()
            code = await asyncio.to_thread(host.stop)
            assert time.monotonic() - started < GRACE_S + MARGIN_S
            assert code == 0
            replies = await asyncio.gather(*(stream.reply() for stream in opened))
            assert {(reply.event, reply.data.partition(":")[0]) for reply in replies} == {("error", "host_shutdown")}
            for stream in streams:
                await stream.__aexit__(None, None, None)
        assert host.containers() == []


async def test_told_twice_it_ends_at_once(probe_image: str) -> None:
    with running_host(probe_image, shutdown_grace=120, teardown_timeout=120) as host:
        async with host.client() as client:
            await client.create({"teardown": "sleep"})
        started = time.monotonic()
        host.process.send_signal(signal.SIGTERM)
        await until(lambda: " stopping " in host.log)
        await asyncio.sleep(_SAME_WORD_S)  # sooner, it may be the same word, sent to the process and to its group
        assert await asyncio.to_thread(host.stop) == 0
        assert time.monotonic() - started < _SAME_WORD_S + 1 + MARGIN_S
        assert host.containers() == []


async def test_a_stuck_teardown_holds_up_nobody(probe_image: str) -> None:
    """While one is torn down, others come and go; and it is over at once when its container is."""
    with running_host(probe_image, max_sessions=2, teardown_timeout=100) as host:
        async with host.client() as client:
            stuck = await client.create({"teardown": "sleep"})
            deleting = asyncio.create_task(stuck.delete())
            for _ in range(2):
                other = await client.create()
                assert (await other.call("count")).text == "1"
                await other.delete()
            assert not deleting.done()
            await asyncio.to_thread(remove, host.inspect(stuck.sid))
            async with asyncio.timeout(20):
                await deleting
            assert host.containers(role="session") == []
