"""Requests to an environment: discovery, and a whole episode in its order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field, field_validator

from sandbox_runtime import (
    Blocks,
    Environment,
    JSONObject,
    ListToolsOutput,
    RunToolError,
    RunToolSuccess,
    Split,
    TextBlock,
    ToolOutput,
    Toolset,
    ToolSpec,
    tool,
)
from sandbox_runtime.adapter import Adapter
from sandbox_runtime.discovery import LIST_TASKS_NOT_SUPPORTED
from sandbox_runtime.faults import RequestFault
from sandbox_runtime.messages import Fault, Method
from sandbox_runtime.output import MAX_MESSAGE_CHARS
from sandbox_runtime.scope import CallScope, current_scope


def said(text: str, **fields: Any) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], **fields)


class Number(BaseModel, extra="forbid"):
    n: int = Field(ge=0)

    @field_validator("n")
    @classmethod
    def _no_thirteen(cls, n: int) -> int:
        if n == 13:
            raise RuntimeError("unlucky")
        return n


class Extra(Toolset):
    @tool
    def from_toolset(self) -> ToolOutput:
        return said(f"toolset of {self.env.task_spec['name']}")


class Counter(Environment):
    toolsets: ClassVar[Sequence[type]] = (Extra,)

    def __init__(self, task_spec: JSONObject, secrets: dict[str, str]) -> None:
        super().__init__(task_spec, secrets)
        self.log: list[str] = []

    @classmethod
    def list_splits(cls) -> Any:
        return ["train", Split(name="hard", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"split": split, "n": n} for n in range(3)]

    def setup(self) -> None:
        self.log.append("setup")

    async def get_prompt(self) -> Blocks:
        self.log.append("prompt")
        return [TextBlock(text=" ".join(self.log))]

    async def teardown(self) -> None:
        self.log.append("teardown")

    @tool
    def add(self, params: Number) -> ToolOutput:
        """Add."""
        return said(str(params.n + 1), reward=float(params.n))

    @tool
    async def add_async(self, params: Number) -> ToolOutput:
        return said(str(params.n + 1))

    @tool(shared=False)
    def only_here(self) -> ToolOutput:
        return said("here")

    @tool
    def finish(self) -> ToolOutput:
        return said("done", reward=1.0, finished=True)

    @tool
    def reveal(self) -> ToolOutput:
        return said(",".join(self.secrets.values()))


async def ask(adapter: Adapter, method: str, **params: Any) -> Any:
    current_scope.set(CallScope())
    if method == "call":
        params.setdefault("call_id", "c")
    return await adapter.answer(method, params)


async def fault_of(adapter: Adapter, method: str, **params: Any) -> tuple[Fault, str]:
    with pytest.raises(RequestFault) as caught:
        await ask(adapter, method, **params)
    return caught.value.fault, str(caught.value)


async def created(env: type[Environment], task_spec: Mapping[str, Any] | None = None, **secrets: str) -> Adapter:
    adapter = Adapter([env])
    assert await ask(adapter, "create", env=env.__name__, task_spec=task_spec or {}, secrets=secrets) is None
    return adapter


async def call(adapter: Adapter, name: str, **tool_input: Any) -> Any:
    return await ask(adapter, "call", name=name, input=tool_input)


def text(result: Any) -> str:
    assert isinstance(result, RunToolSuccess), result
    (block,) = result.output.blocks
    assert isinstance(block, TextBlock)
    return block.text


class Lazy(Counter):
    @classmethod
    def list_tasks(cls, split: str) -> Any:
        raise NotImplementedError

    @classmethod
    def num_tasks(cls, split: str) -> Any:
        return 4

    @classmethod
    async def get_task(cls, split: str, index: int) -> Any:
        return {"i": index}


class TestDiscovery:
    async def test_tools(self) -> None:
        tools = (await ask(Adapter([Counter]), "list_tools", env="Counter")).tools
        assert [spec.name for spec in tools] == ["add", "add_async", "finish", "reveal", "from_toolset"]
        assert tools[0] == ToolSpec(name="add", description="Add.", input_schema=Number.model_json_schema())

    async def test_splits(self) -> None:
        splits = await ask(Adapter([Counter]), "list_splits", env="Counter")
        assert splits == [Split(name="train", type="train"), Split(name="hard", type="test")]

    async def test_tasks(self) -> None:
        adapter = Adapter([Counter])
        assert await ask(adapter, "num_tasks", env="Counter", split="hard") == 3
        assert (await ask(adapter, "list_tasks", env="Counter", split="hard"))[1] == {"split": "hard", "n": 1}
        assert (await ask(adapter, "get_task", env="Counter", split="train", index=-1))["n"] == 2
        found = await ask(adapter, "get_task_range", env="Counter", split="train", start=-2, stop=None)
        assert [task["n"] for task in found] == [1, 2]
        assert len(await ask(adapter, "get_task_range", env="Counter", split="train")) == 3

    async def test_environments_are_found_whatever_the_case(self) -> None:
        adapter = Adapter([Counter, Lazy])
        assert await ask(adapter, "num_tasks", env="LAZY", split="train") == 4
        fault, message = await fault_of(adapter, "list_tools", env="other")
        assert (fault, message) == (Fault.BAD_REQUEST, "no environment 'other' here; there is Counter, Lazy")

    @pytest.mark.parametrize("method", ["list_tasks", "num_tasks", "get_task", "get_task_range"])
    async def test_invalid_split(self, method: str) -> None:
        params = {"index": 0} if method == "get_task" else {}
        expected = (Fault.INVALID_SPLIT, "Invalid split")
        assert await fault_of(Adapter([Counter]), method, env="Counter", split="tr", **params) == expected

    @pytest.mark.parametrize("index", [3, -4])
    async def test_invalid_index(self, index: int) -> None:
        expected = (Fault.INVALID_INDEX, "Invalid index")
        assert await fault_of(Adapter([Counter]), "get_task", env="Counter", split="train", index=index) == expected

    async def test_invalid_range(self) -> None:
        class NoRange(Counter):
            @classmethod
            def get_task_range(cls, split: str, start: int | None = None, stop: int | None = None) -> Any:
                raise IndexError

        expected = (Fault.INVALID_INDEX, "Invalid index range")
        assert await fault_of(Adapter([NoRange]), "get_task_range", env="NoRange", split="train") == expected

    async def test_without_a_list_of_tasks(self) -> None:
        adapter = Adapter([Lazy])
        fault = await fault_of(adapter, "list_tasks", env="Lazy", split="train")
        assert fault == (Fault.NOT_SUPPORTED, LIST_TASKS_NOT_SUPPORTED)
        found = await ask(adapter, "get_task_range", env="Lazy", split="train", start=2, stop=9)
        assert found == [{"i": 2}, {"i": 3}]

    @pytest.mark.parametrize("method", ["list_tasks", "num_tasks", "get_task", "get_task_range", "list_tools"])
    async def test_what_raises_and_what_returns_rubbish(self, method: str) -> None:
        def broken(*_: Any) -> Any:
            raise ZeroDivisionError("oops")

        params: dict[str, Any] = {} if method == "list_tools" else {"split": "train"}
        if method == "get_task":
            params["index"] = 0
        raising = type("Raising", (Counter,), {method: classmethod(broken)})
        fault = await fault_of(Adapter([raising]), method, env="Raising", **params)
        assert fault == (Fault.ENVIRONMENT_RAISED, "ZeroDivisionError: oops")
        rubbish = type("Rubbish", (Counter,), {method: classmethod(lambda *_: [3])})
        bad, message = await fault_of(Adapter([rubbish]), method, env="Rubbish", **params)
        assert bad is Fault.BAD_RESULT
        assert message.startswith(f"Rubbish.{method} returned ")

    async def test_splits_are_asked_for_once(self) -> None:
        asked: list[None] = []

        class Once(Counter):
            @classmethod
            async def list_splits(cls) -> Any:
                asked.append(None)
                return ["train"]

        for _ in range(3):
            await ask(Adapter([Once]), "num_tasks", env="Once", split="train")
        assert asked == [None]


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("nonsense", {}, "unknown method 'nonsense'"),
        ("hello", {}, "unknown method 'hello'"),
        ("list_tools", {}, "list_tools: env: Field required"),
        ("list_tools", {"env": 1}, "list_tools: env: Input should be a valid string"),
        ("list_tools", {"env": "Counter", "more": 1}, "list_tools: more: Extra inputs are not permitted"),
        ("get_task", {"env": "Counter", "split": "train", "index": "0"}, "get_task: index: "),
        ("get_task", {"env": "Counter", "split": "train", "index": 1.0}, "get_task: index: "),
        ("create", {"env": "Counter", "task_spec": []}, "create: task_spec: "),
        ("create", {"env": "Counter", "task_spec": {}, "secrets": {"a": 1}}, "create: secrets.a: "),
        ("call", {"name": "add", "input": []}, "call: input: "),
        ("setup", {}, "there is no episode: create comes first"),
        ("prompt", {}, "there is no episode: create comes first"),
        ("task_tools", {}, "there is no episode: create comes first"),
        ("call", {"name": "add", "input": {}}, "there is no episode: create comes first"),
        ("teardown", {}, "there is no episode: create comes first"),
    ],
)
async def test_requests_that_make_no_sense(method: str, params: dict[str, Any], message: str) -> None:
    fault, said_ = await fault_of(Adapter([Counter]), method, **params)
    assert fault is Fault.BAD_REQUEST
    assert said_.startswith(message)


def test_every_method_is_answered() -> None:
    assert set(Adapter([])._handlers) == set(Method) - {Method.RESULT}  # the worker's own: it needs no environment


class TestEpisode:
    async def test_in_order(self) -> None:
        adapter = await created(Counter, {"name": "x"}, key="hunter2")
        assert await ask(adapter, "setup") is None
        assert await ask(adapter, "prompt") == [TextBlock(text="setup prompt")]
        assert await ask(adapter, "prompt") == [TextBlock(text="setup prompt prompt")]
        assert await call(adapter, "add", n=2) == RunToolSuccess(output=said("3", reward=2.0))
        assert text(await call(adapter, "add_async", n=5)) == "6"
        assert text(await call(adapter, "only_here")) == "here"
        assert text(await call(adapter, "from_toolset")) == "toolset of x"
        assert text(await call(adapter, "reveal")) == "hunter2"
        assert await ask(adapter, "teardown") is None
        for method in ("setup", "prompt", "teardown"):
            assert await fault_of(adapter, method) == (Fault.BAD_REQUEST, "the episode has been torn down")

    async def test_create_only_once(self) -> None:
        adapter = await created(Counter)
        fault, _ = await fault_of(adapter, "create", env="Counter", task_spec={})
        assert fault is Fault.BAD_REQUEST

    async def test_no_toolset_per_session(self) -> None:
        adapter = Adapter([Counter])
        fault, message = await fault_of(adapter, "create", env="Counter", task_spec={}, toolset_name="bash")
        assert fault is Fault.INVALID_TOOLSET
        assert "toolset 'bash'" in message

    async def test_task_tools_are_shared_and_own(self) -> None:
        names = [spec.name for spec in (await ask(await created(Counter), "task_tools")).tools]
        assert names == ["add", "add_async", "finish", "reveal", "from_toolset", "only_here"]

    async def test_task_tools_of_the_authors_choice(self) -> None:
        special = ToolSpec(name="add", description="Add, for this task.", input_schema=None)

        class Choosing(Counter):
            async def list_task_tools(self) -> ListToolsOutput:
                return ListToolsOutput(tools=[special])

        tools = (await ask(await created(Choosing), "task_tools")).tools
        assert tools[0] == special
        assert "only_here" not in [spec.name for spec in tools]

    @pytest.mark.parametrize("method", ["setup", "get_prompt", "list_task_tools", "teardown"])
    async def test_a_method_that_raises(self, method: str) -> None:
        def broken(self: Any) -> Any:
            raise SystemExit("gone")

        adapter = await created(type("Broken", (Counter,), {method: broken}))
        request = {"get_prompt": "prompt", "list_task_tools": "task_tools"}.get(method, method)
        assert await fault_of(adapter, request) == (Fault.ENVIRONMENT_RAISED, "SystemExit: gone")

    async def test_a_prompt_that_is_no_list_of_blocks(self) -> None:
        adapter = await created(type("Odd", (Counter,), {"get_prompt": lambda self: "prompt"}))
        fault, message = await fault_of(adapter, "prompt")
        assert fault is Fault.BAD_RESULT
        assert message == "Odd.get_prompt returned str; expected a list of TextBlock and ImageBlock"


def with_constructor(constructor: Any) -> type[Environment]:
    return type("Made", (Counter,), {"__init__": constructor, "reveal": tool(_reveal)})


def _reveal(self: Any) -> ToolOutput:
    return said(f"{dict(self.task_spec)} {self.secrets}")


class TestConstructors:
    def _both(self: Any, task_spec: Any, secrets: Any) -> None:
        Environment.__init__(self, task_spec, secrets)

    def _swapped(self: Any, secrets: Any, task_spec: Any) -> None:
        Environment.__init__(self, task_spec, secrets)

    def _without_super(self: Any, task_spec: Any, secrets: Any) -> None:
        pass

    def _task_only(self: Any, task_spec: Any) -> None:
        Environment.__init__(self, task_spec)

    def _keywords(self: Any, **kwargs: Any) -> None:
        Environment.__init__(self, **kwargs)

    def _other_names(self: Any, task: Any, keys: Any) -> None:
        Environment.__init__(self, task, keys)

    def _one_other_name(self: Any, task: Any) -> None:
        pass

    def _nothing(self: Any) -> None:
        pass

    @pytest.mark.parametrize(
        ("constructor", "has_secrets"),
        [
            (_both, True),
            (_swapped, True),
            (_without_super, True),
            (_task_only, False),
            (_keywords, True),
            (_other_names, True),
            (_one_other_name, True),
            (_nothing, True),
        ],
    )
    async def test_forms(self, constructor: Any, has_secrets: bool) -> None:
        adapter = await created(with_constructor(constructor), {"a": 1}, key="v")
        expected = {"key": "v"} if has_secrets else {}
        assert text(await call(adapter, "reveal")) == f"{{'a': 1}} {expected}"

    async def test_one_that_raises(self) -> None:
        def needs_key(self: Any, task_spec: Any, secrets: Any) -> None:
            secrets["api_key"]

        env = with_constructor(needs_key)
        fault = await fault_of(Adapter([env]), "create", env="Made", task_spec={})
        assert fault == (Fault.ENVIRONMENT_RAISED, "KeyError: 'api_key'")

    async def test_one_with_too_many_parameters(self) -> None:
        def three(self: Any, a: Any, b: Any, c: Any) -> None:
            pass

        fault, message = await fault_of(Adapter([with_constructor(three)]), "create", env="Made", task_spec={})
        assert fault is Fault.ENVIRONMENT_RAISED
        assert "missing 1 required positional argument: 'c'" in message

    async def test_it_runs_in_a_thread(self) -> None:
        threads: list[threading.Thread] = []

        def note(self: Any, task_spec: Any, secrets: Any) -> None:
            threads.append(threading.current_thread())

        await created(with_constructor(note))
        assert threads[0] is not threading.current_thread()


def tool_env(function: Any, **options: bool) -> type[Environment]:
    return type("One", (Counter,), {"act": tool(**options)(function)})


class TestCalls:
    async def test_unknown_tool(self) -> None:
        result = await call(await created(Counter), "nope")
        assert result == RunToolError(error="'nope' is not a valid tool", reason="not_found")

    @pytest.mark.parametrize("name", ["setup", "__init__", "get_prompt", "", "task_spec"])
    async def test_what_is_no_tool_can_not_be_called(self, name: str) -> None:
        assert (await call(await created(Counter), name)).reason == "not_found"

    async def test_a_name_of_any_length_is_echoed_in_part_only(self) -> None:
        assert len((await call(await created(Counter), "x" * 10**6)).error) < 300

    @pytest.mark.parametrize("name", ["add", "add_async"])
    @pytest.mark.parametrize(
        ("tool_input", "message"),
        [
            ({}, "n: Field required"),
            ({"n": "many"}, "n: Input should be a valid integer"),
            ({"n": -1}, "n: Input should be greater than or equal to 0"),
            ({"n": 1, "m": 2}, "m: Extra inputs are not permitted"),
        ],
    )
    async def test_invalid_input(self, name: str, tool_input: dict[str, Any], message: str) -> None:
        result = await call(await created(Counter), name, **tool_input)
        assert isinstance(result, RunToolError)
        assert result.reason == "input_validation"
        assert result.error.startswith(f"Tool input validation error: {message}")

    async def test_invalid_input_is_not_echoed_at_length(self) -> None:
        result = await call(await created(Counter), "add", n="s" * 10**6, **{"k" * 10**5: 1})
        assert "sss" not in result.error
        assert len(result.error) < MAX_MESSAGE_CHARS + 50

    async def test_a_validator_that_raises_is_the_authors_code(self) -> None:
        fault = await fault_of(await created(Counter), "call", name="add", input={"n": 13})
        assert fault == (Fault.ENVIRONMENT_RAISED, "unlucky")

    async def test_a_validation_error_inside_a_tool_is_not_about_its_input(self) -> None:
        def act(self: Any) -> ToolOutput:
            Number.model_validate({"n": "x"})
            raise AssertionError

        fault, message = await fault_of(await created(tool_env(act)), "call", name="act", input={})
        assert fault is Fault.ENVIRONMENT_RAISED
        assert "1 validation error for Number" in message

    @pytest.mark.parametrize(
        ("exc", "message"),
        [
            (ValueError("my words"), "my words"),
            (ValueError(), "ValueError"),
            (SystemExit(1), "1"),
            (KeyboardInterrupt(), "KeyboardInterrupt"),
            (asyncio.CancelledError(), "CancelledError"),
            (BaseException("base"), "base"),
        ],
    )
    @pytest.mark.parametrize("is_async", [True, False])
    async def test_a_tool_that_raises(self, exc: BaseException, message: str, is_async: bool) -> None:
        async def act_async(self: Any) -> ToolOutput:
            raise exc

        def act(self: Any) -> ToolOutput:
            raise exc

        adapter = await created(tool_env(act_async if is_async else act))
        assert await fault_of(adapter, "call", name="act", input={}) == (Fault.ENVIRONMENT_RAISED, message)
        assert text(await call(adapter, "add", n=1)) == "2"  # the episode goes on

    async def test_a_result_that_is_no_tool_output(self) -> None:
        def act(self: Any) -> ToolOutput:
            return "text"  # type: ignore[return-value]

        fault = await fault_of(await created(tool_env(act)), "call", name="act", input={})
        assert fault == (Fault.BAD_RESULT, "One.act returned str; expected ToolOutput")

    async def test_a_lost_reward_is_an_error(self) -> None:
        def act(self: Any) -> ToolOutput:
            output = said("x", finished=True)
            output.reward = float("nan")
            return output

        adapter = await created(tool_env(act))
        fault, message = await fault_of(adapter, "call", name="act", input={})
        assert fault is Fault.BAD_RESULT
        assert "reward: Input should be a finite number" in message
        assert text(await call(adapter, "add", n=1)) == "2"  # nor has it finished the episode

    async def test_after_the_end(self) -> None:
        adapter = await created(Counter)
        assert (await call(adapter, "finish")).output.finished
        result = await call(adapter, "add", n=1)
        assert isinstance(result, RunToolError)
        assert result.reason == "episode_finished"
        assert "episode has finished" in result.error
        assert (await call(adapter, "nope")).reason == "not_found"
        assert await ask(adapter, "prompt")

    async def test_a_toolset_that_can_not_be_made(self) -> None:
        class Needy(Toolset):
            def __init__(self, env: Any) -> None:
                raise ValueError("no sandbox")

            @tool
            def act(self) -> ToolOutput:
                return said("x")

        env = type("One", (Counter,), {"toolsets": (Needy,)})
        fault = await fault_of(await created(env), "call", name="act", input={})
        assert fault == (Fault.ENVIRONMENT_RAISED, "ValueError: no sandbox")

    async def test_a_toolset_is_made_once(self) -> None:
        made: list[object] = []

        class Counted(Toolset):
            def __init__(self, env: Any) -> None:
                super().__init__(env)
                made.append(env)

            @tool(concurrent=True)
            def act(self) -> ToolOutput:
                return said("x")

        adapter = await created(type("One", (Counter,), {"toolsets": (Counted,)}))
        await asyncio.gather(*(call(adapter, "act") for _ in range(5)))
        assert len(made) == 1


class Steps(Counter):
    """Tools that wait until the test lets them go on."""

    go: ClassVar[asyncio.Event]
    running: ClassVar[asyncio.Semaphore]

    async def _wait(self, **fields: Any) -> ToolOutput:
        self.running.release()
        await self.go.wait()
        return said("went", **fields)

    @tool
    async def plain(self) -> ToolOutput:
        return await self._wait()

    @tool(concurrent=True)
    async def end_together(self) -> ToolOutput:
        return await self._wait(finished=True, reward=1.0)

    @tool(exclusive=True)
    async def end_alone(self) -> ToolOutput:
        return await self._wait(finished=True)


@pytest.fixture
def steps() -> type[Steps]:
    return type("Steps", (Steps,), {"go": asyncio.Event(), "running": asyncio.Semaphore(0)})


class TestConcurrency:
    async def test_a_call_that_waited_for_the_end_is_refused(self, steps: type[Steps]) -> None:
        adapter = await created(steps)
        end = asyncio.create_task(call(adapter, "end_alone"))
        await steps.running.acquire()
        waiting = [asyncio.create_task(call(adapter, name)) for name in ("plain", "end_together")]
        steps.go.set()
        assert (await end).output.finished
        assert [(await task).reason for task in waiting] == ["episode_finished"] * 2

    async def test_of_two_ends_the_first_counts(self, steps: type[Steps]) -> None:
        adapter = await created(steps)
        ends = [asyncio.create_task(call(adapter, "end_together")) for _ in range(2)]
        for _ in ends:
            await steps.running.acquire()
        steps.go.set()
        results = [await end for end in ends]
        assert [type(result) for result in results] == [RunToolSuccess, RunToolError]

    async def test_a_blocking_sync_tool_blocks_nothing_else(self) -> None:
        let_go = threading.Event()

        def act(self: Any) -> ToolOutput:
            assert let_go.wait(30)
            return said("at last")

        adapter = await created(tool_env(act))
        blocked = asyncio.create_task(call(adapter, "act"))
        assert text(await call(adapter, "add", n=1)) == "2"
        assert await ask(adapter, "prompt")
        assert not blocked.done()
        let_go.set()
        assert text(await blocked) == "at last"
