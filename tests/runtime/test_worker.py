"""The worker over a real socket: greeting, requests, cancellation, a host that goes away, and hosts that lie."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_runtime import Environment, TextBlock, ToolOutput, frames, jobs, messages, shell, tool, worker
from sandbox_runtime.adapter import Adapter
from sandbox_runtime.answering import Answer
from sandbox_runtime.link import ProtocolViolation
from sandbox_runtime.messages import Request
from sandbox_runtime.worker import Worker
from tests.runtime.fake_host import TOKEN, FakeHost, HostLink


class Switch:
    """Lets a test know that a tool has started, and the tool know that it may end."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go = threading.Event()

    async def wait_started(self) -> None:
        assert await asyncio.to_thread(self.started.wait, 30)


SWITCH = Switch()


@pytest.fixture(autouse=True)
def switch(monkeypatch: pytest.MonkeyPatch) -> Switch:
    """A new switch for each test; the tools use it."""
    fresh = Switch()
    monkeypatch.setitem(globals(), "SWITCH", fresh)
    return fresh


def said(text: str) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)])


class Env(Environment):
    @classmethod
    def list_splits(cls) -> Any:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Any:
        return [{"n": 1, "text": "a\ud800"}]

    def get_prompt(self) -> Any:
        return [TextBlock(text="go")]

    @tool(concurrent=True)
    def blocking(self) -> ToolOutput:
        SWITCH.started.set()
        assert SWITCH.go.wait(30)
        return said("unblocked")

    @tool(concurrent=True)
    async def waiting(self) -> ToolOutput:
        SWITCH.started.set()
        await asyncio.Event().wait()
        raise AssertionError

    @tool(concurrent=True)
    async def stubborn(self) -> ToolOutput:
        SWITCH.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return said("anyway")
        raise AssertionError

    @tool
    def shell_sync(self) -> ToolOutput:
        SWITCH.started.set()
        return said(shell.run_sync("sleep 100").status)

    @tool
    async def shell_async(self) -> ToolOutput:
        SWITCH.started.set()
        return said((await shell.run("sleep 100")).status)

    @tool
    def big(self) -> ToolOutput:
        return said("x" * 5000)

    @tool
    def surrogates(self) -> ToolOutput:
        return ToolOutput(blocks=[TextBlock(text="a\udc80b")], metadata={"k\ud800": ["\ud800"]})

    @tool
    def unjson(self) -> ToolOutput:
        return ToolOutput(blocks=[TextBlock(text="x")], metadata={"f": object()})

    @tool
    def circle(self) -> ToolOutput:
        inner: dict[str, Any] = {"\ud800": 1}
        inner["self"] = inner
        return ToolOutput(blocks=[TextBlock(text="x")], metadata=inner)

    @tool
    def deep(self) -> ToolOutput:
        value: Any = 1
        for _ in range(210):
            value = [value]
        return ToolOutput(blocks=[TextBlock(text="x")], metadata={"v": value})

    @tool
    def exits(self) -> ToolOutput:
        raise SystemExit(1)


def make_worker(directory: Path, *, reconnect_s: float = 60.0) -> Worker:
    def hello(token: str) -> dict[str, Any]:
        return messages.hello(token=token, runtime_version="0", environments=["Env"])

    return Worker(Adapter([Env]), hello, directory=directory, reconnect_s=reconnect_s)


@pytest.fixture
async def running(host: FakeHost) -> AsyncIterator[asyncio.Task[None]]:
    """A worker that dials ``host``."""
    task = asyncio.create_task(make_worker(host.directory).run())
    yield task
    SWITCH.go.set()
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
async def link(host: FakeHost, running: asyncio.Task[None]) -> HostLink:
    """The connection to a worker whose episode has been created."""
    connection, _ = await host.welcome()
    await connection.request("create", env="Env", task_spec={})
    return connection


async def ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    task.result()


class TestGreeting:
    async def test_hello(self, host: FakeHost, running: asyncio.Task[None]) -> None:
        link = await host.accept()
        message = await link.receive()
        assert isinstance(message, Request)
        assert (message.id, message.method) == (0, "hello")
        assert message.params == {
            "protocol": messages.PROTOCOL_VERSION,
            "token": TOKEN,
            "runtime_version": "0",
            "environments": ["Env"],
            "agent_goes_first": False,
            "episode": None,
        }

    async def test_requests_right_behind_the_welcome(self, host: FakeHost, running: asyncio.Task[None]) -> None:
        link = await host.accept()
        await link.receive()
        welcome = messages.result(0, {"max_frame_bytes": 1000})
        request = messages.request(1, "list_splits", {"env": "Env"})
        link.send_bytes(frames.encode_frame(welcome) + frames.encode_frame(request))
        assert (await link.answer()).result == [{"name": "train", "type": "train"}]

    async def test_byte_by_byte(self, host: FakeHost, running: asyncio.Task[None]) -> None:
        link, _ = await host.welcome()
        for byte in frames.encode_frame(messages.request(1, "list_splits", {"env": "Env"})):
            link.send_bytes(bytes([byte]))
            await asyncio.sleep(0)
        assert (await link.answer()).id == 1

    @pytest.mark.parametrize(
        ("answer", "problem"),
        [
            (messages.result(1, {"max_frame_bytes": 1}), "not the answer to hello"),
            (messages.request(0, "list_tools", {}), "not the answer to hello"),
            (messages.result(0, {}), "welcome: max_frame_bytes, a number, is needed"),
            (messages.result(0, {"max_frame_bytes": 1, "more": 1}), "and nothing besides"),
            (messages.error(0, messages.Fault.BAD_REQUEST, "wrong token"), "hello was refused: wrong token"),
        ],
    )
    async def test_a_wrong_welcome(
        self, host: FakeHost, running: asyncio.Task[None], answer: dict[str, Any], problem: str
    ) -> None:
        link = await host.accept()
        await link.receive()
        link.send(answer)
        with pytest.raises(ProtocolViolation, match=problem):
            await ended(running)

    async def test_no_welcome_in_time(self, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "HELLO_TIMEOUT_S", 0.05)
        await make_worker(host.directory, reconnect_s=0).run()


class TestRequests:
    async def test_an_episode(self, link: HostLink) -> None:
        assert await link.request("setup") is None
        assert await link.request("prompt") == [{"text": "go", "detail": None, "type": "text"}]
        assert await link.request("call", name="big", input={}) == {
            "ok": True,
            "output": {
                "blocks": [{"text": "x" * 5000, "detail": None, "type": "text"}],
                "metadata": None,
                "reward": None,
                "finished": False,
            },
        }
        assert await link.request("call", name="x", input={}) == {
            "ok": False,
            "error": "'x' is not a valid tool",
            "reason": "not_found",
        }
        assert await link.request("teardown") is None

    async def test_many_at_once_and_answered_as_they_end(self, link: HostLink, switch: Switch) -> None:
        slow = link.ask("call", name="blocking", input={})
        await switch.wait_started()
        quick = [link.ask("prompt") for _ in range(5)]
        assert sorted([(await link.answer()).id for _ in quick]) == quick
        switch.go.set()
        assert (await link.answer()).id == slow

    async def test_faults(self, link: HostLink) -> None:
        assert await link.fault("call", name="exits", input={}) == ("environment_raised", "1")
        assert await link.fault("nonsense") == ("bad_request", "unknown method 'nonsense'")
        assert await link.fault("num_tasks", env="Env", split="x") == ("invalid_split", "Invalid split")

    async def test_lone_surrogates_are_replaced_everywhere(self, link: HostLink) -> None:
        output = (await link.request("call", name="surrogates", input={}))["output"]
        assert output["blocks"][0]["text"] == "a\ufffdb"
        assert output["metadata"] == {"k\ufffd": ["\ufffd"]}
        assert await link.request("list_tasks", env="Env", split="train") == [{"n": 1, "text": "a\ufffd"}]

    @pytest.mark.parametrize("name", ["unjson", "circle", "deep"])
    async def test_what_has_no_json_form(self, link: HostLink, name: str) -> None:
        fault, message = await link.fault("call", name=name, input={})
        assert fault == "bad_result"
        assert message.startswith("the result has no JSON form: ")
        assert await link.request("prompt")

    async def test_a_result_over_the_limit(self, host: FakeHost, running: asyncio.Task[None]) -> None:
        link, _ = await host.welcome(max_frame_bytes=2000)
        await link.request("create", env="Env", task_spec={})
        fault, message = await link.fault("call", name="big", input={})
        assert fault == "result_too_large"
        assert "over the limit of 2000 bytes" in message
        assert await link.request("prompt")

    async def test_more_than_can_be_in_flight(
        self, link: HostLink, switch: Switch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "MAX_IN_FLIGHT", 2)
        held = [link.ask("call", name="waiting", input={}) for _ in range(2)]
        await switch.wait_started()
        assert await link.fault("prompt") == ("bad_request", "more than 2 requests at once")
        link.cancel(held[0])
        assert (await link.answer()).id == held[0]
        assert await link.request("prompt")

    async def test_a_mistake_of_ours_is_answered(self, link: HostLink, monkeypatch: pytest.MonkeyPatch) -> None:
        async def broken(*_: Any) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(Adapter, "answer", broken)
        assert await link.fault("prompt") == ("environment_raised", "in the runtime: ZeroDivisionError")


class TestCancellation:
    async def cancelled(self, link: HostLink, request_id: int) -> None:
        answer = await link.answer()
        assert answer.id == request_id
        assert answer.error is not None
        assert answer.error.data.fault == "cancelled"
        assert await link.request("prompt")  # and no second answer comes before this one's

    async def test_async(self, link: HostLink, switch: Switch) -> None:
        request_id = link.ask("call", name="waiting", input={})
        await switch.wait_started()
        link.cancel(request_id)
        link.cancel(request_id)
        await self.cancelled(link, request_id)

    async def test_sync_is_answered_when_it_has_ended(self, link: HostLink, switch: Switch) -> None:
        request_id = link.ask("call", name="blocking", input={})
        await switch.wait_started()
        link.cancel(request_id)
        assert await link.request("prompt")  # not answered yet
        switch.go.set()
        await self.cancelled(link, request_id)

    @pytest.mark.parametrize("name", ["shell_sync", "shell_async"])
    @pytest.mark.usefixtures("same_user")
    async def test_commands_are_ended(self, link: HostLink, switch: Switch, name: str) -> None:
        request_id = link.ask("call", name=name, input={})
        await switch.wait_started()
        link.cancel(request_id)
        await self.cancelled(link, request_id)

    async def test_a_tool_that_returns_all_the_same(self, link: HostLink, switch: Switch) -> None:
        request_id = link.ask("call", name="stubborn", input={})
        await switch.wait_started()
        link.cancel(request_id)
        answer = await link.answer()
        assert answer.id == request_id
        assert answer.result["output"]["blocks"][0]["text"] == "anyway"

    async def test_right_behind_the_request(self, link: HostLink) -> None:
        request = messages.request(77, "call", {"call_id": "c", "name": "waiting", "input": {}})
        link.send_bytes(frames.encode_frame(request) + frames.encode_frame(messages.notification("cancel", {"id": 77})))
        await self.cancelled(link, 77)

    async def test_of_what_is_not_there(self, link: HostLink) -> None:
        link.cancel(12345)
        assert await link.request("prompt")


class TestHostThatGoesAway:
    async def test_a_call_goes_on_and_its_result_can_be_asked_for(
        self, host: FakeHost, link: HostLink, switch: Switch
    ) -> None:
        link.ask("call", call_id="one", name="blocking", input={})
        await switch.wait_started()
        host.close()
        await host.listen()
        again, hello = await host.welcome()
        assert hello.token == TOKEN
        assert hello.episode is not None
        assert (hello.episode.environment, hello.episode.running_calls) == ("Env", ["one"])
        request_id = again.ask("result", call_id="one")
        switch.go.set()
        answer = await again.answer()
        assert (answer.id, answer.error) == (request_id, None)
        assert answer.result["output"]["blocks"][0]["text"] == "unblocked"
        again.close()
        third, hello = await host.welcome()  # the host died again before the client had the result
        assert hello.episode is not None and hello.episode.finished_calls == ["one"]
        assert await third.request("result", call_id="one") == answer.result
        assert await third.request("call", call_id="one", name="big", input={}) == answer.result  # at most once

    async def test_the_scoring_of_a_group_is_a_call_too(self, host: FakeHost, link: HostLink) -> None:
        fault = await link.fault("score_group", call_id="one", candidates=[])
        assert fault == ("not_supported", "Env does not implement score_group")
        link.close()
        again, hello = await host.welcome()
        assert hello.episode is not None and hello.episode.finished_calls == ["one"]
        assert await again.fault("result", call_id="one") == fault

    async def test_ids_may_be_used_again_on_the_next_connection(
        self, host: FakeHost, link: HostLink, switch: Switch
    ) -> None:
        first = link.ask("call", call_id="one", name="waiting", input={})
        await switch.wait_started()
        link.close()
        again, _ = await host.welcome()
        again.send(messages.request(first, "prompt", {}))
        answer = await again.answer()
        assert (answer.id, answer.error) == (first, None)

    async def test_an_adopted_call_can_be_cancelled(self, host: FakeHost, link: HostLink, switch: Switch) -> None:
        link.ask("call", call_id="one", name="waiting", input={})
        await switch.wait_started()
        link.close()
        again, _ = await host.welcome()
        request_id = again.ask("result", call_id="one")
        again.cancel(request_id)
        answer = await again.answer()
        assert answer.error is not None and answer.error.data.fault == "cancelled"

    async def test_a_setup_runs_once_however_often_it_is_asked_for(self, host: FakeHost, link: HostLink) -> None:
        assert await link.request("setup") is None
        link.close()
        again, _ = await host.welcome()
        assert await again.request("setup") is None

    async def test_results_are_forgotten_after_a_while_and_ids_are_not(
        self, host: FakeHost, link: HostLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs, "KEEP_S", 0)
        assert await link.request("call", call_id="one", name="big", input={})
        link.close()
        again, hello = await host.welcome()
        assert hello.episode is not None and hello.episode.forgotten_calls == ["one"]
        for method in ("result", "call"):
            fault, _ = await again.fault(method, call_id="one", name="big", input={})
            assert fault == "unknown_call"

    async def test_only_so_many_bytes_of_results_are_kept(
        self, host: FakeHost, link: HostLink, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs, "MAX_KEPT_BYTES", 10_000)
        for call_id in ("one", "two", "three"):
            await link.request("call", call_id=call_id, name="big", input={})
        link.close()
        _, hello = await host.welcome()
        assert hello.episode is not None
        assert (hello.episode.finished_calls, hello.episode.forgotten_calls) == (["three"], ["one", "two"])

    @pytest.mark.parametrize("welcomed", [True, False])
    async def test_the_end_after_the_set_time(self, host: FakeHost, welcomed: bool) -> None:
        task = asyncio.create_task(make_worker(host.directory, reconnect_s=0.3).run())
        if welcomed:
            await host.welcome()
        else:
            await host.accept()
        host.close()
        await asyncio.wait_for(task, 30)

    async def test_nobody_ever_there(self, short_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        await make_worker(short_directory, reconnect_s=0).run()
        assert "no host for 0 s" in capsys.readouterr().err

    async def test_it_waits_for_a_host_that_is_late(self, short_directory: Path) -> None:
        late = FakeHost(short_directory)
        task = asyncio.create_task(make_worker(short_directory).run())
        await asyncio.sleep(0)
        await late.listen()
        await late.welcome()
        task.cancel()
        await asyncio.wait([task])
        late.close()

    async def test_it_does_not_wait_long_for_what_is_stuck_at_the_end(
        self, host: FakeHost, switch: Switch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker, "_STOP_GRACE_S", 0.05)
        task = asyncio.create_task(make_worker(host.directory, reconnect_s=0).run())
        link, _ = await host.welcome()
        await link.request("create", env="Env", task_spec={})
        link.ask("call", name="blocking", input={})
        await switch.wait_started()
        host.close()
        await asyncio.wait_for(task, 30)
        switch.go.set()


class TestHostThatLies:
    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (b"\xff\xff\xff\xff", "over the limit"),
            (b"\0\0\0\x02[]", "not an object"),
            (frames.encode_frame({"what": 1}), "id: Field required"),
            (frames.encode_frame({"method": 1}), "method"),
            (frames.encode_frame(messages.result(5, None)), "an answer, but nothing was asked"),
            (frames.encode_frame(messages.notification("cancel", {"id": "x"})), "cancel: id: "),
            (frames.encode_frame(messages.notification("cancel", {})), "cancel: id: "),
        ],
    )
    async def test_is_left(self, link: HostLink, running: asyncio.Task[None], data: bytes, problem: str) -> None:
        link.send_bytes(data)
        with pytest.raises(ProtocolViolation, match=problem):
            await ended(running)
        with pytest.raises(EOFError):
            await link.receive()

    async def test_an_id_twice(self, link: HostLink, running: asyncio.Task[None], switch: Switch) -> None:
        request_id = link.ask("call", name="waiting", input={})
        await switch.wait_started()
        link.send(messages.request(request_id, "prompt", {}))
        with pytest.raises(ProtocolViolation, match=f"request {request_id} is in flight already"):
            await ended(running)

    async def test_a_notification_of_a_newer_host_is_ignored(self, link: HostLink) -> None:
        link.send(messages.notification("news", {}))
        assert await link.request("prompt")


def test_flat_lists_of_any_length_are_sent() -> None:
    frame = Answer.of([{"n": n} for n in range(10_000)]).frame(1, frames.DEFAULT_MAX_FRAME_BYTES)
    assert len(frames.FrameDecoder().feed(frame)[0]["result"]) == 10_000
