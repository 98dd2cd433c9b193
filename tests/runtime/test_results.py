"""What an author's code may return, and what is said when it returned something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from sandbox_runtime import ImageBlock, ListToolsOutput, Split, TextBlock, ToolOutput, ToolSpec, results
from sandbox_runtime.faults import RequestFault
from sandbox_runtime.messages import Fault

TEXT = TextBlock(text="t")
IMAGE = ImageBlock(data="aGk=", mimeType="image/png")
SPEC = ToolSpec(name="t", description="", input_schema=None)


class Extended(ToolOutput):
    mine: int = 1


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (results.tool_output, ToolOutput(blocks=[TEXT, IMAGE], reward=1), ToolOutput(blocks=[TEXT, IMAGE], reward=1)),
        (results.tool_output, Extended(blocks=[TEXT], finished=True), ToolOutput(blocks=[TEXT], finished=True)),
        (results.blocks, [], []),
        (results.blocks, (TEXT, IMAGE), [TEXT, IMAGE]),
        (results.tools, ListToolsOutput(tools=[SPEC]), ListToolsOutput(tools=[SPEC])),
        (results.splits, ["train", "hard"], [Split(name="train", type="train"), Split(name="hard", type="validation")]),
        (results.splits, (Split(name="hard", type="test"),), [Split(name="hard", type="test")]),
        (results.task, {"a": 1}, {"a": 1}),
        (results.tasks, ({"a": 1}, {}), [{"a": 1}, {}]),
        (results.count, 0, 0),
    ],
)
def test_what_is_right(check: Callable[[Any, str], Any], value: Any, expected: Any) -> None:
    checked = check(value, "Env.method")
    assert checked == expected
    assert type(checked) is type(expected)


def unchecked(model: type[BaseModel], **fields: Any) -> Any:
    return model.model_construct(**fields)


def output(**fields: Any) -> Any:
    return unchecked(ToolOutput, **{"blocks": [TEXT], "reward": None, **fields})


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (results.tool_output, "text", "Env.method returned str; expected ToolOutput"),
        (results.tool_output, None, "Env.method returned NoneType; expected ToolOutput"),
        (results.tool_output, TEXT, "Env.method returned sandbox_runtime.data_types.TextBlock; expected ToolOutput"),
        (results.tool_output, output(blocks=[]), "blocks: "),
        (results.tool_output, output(blocks="text"), "blocks: "),
        (results.tool_output, output(blocks=[object()]), "blocks.0: "),
        (results.tool_output, output(blocks=[unchecked(TextBlock)]), "blocks.0.text.text: Field required"),
        (results.tool_output, output(reward=float("nan")), "reward: Input should be a finite number"),
        (results.tool_output, output(reward=float("inf")), "reward: Input should be a finite number"),
        (results.tool_output, output(reward="high"), "reward: "),
        (results.tool_output, output(finished=7), "finished: "),
        (results.blocks, "prompt", "Env.method returned str; expected a list of TextBlock and ImageBlock"),
        (results.blocks, None, "returned NoneType"),
        (results.blocks, TEXT, "returned sandbox_runtime.data_types.TextBlock"),
        (results.blocks, ["prompt"], "something with str in it"),
        (results.blocks, [unchecked(ImageBlock, data=1)], "data: "),
        (results.tools, [SPEC], "returned list; expected a ListToolsOutput"),
        (results.tools, unchecked(ListToolsOutput, tools=[1]), "tools.0: "),
        (results.splits, "train", "returned str; expected a list of Split or str"),
        (results.splits, [1], "something with int in it"),
        (results.splits, ["train", Split(name="train", type="test")], "a split twice"),
        (results.task, [1], "returned list; expected a task (a dict)"),
        (results.tasks, {"a": 1}, "returned dict; expected a list of tasks"),
        (results.tasks, [{}, "x"], "something with str in it"),
        (results.count, True, "returned bool; expected a number of tasks"),
        (results.count, -1, "returned int; expected a number of tasks"),
        (results.count, "3", "returned str; expected a number of tasks"),
    ],
)
def test_what_is_wrong(check: Callable[[Any, str], Any], value: Any, message: str) -> None:
    with pytest.raises(RequestFault) as caught:
        check(value, "Env.method")
    assert caught.value.fault is Fault.BAD_RESULT
    assert message in str(caught.value)
    assert str(caught.value).startswith("Env.method returned ")


def test_an_assigned_reward_is_checked_again() -> None:
    value = ToolOutput(blocks=[TEXT])
    value.reward = float("nan")
    with pytest.raises(RequestFault, match="finite number"):
        results.tool_output(value, "Env.method")
