"""Environments of both public SDKs: they answer as in their SDK's own server, whose code is asked for the expected answer."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

from sandbox_runtime.loader import LoadError
from sandbox_runtime.messages import Fault, Split
from tests.runtime.authors import Author, ask, call, fault_of, text_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the SDKs import

ENV = '''
import asyncio, threading
from SDK import Environment, ListToolsOutput, Split, TextBlock, ImageBlock, ToolOutput, ToolSpec, Toolset, tool
from pydantic import BaseModel

def said(text, **fields):
    return ToolOutput(blocks=[TextBlock(text=str(text))], **fields)

class Number(BaseModel, extra="forbid"):
    n: int

class Notes:
    def __init__(self, env):
        self.env = env
        self.seen = 0
    @tool
    def note(self) -> ToolOutput:
        """ Look at the task. """
        self.seen += 1
        return said(f"{self.env.task_spec} {self.seen}")

class Counter(Environment):
    toolsets = [Notes]

    def __init__(self, task_spec, secrets={}):
        super().__init__(task_spec)
        self.given = secrets

    @classmethod
    def list_splits(cls): return ["train", "hard", Split(name="t", type="test")]

    @classmethod
    def list_tasks(cls, split): return [{"split": split, "n": n} for n in range(3)]

    def get_prompt(self): return [TextBlock(text="do"), ImageBlock(data="aGk=", mimeType="image/png")]

    @tool
    def add(self, params: Number) -> ToolOutput:
        """Add one.

            It is done here.
        """
        return said(params.n + 1, reward=1, finished=params.n == 9, metadata={"a": [1]})

    @tool
    async def where(self) -> ToolOutput:
        return said(threading.get_ident())

    @tool
    def secret(self) -> ToolOutput: return said(self.given)

    @tool
    def wrong(self) -> ToolOutput: return {"blocks": []}

    @tool
    def breaks(self) -> ToolOutput: raise KeyError("gone")

    @tool(shared=False)
    def hidden(self) -> ToolOutput: return said("hidden")
'''


@pytest.fixture(params=["ors", "openreward.environments"])
def author(request: pytest.FixtureRequest, folder: Any) -> Author:
    return Author(folder, request.param)


def sdk_instance(task: dict[str, Any] | None = None) -> Any:
    """Return an instance of the environment that was loaded, to be asked as the SDK's server asks it."""
    return sys.modules["env"].Counter(task_spec=task or {}, secrets={})


class TestDiscovery:
    async def test_tools_are_listed_as_the_sdk_lists_them(self, author: Author) -> None:
        adapter = await author.adapter(ENV)
        listed = await ask(adapter, "list_tools", env="counter")
        assert listed.model_dump() == sys.modules["env"].Counter.list_tools().model_dump()
        assert [spec.name for spec in listed.tools] == ["add", "breaks", "secret", "where", "wrong", "note"]

    async def test_only_openreward_says_more_than_the_tools(self, author: Author) -> None:
        listed = (await ask(await author.adapter(ENV), "list_tools", env="counter")).model_dump(mode="json")
        more = {"terminal_tool", "supports_score_group", "message_block_types"}
        assert set(listed) - {"tools"} == (set() if author.sdk == "ors" else more)

    async def test_splits(self, author: Author) -> None:
        splits = await ask(await author.adapter(ENV), "list_splits", env="counter")
        assert splits == [
            Split(name="train", type="train"),
            Split(name="hard", type="validation"),
            Split(name="t", type="test"),
        ]

    async def test_tasks(self, author: Author) -> None:
        adapter = await author.adapter(ENV)
        of = {"env": "Counter", "split": "t"}
        tasks = await ask(adapter, "list_tasks", **of)
        assert tasks == [{"split": "t", "n": n} for n in range(3)]
        assert await ask(adapter, "num_tasks", **of) == 3
        assert await ask(adapter, "get_task", **of, index=-1) == tasks[2]
        assert (await fault_of(adapter, "get_task", **of, index=3))[0] is Fault.INVALID_INDEX
        for start, stop in ((None, None), (1, None), (-2, -1), (-99, 99), (2, 1)):
            assert await ask(adapter, "get_task_range", **of, start=start, stop=stop) == tasks[start:stop]

    async def test_tasks_that_are_not_listed(self, author: Author) -> None:
        adapter = await author.adapter(
            ENV
            + """
    @classmethod
    def list_tasks(cls, split): raise NotImplementedError
    @classmethod
    async def num_tasks(cls, split): return 5
    @classmethod
    async def get_task(cls, split, index):
        if not 0 <= index < 5: raise IndexError(index)
        return {"i": index}
"""
        )
        of = {"env": "Counter", "split": "t"}
        assert (await fault_of(adapter, "list_tasks", **of))[0] is Fault.NOT_SUPPORTED
        assert await ask(adapter, "num_tasks", **of) == 5
        assert await ask(adapter, "get_task", **of, index=4) == {"i": 4}
        assert (await fault_of(adapter, "get_task", **of, index=5)) == (Fault.INVALID_INDEX, "Invalid index")
        assert await ask(adapter, "get_task_range", **of, start=-2, stop=99) == [{"i": 3}, {"i": 4}]

    async def test_all_methods_async_and_a_tasks_model(self, author: Author) -> None:
        adapter = await author.adapter(
            ENV
            + """
    @classmethod
    async def list_tasks(cls, split): return (Number(n=1), Number(n=2))
"""
        )
        of = {"env": "Counter", "split": "t"}
        assert [task.n for task in await ask(adapter, "list_tasks", **of)] == [1, 2]
        assert await ask(adapter, "num_tasks", **of) == 2
        assert (await ask(adapter, "get_task", **of, index=1)).n == 2

    async def test_its_name_is_what_the_sdk_calls_it(self, author: Author) -> None:
        adapter = await author.adapter(ENV + "\n    @classmethod\n    def name(cls): return 'Count-Er'\n")
        assert adapter.names == ["Count-Er"]
        assert await ask(adapter, "num_tasks", env="count-er", split="t") == 3

    async def test_a_slow_list_of_tasks_holds_nothing_up(self, author: Author) -> None:
        adapter = await author.adapter(
            ENV
            + """
    started, go_on = threading.Event(), threading.Event()
    @classmethod
    def list_tasks(cls, split):
        cls.started.set()
        assert cls.go_on.wait(30)
        return [{}]
"""
        )
        counter = sys.modules["env"].Counter
        counting = asyncio.create_task(ask(adapter, "num_tasks", env="Counter", split="t"))
        await asyncio.to_thread(counter.started.wait, 30)
        assert await ask(adapter, "list_splits", env="Counter")
        counter.go_on.set()
        assert await counting == 1


class TestConstruction:
    async def test_task_and_secrets(self, author: Author) -> None:
        adapter = await author.created(ENV, task={"x": 1}, secrets={"KEY": "v"})
        assert await text_of(adapter, "secret") == "{'KEY': 'v'}"
        assert await text_of(adapter, "note") == "{'x': 1} 1"
        assert await text_of(adapter, "note") == "{'x': 1} 2"

    async def test_without_a_call_of_the_base_class(self, author: Author) -> None:
        source = ENV.replace("super().__init__(task_spec)", "self.task_spec = dict(task_spec, own=True)")
        adapter = await author.created(source, task={"x": 1})
        assert await text_of(adapter, "note") == "{'x': 1, 'own': True} 1"
        assert (await call(adapter, "add", n=9)).output.finished

    async def test_that_takes_the_task_only(self, author: Author) -> None:
        source = ENV.replace("task_spec, secrets={}", "task_spec").replace(
            "self.given = secrets", "self.given = 'none'"
        )
        assert await text_of(await author.created(source, secrets={"KEY": "v"}), "secret") == "none"

    async def test_that_raises(self, author: Author) -> None:
        adapter = await author.adapter(ENV.replace("self.given = secrets", "self.given = secrets['KEY']"))
        fault = await fault_of(adapter, "create", env="Counter", task_spec={}, secrets={})
        assert fault == (Fault.ENVIRONMENT_RAISED, "KeyError: 'KEY'")


class TestTools:
    async def test_output(self, author: Author) -> None:
        result = (await call(await author.created(ENV), "add", n=1)).model_dump()
        block = {"type": "text", "text": "2", "detail": None}
        output = {"blocks": [block], "metadata": {"a": [1]}, "reward": 1.0, "finished": False}
        assert result == {"ok": True, "output": output}

    @pytest.mark.parametrize(
        ("name", "tool_input"),
        [
            ("add", {"n": "x"}),
            ("add", {}),
            ("add", {"n": 1, "more": "\ud800"}),
            ("nothing", {}),
            ("task_spec", {}),
            ("", {}),
        ],
    )
    async def test_what_is_refused_is_refused_in_the_sdks_words(
        self, author: Author, name: str, tool_input: dict[str, Any]
    ) -> None:
        adapter = await author.created(ENV)
        expected = (await sdk_instance()._call_tool(name, tool_input)).root
        result = await call(adapter, name, **tool_input)
        assert not result.ok
        assert result.error == expected.error.replace("\ud800", "\ufffd")

    async def test_a_wrong_result_and_an_exception_are_told_in_the_sdks_words(self, author: Author) -> None:
        adapter = await author.created(ENV)
        for name in ("wrong", "breaks"):
            with pytest.raises((TypeError, KeyError)) as expected:
                await sdk_instance()._call_tool(name, {})
            _fault, message = await fault_of(adapter, "call", call_id="c", name=name, input={})
            assert message == str(expected.value)

    async def test_sync_tools_have_threads_and_async_ones_the_loop(self, author: Author) -> None:
        source = ENV.replace(
            "def secret(self) -> ToolOutput: return said(self.given)",
            "def sync(self) -> ToolOutput: return said(threading.get_ident())",
        )
        adapter = await author.created(source)
        assert await text_of(adapter, "where") == str(threading.get_ident())
        assert await text_of(adapter, "sync") != str(threading.get_ident())

    async def test_a_hidden_tool_is_called_all_the_same(self, author: Author) -> None:
        adapter = await author.created(ENV)
        assert "hidden" not in [spec.name for spec in (await ask(adapter, "task_tools")).tools]
        assert await text_of(adapter, "hidden") == "hidden"

    @pytest.mark.parametrize("prefix", ["", "async "])
    async def test_a_tasks_own_tools_follow_the_others(self, author: Author, prefix: str) -> None:
        own = "ListToolsOutput(tools=[ToolSpec(name='hidden', description=self.task_spec['x'], input_schema=None)])"
        adapter = await author.created(f"{ENV}\n    {prefix}def list_task_tools(self): return {own}\n", task={"x": "y"})
        tools = (await ask(adapter, "task_tools")).tools
        assert [spec.name for spec in tools][-2:] == ["note", "hidden"]
        assert tools[-1].description == "y"

    async def test_calls_of_one_tool_wait_for_each_other(self, author: Author) -> None:
        adapter = await author.created(
            ENV
            + """
    running, most = 0, 0
    @tool
    async def slow(self) -> ToolOutput:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.running -= 1
        return said(self.most)
"""
        )
        results = await asyncio.gather(*(text_of(adapter, "slow") for _ in range(5)))
        assert results == ["1"] * 5

    async def test_nothing_runs_after_the_end(self, author: Author) -> None:
        adapter = await author.created(ENV)
        assert (await call(adapter, "add", n=9)).output.finished
        assert (await call(adapter, "note")).reason == "episode_finished"
        assert (await call(adapter, "nothing")).reason == "not_found"

    async def test_a_toolset_without_a_parameter(self, author: Author) -> None:
        source = ENV.replace(
            "def __init__(self, env):\n        self.env = env\n",
            "task_spec, env = 'none', property(lambda self: self)\n    def __init__(self):\n",
        )
        assert await text_of(await author.created(source), "note") == "none 1"

    async def test_a_toolset_that_can_not_be_made_is_passed_over(self, author: Author) -> None:
        adapter = await author.created(
            ENV.replace("def __init__(self, env):\n        self.env = env", "def __init__(self, a, b):")
        )
        assert (await call(adapter, "note")).reason == "not_found"
        assert await text_of(adapter, "hidden") == "hidden"

    async def test_the_sdks_own_toolset_class(self, author: Author) -> None:
        source = ENV.replace("class Notes:", "class Notes(Toolset):").replace(
            "        self.env = env\n", "        super().__init__(env)\n"
        )
        source = source.replace("self.given = secrets", "self.given = self.sandbox = secrets")
        assert await text_of(await author.created(source), "note") == "{} 1"

    async def test_one_name_on_the_class_and_in_a_toolset(self, author: Author) -> None:
        hidden = "\n    @tool(shared=False)\n    def note(self) -> ToolOutput: return said('mine')\n"
        result = await call(await author.created(ENV + hidden), "note")
        assert (result.ok, result.reason) == (False, "name_collision")

    async def test_a_tool_that_the_instance_has_alone(self, author: Author) -> None:
        late = "\n        self.late = type(self).hidden.__get__(self)\n"
        assert (
            await text_of(
                await author.created(ENV.replace("self.given = secrets", "self.given = secrets" + late)), "late"
            )
            == "hidden"
        )

    async def test_the_environment_may_call_its_tools_by_itself(self, author: Author) -> None:
        adapter = await author.created(
            ENV
            + """
    @tool
    async def both(self) -> ToolOutput:
        return (await self._call_tool("note", {})).root.output
"""
        )
        assert await text_of(adapter, "note") == "{} 1"
        assert await text_of(adapter, "both") == "{} 2"


class TestPrompt:
    async def test_prompt(self, author: Author) -> None:
        prompt = await ask(await author.created(ENV), "prompt")
        assert [block.type for block in prompt] == ["text", "image"]

    @pytest.mark.parametrize("prefix", ["", "async "])
    async def test_prompt_of_dicts(self, author: Author, prefix: str) -> None:
        adapter = await author.created(
            ENV + f"\n    {prefix}def get_prompt(self): return [{{'type': 'text', 'text': 'plain'}}]\n"
        )
        assert [block.text for block in await ask(adapter, "prompt")] == ["plain"]

    async def test_what_is_no_prompt(self, author: Author) -> None:
        for returned in ("'text'", "[{'type': 'video'}]", "None"):
            adapter = await author.created(ENV + f"\n    def get_prompt(self): return {returned}\n")
            assert (await fault_of(adapter, "prompt"))[0] is Fault.BAD_RESULT

    async def test_setup_and_teardown(self, author: Author) -> None:
        adapter = await author.created(
            ENV
            + """
    async def setup(self): self.given = "set up"
    def teardown(self): self.given.append
"""
        )
        await ask(adapter, "setup")
        assert await text_of(adapter, "secret") == "set up"
        assert (await fault_of(adapter, "teardown"))[0] is Fault.ENVIRONMENT_RAISED


SPLITS = '["train", "hard", Split(name="t", type="test")]'


@pytest.mark.parametrize(
    ("replaced", "by", "message"),
    [
        ("def list_splits", "def no_splits", "(Counter does not define list_splits)"),
        (SPLITS, "[]", "env:Counter has no splits"),
        (SPLITS, "[1]", "env:Counter: list_splits failed: Counter.list_splits returned something with int in it"),
        ("@tool", "#", "env:Counter: it has no tools that every task has"),
        ("@tool\n", "@tool(shared=False)\n", "env:Counter: it has no tools that every task has"),
        ("def where", "def note", "Tool name collision: 'note'"),
        ("params: Number", "params: 'Missing'", "name 'Missing' is not defined"),
        ("def get_prompt(self)", "def get_prompt(self", "SyntaxError"),
        ("from pydantic import", "from no_such_module import", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("class Number", "raise SystemExit(3)\nclass Number", "SystemExit: 3"),
    ],
)
async def test_what_can_not_be_served(author: Author, replaced: str, by: str, message: str) -> None:
    assert replaced in ENV
    with pytest.raises(LoadError) as caught:
        await author.adapter(ENV.replace(replaced, by))
    assert message in str(caught.value)
    assert "env.py" in str(caught.value)


async def test_two_of_one_name(author: Author) -> None:
    with pytest.raises(LoadError, match="the same name but for upper and lower case: env:Counter and env:COUNTER"):
        await author.adapter(ENV + "\nclass COUNTER(Counter): pass\n")
