"""Whatever an environment, a client or the engine does wrong: a clear word, and nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.docker.engine_proxy import engine_proxy
from tests.docker.harness import Client, RunningHost, running_host, until


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("raise", "the tool raised\non two lines"),
        ("cancelled", "CancelledError"),
        ("system_exit", "3"),
        ("keyboard_interrupt", "KeyboardInterrupt"),
        ("nan", "finite"),
        ("no_blocks", "at least 1 item"),
        ("not_an_output", "str"),
    ],
)
async def test_a_tool_that_fails_ends_in_words_and_the_session_goes_on(client: Client, what: str, words: str) -> None:
    session = await client.create()
    reply = await session.call("fail", what=what)
    assert reply.event == "error"
    assert words in reply.data
    assert (await session.call("count")).text == "1"
    await session.delete()


async def test_lone_surrogates_arrive_as_replacement_characters(client: Client) -> None:
    session = await client.create()
    assert (await session.call("fail", what="surrogates")).text == "a\ufffdb"
    await session.delete()


async def test_endless_printing_goes_to_the_log_and_stalls_nothing(client: Client) -> None:
    session = await client.create()
    assert (await session.call("fail", what="stdout")).text == "nothing failed"
    await session.delete()


async def test_fifty_megabytes_arrive_whole(client: Client) -> None:
    session = await client.create()
    line = "0123456789 äöü\n"
    reply = await session.call("echo", text=line, times=3_500_000)
    assert reply.text == line * 3_500_000
    await session.delete()


async def test_a_result_over_the_limit_is_refused_in_words(client: Client) -> None:
    session = await client.create()
    reply = await session.call("echo", text="x" * 1024, times=70 * 1024)
    assert reply.event == "error"
    assert "limit" in reply.data
    assert (await session.call("count")).text == "1"
    await session.delete()


async def test_a_result_of_nothing_but_spaces_arrives_whole(client: Client) -> None:
    session = await client.create()
    assert (await session.call("echo", text=" ", times=10_000)).text == " " * 10_000
    await session.delete()


async def test_an_environment_that_exits_ends_its_session_with_the_reason(host: RunningHost, client: Client) -> None:
    session = await client.create()
    reply = await session.call("fail", what="os_exit")
    assert reply.event == "error"
    assert reply.data.startswith("container_died")
    assert "exit code 9" in reply.data
    status, body = await session.get("/any/prompt")
    assert (status, body["reason"]) == (410, "container_died")
    assert (await session.post("/ping"))[0] == 410
    await until(lambda: host.containers(role="session") == [])


async def test_an_environment_that_eats_its_memory_is_told_apart(host: RunningHost, client: Client) -> None:
    session = await client.create()
    reply = await session.call("fail", what="hog")
    assert reply.event == "error"
    assert reply.data.startswith("out_of_memory")
    await until(lambda: host.containers(role="session") == [])


async def test_an_agent_that_eats_its_memory_ends_its_command_only(client: Client) -> None:
    session = await client.create()
    output = await session.call("bash", command="python3 -c \"x = [b'x' * 2**20 for _ in range(2**20)]\"")
    assert output.event == "end"
    assert (await session.call("count")).text == "1"
    await session.delete()


async def test_a_container_removed_from_outside_is_noticed_without_a_call(host: RunningHost, client: Client) -> None:
    from host import docker_client

    session = await client.create()
    with contextlib.closing(docker_client.connect()) as engine:
        engine.remove_container(host.inspect(session.sid)["Id"], force=True)
    async with asyncio.timeout(2):
        while (status := (await session.post("/ping"))[0]) == 200:
            pass
    assert status == 410
    assert (await session.post("/ping"))[1]["reason"] == "container_died"
    await until(lambda: len(host.directories()) == 1)


@pytest.mark.parametrize("where", ["raise", "exit"])
async def test_a_constructor_that_fails_fails_create_and_frees_the_id(
    host: RunningHost, client: Client, where: str
) -> None:
    session = client.session()
    status, body = await session.post("/create", {"task_spec": {"construct": where}})
    assert status == 422
    assert body["reason"] == {"raise": "setup_failed", "exit": "container_died"}[where]
    assert host.containers(role="session") == []
    assert (await session.post("/ping"))[0] == 404
    assert await session.post("/create", {"task_spec": {}}) == (200, {"sid": session.sid})
    await session.delete()


async def test_a_setup_that_fails_ends_the_session_with_its_words(client: Client, host: RunningHost) -> None:
    session = await client.create({"setup": "raise"})
    reply = await session.call("count")
    assert reply.event == "error"
    assert "setup_failed" in reply.data and "setup was told to raise" in reply.data
    status, body = await session.get("/any/prompt")
    assert (status, body["reason"]) == (410, "setup_failed")
    await until(lambda: host.containers(role="session") == [])


async def test_a_prompt_that_fails_is_no_retryable_error(client: Client) -> None:
    session = await client.create({"prompt": "raise"})
    status, body = await session.get("/any/prompt")
    assert status == 422
    assert "prompt was told to raise" in body["detail"]
    assert (await session.call("count")).text == "1"
    await session.delete()


async def test_a_stuck_teardown_holds_up_nobody(probe_image: str) -> None:
    with running_host(probe_image, teardown_timeout=1) as host:
        async with host.client() as client:
            session = await client.create({"teardown": "sleep"})
            async with asyncio.timeout(15):
                await session.delete()
            assert host.containers(role="session") == []


async def test_delete_during_create_setup_and_call(host: RunningHost, client: Client) -> None:
    creating = client.session()
    answer = asyncio.ensure_future(creating.post("/create", {"task_spec": {"construct": "sleep"}}))
    await until(lambda: host.containers(role="session"))
    await creating.delete()
    status, body = await answer
    assert (status, body["reason"]) == (410, "deleted")

    setting_up = await client.create({"setup": "sleep"})
    prompt = asyncio.ensure_future(setting_up.get("/any/prompt"))
    await asyncio.sleep(0)
    await setting_up.delete()
    status, body = await prompt
    assert (status, body["reason"]) == (410, "deleted")

    calling = await client.create()
    async with calling.calling("sleep", seconds=3600) as stream:
        await calling.delete()
        reply = await stream.reply()
        assert reply.event == "error"
        assert reply.data.startswith("deleted")
    assert host.containers(role="session") == []
    await calling.delete()  # again: fine


async def test_a_client_that_goes_away_in_a_call_finds_its_result(client: Client) -> None:
    session = await client.create()
    async with session.calling("bash", command="sleep 1; echo ran >> /workspace/ran; cat /workspace/ran") as stream:
        call_id = stream.call_id
    for _ in range(2):
        assert (await session.call("bash", call_id=call_id, command="is not looked at")).text == "ran\n"
    other = await client.create()
    assert (await other.call("count", call_id=call_id)).data == "unknown task_id"
    await asyncio.gather(session.delete(), other.delete())


async def test_a_call_over_its_time_is_ended_for_certain(probe_image: str) -> None:
    """An async tool ends when told to and the session goes on; a thread can't be told, so its container goes."""
    with running_host(probe_image, call_timeout=1, cancel_grace=2) as host:
        async with host.client() as client:
            polite = await client.create()
            reply = await polite.call("sleep_async", seconds=3600)
            assert reply.data.startswith("call_timeout")
            reply = await polite.call("bash", command="sleep 3600 & setsid sleep 3601; sleep 3602")
            assert reply.data.startswith("call_timeout")
            assert "sleep" not in await polite.bash("cat /proc/[0-9]*/comm")
            assert (await polite.call("count")).text == "1"
            await polite.delete()

            stuck = await client.create()
            reply = await stuck.call("sleep", seconds=3600)
            assert reply.data.startswith("call_timeout")
            status, body = await stuck.get("/any/prompt")
            assert (status, body["reason"]) == (410, "call_timeout")


async def test_the_limit_is_hard_and_the_queue_is_served(probe_image: str) -> None:
    with running_host(probe_image, max_sessions=2, queue_timeout=60) as host:
        async with host.client() as client:
            most = 0

            async def episode(n: int) -> str:
                nonlocal most
                session = await client.create({"n": n})
                most = max(most, len(host.containers(role="session")))
                text = (await session.call("count")).text
                await session.delete()
                return text

            assert await asyncio.gather(*map(episode, range(8))) == ["1"] * 8
            assert most <= 2


async def test_over_the_limit_the_answer_is_503_starting(probe_image: str) -> None:
    with running_host(probe_image, max_sessions=1, queue_timeout=0.2) as host:
        async with host.client() as client:
            first = await client.create()
            second = {"X-Session-ID": "second"}
            async with client.http.post("/create", json={"task_spec": {}}, headers=second) as response:
                assert response.status == 503
                assert response.headers["Retry-After"].isdigit()
                assert response.headers["X-Backend-State"] == "starting"
                assert (await response.json())["reason"] == "capacity"
            await first.delete()


async def test_idle_sessions_end_and_busy_ones_do_not(probe_image: str) -> None:
    with running_host(probe_image, idle_timeout=2) as host:
        async with host.client() as client:
            idle, busy = await asyncio.gather(client.create(), client.create())
            reply = await busy.call("sleep_async", seconds=4)
            assert reply.text == "1"
            status, body = await idle.post("/ping")
            assert (status, body["reason"]) == (410, "expired")
            await busy.delete()


async def test_stopping_ends_calls_in_words(probe_image: str) -> None:
    with running_host(probe_image) as host:
        async with host.client() as client:
            session = await client.create()
            async with session.calling("sleep_async", seconds=3600) as stream:
                assert await asyncio.to_thread(host.stop) == 0
                reply = await stream.reply()
            assert reply.event == "error"
            assert reply.data.startswith("host_shutdown")


async def test_two_hosts_leave_each_other_alone(host: RunningHost, client: Client, probe_image: str) -> None:
    session = await client.create()
    with running_host(probe_image) as other:
        assert other.server_id != host.server_id
        assert (await session.call("count")).text == "1"
    assert (await session.call("count")).text == "2"
    await session.delete()


async def test_the_catalog_container_is_replaced_when_it_dies(probe_image: str) -> None:
    from host import docker_client

    with running_host(probe_image) as host:
        (catalog,) = host.containers(role="catalog")
        with contextlib.closing(docker_client.connect()) as engine:
            engine.remove_container(catalog["Id"], force=True)
        async with host.client() as client, client.http.post("/num_tasks", json={"split": "hard"}) as response:
            assert await response.json() == {"num_tasks": 5}


async def test_the_engine_goes_away_and_comes_back(probe_image: str, tmp_path: Path) -> None:
    with (
        engine_proxy(tmp_path) as proxy,
        running_host(probe_image, env={"DOCKER_HOST": proxy.url}, start_timeout=10) as host,
    ):
        async with host.client() as client:
            session = await client.create()
            proxy.cut()
            assert (await session.call("count")).text == "1"
            async with client.http.post("/create", json={"task_spec": {}}, headers={"X-Session-ID": "x"}) as response:
                assert response.status == 503
                assert (await response.json())["reason"] == "start_failed"
            proxy.restore()
            again = await client.create()
            assert (await again.call("count")).text == "1"
            await asyncio.gather(session.delete(), again.delete())
            assert host.containers(role="session") == []
