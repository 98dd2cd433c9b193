"""Whole episodes on the environments, as a model that knows what to do would play them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .clients import secrets_for


@dataclass(frozen=True)
class Step:
    """One tool call and what the answer's text must contain."""

    tool: str
    input: Mapping[str, Any]
    says: str


@dataclass(frozen=True)
class Episode:
    """A task, the calls, the reward of the last of them, which must finish the episode."""

    environment: str
    split: str
    index: int
    steps: Sequence[Step]
    reward: float
    prompt: str
    secrets: Mapping[str, str] = field(default_factory=dict)
    images: int = 0
    server: str = "ors-sdk"


def step(tool: str, says: str, **tool_input: Any) -> Step:
    """Return a step."""
    return Step(tool, tool_input, says)


EPISODES = (
    Episode(
        "arithmetic",
        "hard",
        -1,
        [step("hint", "hint 1"), step("submit", "Correct!", answer=10_013)],
        1.0,
        "What is 10004 + 9?",
    ),
    Episode("gridworld", "train", 1, [step("look", "4 by 4"), step("east", "1,1")], 1.0, "You are at 0,1."),
    Episode(
        "endless",
        "train",
        123_456,
        [step("guess", "Higher.", number=0), step("guess", "Yes.", number=(123_456 * 7919) % 1009)],
        1.0,
        "Task 123456",
    ),
    Episode("thesaurus", "test", 1, [step("synonym", "Yes", word="tiny")], 1.0, "Another word for small?"),
    Episode(
        "colourchart",
        "validation",
        2,
        [step("zoom", "", factor=3), step("name_it", "thank you", colour="blue")],
        1.0,
        "Which colour",
        images=2,
    ),
    Episode(
        "notebook",
        "train",
        0,
        [
            step("write_line", "1 lines", text="a"),
            step("write_line", "2 lines", text="b"),
            step("read_all", "a\nb"),
            step("hand_in", "received"),
        ],
        1.0,
        "Write 2 lines.",
    ),
    Episode("quests", "train", 1, [step("rest", "you rest"), step("dance", "you dance")], 1.0, "You may dance."),
    Episode(
        "vault",
        "train",
        0,
        [step("open_door", "sk-1 and p w fit")],
        1.0,
        "Open",
        {"OPENAI_API_KEY": "sk-1", "database_password": "p w"},
    ),
    Episode("workshop", "train", 2, [step("count", "1"), step("finish", "done")], 0.5, "Prompt number 1."),
    Episode(
        "towerofhanoi",
        "train",
        0,
        [
            *(
                step("act", f"moved disk {disk}", action=f"[{move}]")
                for disk, move in ((1, "A C"), (2, "A B"), (1, "C B"))
            ),
            step("act", "moved disk 3", action="[A C]"),
            step("act", "moved disk 1", action="[B A]"),
            step("act", "moved disk 2", action="[B C]"),
            step("act", "Congratulations!", action="[A C]"),
        ],
        1.0,
        "You are playing Tower of Hanoi with 3 disks.",
        server="games",
    ),
    Episode(
        "mastermind",
        "train",
        1,
        [step("act", "black peg", action="[1 2 3 4]"), step("act", "cracked the code", action="[2 5 1 6]")],
        1.0,
        "You are playing Mastermind.",
        server="games",
    ),
)


async def play(client: str, environment: Any, episode: Episode) -> None:
    """Play an episode with a client and check everything that comes back."""
    task = await environment.get_task(episode.split, episode.index)
    async with environment.session(task, secrets=secrets_for(client, episode.secrets)) as session:
        images = 0
        prompt = await session.get_prompt()
        assert any(episode.prompt in block.text for block in prompt if block.type == "text"), prompt
        images += sum(block.type == "image" for block in prompt)
        tools = {tool.name for tool in await session.list_tools()}
        assert {step.tool for step in episode.steps} <= tools
        for number, played in enumerate(episode.steps, 1):
            output = await session.call_tool(played.tool, dict(played.input))
            text = "".join(block.text for block in output.blocks if block.type == "text")
            assert played.says in text, text
            images += sum(block.type == "image" for block in output.blocks)
            assert output.finished == (number == len(episode.steps)), played
        assert output.reward == episode.reward
        assert images == episode.images
        assert (output.metadata or {}).get("resets", 1) == 1  # asked for once, the prompt was made once


async def play_shuffled(environment: Any) -> None:
    """The right letter is found by hash() in one process, and graded by hash() in another."""
    for task in await environment.list_tasks("test"):
        options = task.task_spec["options"]
        right = next(option for option in options if option in ("Paris", "two"))
        async with environment.session(task) as session:
            assert f"{'ABCD'[options.index(right)]}. {right}" in (await session.get_prompt())[0].text
            output = await session.call_tool("choose", {"letter": "ABCD"[options.index(right)]})
            assert output.blocks[0].text == right
            assert output.reward == 1.0
