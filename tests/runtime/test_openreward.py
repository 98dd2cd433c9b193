"""What only environments written for ``openreward`` have: conversations, groups, terminal tools, toolsets per session."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from sandbox_runtime.loader import LoadError
from sandbox_runtime.messages import Fault, GroupScore, TerminalToolSpec
from tests.runtime.authors import Author, ask, call, fault_of, text_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the SDK imports

ENV = '''
import asyncio
from openreward.environments import (
    Environment, GroupScore, ListToolsOutput, Message, ReasoningBlock, TextBlock, ToolCallBlock, ToolOutput, ToolResultBlock,
    ToolSpec, terminal, tool,
)
from pydantic import BaseModel

def said(text, **fields):
    return ToolOutput(blocks=[TextBlock(text=str(text))], **fields)

class Answer(BaseModel):
    answer: str

class Dialogue(Environment):
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]

    def __init__(self, task_spec, secrets):
        super().__init__(task_spec, secrets)
        self.log = []

    async def get_messages(self):
        return [
            Message(role="system", blocks=[TextBlock(text="s")]),
            Message(role="assistant", blocks=[ReasoningBlock(text="r"), ToolCallBlock(id="1", name="look", input={"a": 1})]),
            Message(role="user", blocks=[ToolResultBlock(tool_call_id="1", blocks=[TextBlock(text="seen")])]),
        ]

    @tool
    def look(self) -> ToolOutput: return said("look")

    @terminal
    @tool
    def submit(self, params: Answer) -> ToolOutput:
        """Grade."""
        return said(params.answer, reward=1.0, finished=True)
'''

PROMPTED = ENV.replace(
    "async def get_messages(self):", "def get_prompt(self): return [TextBlock(text='p')]\n    def unused(self):"
)
SCORING = (
    ENV
    + """
    def score_group(self, candidates):
        return [GroupScore(reward=len(c.messages), metadata=c.metadata) for c in candidates]
"""
)


@pytest.fixture
def author(folder: Any) -> Author:
    return Author(folder, "openreward.environments")


def candidate(*texts: str, **metadata: Any) -> dict[str, Any]:
    turns = [{"role": "user", "blocks": [{"type": "text", "text": text}]} for text in texts]
    return {"messages": turns, "metadata": metadata or None}


class TestConversations:
    async def test_messages(self, author: Author) -> None:
        messages = await ask(await author.created(ENV), "messages")
        expected = await sys.modules["env"].Dialogue({}, {}).get_messages()
        assert [message.model_dump() for message in messages] == [message.model_dump() for message in expected]

    async def test_a_prompt_is_a_conversation_of_one(self, author: Author) -> None:
        messages = await ask(await author.created(PROMPTED), "messages")
        assert [(message.role, [block.text for block in message.blocks]) for message in messages] == [("user", ["p"])]

    async def test_a_conversation_is_a_prompt(self, author: Author) -> None:
        prompt = await ask(await author.created(ENV), "prompt")
        assert [block.text for block in prompt][:3] == ["[system]", "s", "[assistant]"]

    async def test_what_is_no_conversation(self, author: Author) -> None:
        dicts = "[{'role': 'user', 'blocks': [{'type': 'reasoning', 'text': 'r'}]}]"
        adapter = await author.created(f"{ENV}\n    def get_messages(self): return {dicts}\n")
        fault, message = await fault_of(adapter, "messages")
        assert fault is Fault.BAD_RESULT
        assert "a reasoning block can't be in a turn of the user" in message

    async def test_neither_prompt_nor_conversation(self, author: Author) -> None:
        with pytest.raises(LoadError, match="env:Dialogue: it has no prompt: define get_prompt or get_messages"):
            await author.adapter(ENV.replace("get_messages", "get_nothing"))


class TestGroups:
    async def test_scores(self, author: Author) -> None:
        adapter = await author.created(SCORING)
        assert (await ask(adapter, "list_tools", env="dialogue")).supports_score_group
        found = await ask(adapter, "score_group", call_id="g", candidates=[candidate("a", "b", k=1), candidate("c")])
        assert found.scores == [GroupScore(reward=2, metadata={"k": 1}), GroupScore(reward=1)]

    async def test_bare_numbers_and_async(self, author: Author) -> None:
        adapter = await author.created(
            ENV + "\n    async def score_group(self, candidates): return (0.5 for c in candidates)\n"
        )
        found = await ask(adapter, "score_group", call_id="g", candidates=[candidate("a")])
        assert found.scores == [GroupScore(reward=0.5)]

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("return [1, 2]", "score_group returned 2 scores for 1 candidates"),
            ("return [float('nan')]", "reward: Input should be a finite number"),
            ("return ['high']", "something with str in it; expected GroupScore or float"),
            ("return 1", "score_group returned int; expected a list of GroupScore or float"),
            ("raise RuntimeError('the judge is asleep')", "the judge is asleep"),
        ],
    )
    async def test_what_goes_wrong(self, author: Author, body: str, message: str) -> None:
        adapter = await author.created(f"{ENV}\n    def score_group(self, candidates): {body}\n")
        _fault, text = await fault_of(adapter, "score_group", call_id="g", candidates=[candidate("a")])
        assert message in text

    async def test_not_offered(self, author: Author) -> None:
        adapter = await author.created(ENV)
        assert (await ask(adapter, "list_tools", env="dialogue")).supports_score_group is False
        fault, _message = await fault_of(adapter, "score_group", call_id="g", candidates=[])
        assert fault is Fault.NOT_SUPPORTED


class TestTerminalTool:
    async def test_it_is_described_apart_and_called_as_any_other(self, author: Author) -> None:
        adapter = await author.created(ENV)
        for listed in (await ask(adapter, "list_tools", env="dialogue"), await ask(adapter, "task_tools")):
            assert listed.terminal_tool == TerminalToolSpec(name="submit", arg="answer", description="Grade.")
            assert [spec.name for spec in listed.tools] == ["look"]
            assert listed.message_block_types == ["text", "image", "reasoning", "tool_call", "tool_result"]
        assert await text_of(adapter, "submit", answer="42") == "42"
        assert (await call(adapter, "look")).reason == "episode_finished"

    async def test_it_may_be_the_only_tool(self, author: Author) -> None:
        adapter = await author.adapter(ENV.replace("@tool\n    def look", "def look"))
        assert (await ask(adapter, "list_tools", env="dialogue")).tools == []

    async def test_two_are_too_many(self, author: Author) -> None:
        with pytest.raises(LoadError, match="Multiple @terminal tools"):
            await author.adapter(ENV.replace("@tool\n    def look", "@terminal\n    @tool\n    def look"))


class TestOrderAmongCalls:
    SLOW = """
    @tool{options}
    async def slow(self) -> ToolOutput:
        self.log.append("in")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.log.append("out")
        return said("")
    @tool
    def read(self) -> ToolOutput: return said(" ".join(self.log))
"""

    async def test_concurrent_calls_overlap(self, author: Author) -> None:
        adapter = await author.created(ENV + self.SLOW.format(options="(concurrent=True)"))
        await asyncio.gather(*(call(adapter, "slow") for _ in range(2)))
        assert await text_of(adapter, "read") == "in in out out"

    async def test_an_exclusive_call_runs_alone(self, author: Author) -> None:
        slow = self.SLOW.format(options="(concurrent=True)")
        grading = """
    @tool(exclusive=True)
    async def grade(self) -> ToolOutput:
        self.log.append("grade")
        await asyncio.sleep(0)
        self.log.append("graded")
        return said("")
"""
        adapter = await author.created(ENV + slow + grading)
        await asyncio.gather(call(adapter, "slow"), call(adapter, "grade"), call(adapter, "slow"))
        assert await text_of(adapter, "read") == "in out grade graded in out"

    async def test_the_terminal_tool_is_exclusive(self, author: Author) -> None:
        adapter = await author.created(ENV + self.SLOW.format(options="(concurrent=True)"))
        results = await asyncio.gather(
            call(adapter, "slow"), call(adapter, "submit", answer="1"), call(adapter, "slow")
        )
        assert [result.ok for result in results] == [True, True, False]
        assert results[2].reason == "episode_finished"


class TestToolsetPerSession:
    BOXED = ENV.replace("self.log = []", "self.log = []\n        self.sandbox = object()")

    async def test_a_builtin_toolset(self, author: Author) -> None:
        adapter = await author.created(self.BOXED, toolset_name="cli")
        names = {spec.name for spec in (await ask(adapter, "task_tools")).tools}
        assert {"look", "bash", "read"} <= names
        assert "submit" not in names
        result = await call(adapter, "bash", nonsense=1)
        assert result.reason == "input_validation"
        assert await text_of(adapter, "look") == "look"

    async def test_its_tools_come_before_the_environments(self, author: Author) -> None:
        own = "\n    @tool\n    def bash(self) -> ToolOutput: return said('mine')\n"
        assert await text_of(await author.created(self.BOXED + own), "bash") == "mine"
        del sys.modules["env"]
        result = await call(await author.created(self.BOXED + own, toolset_name="cli"), "bash")
        assert result.reason == "input_validation"

    async def test_an_unknown_one(self, author: Author) -> None:
        adapter = await author.adapter(self.BOXED)
        fault, message = await fault_of(adapter, "create", env="dialogue", task_spec={}, toolset_name="Hammer")
        assert fault is Fault.INVALID_TOOLSET
        assert "no toolset 'Hammer'" in message
        assert "claude-code" in message

    async def test_one_that_the_environment_can_not_have(self, author: Author) -> None:
        adapter = await author.adapter(ENV)
        fault, message = await fault_of(adapter, "create", env="dialogue", task_spec={}, toolset_name="cli")
        assert fault is Fault.INVALID_TOOLSET
        assert "toolset" in message
        assert "sandbox" in message


async def test_versions_without_conversations_and_toolsets_per_session(
    author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    await author.adapter(PROMPTED)  # has the SDK imported
    del sys.modules["env"]
    monkeypatch.delattr("openreward.environments.environment.Environment.get_messages")
    monkeypatch.delattr("openreward.toolsets.BUILTIN_TOOLSETS")
    monkeypatch.delitem(sys.modules, "openreward.environments.session")
    adapter = await author.created(PROMPTED)
    assert (await fault_of(adapter, "messages"))[0] is Fault.NOT_SUPPORTED
    assert [spec.name for spec in (await ask(adapter, "task_tools")).tools] == ["look"]
    assert await text_of(adapter, "look") == "look"
    again = await author.adapter(PROMPTED)
    fault, message = await fault_of(again, "create", env="dialogue", task_spec={}, toolset_name="cli")
    assert (fault, message) == (Fault.INVALID_TOOLSET, "no toolset 'cli'; the installed openreward has none")
