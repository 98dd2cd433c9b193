"""A conversation that a plain message ends, scored in groups; and a desk that takes a toolset for each session."""

import asyncio

from openreward.environments import (
    Environment,
    GroupScore,
    Message,
    ReasoningBlock,
    Server,
    Split,
    TextBlock,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
    terminal,
    tool,
)
from pydantic import BaseModel


class Reply(BaseModel):
    message: str


class Query(BaseModel, extra="forbid"):
    query: str


class Tutor(Environment):
    """Explain something to a pupil; the first plain message is the explanation."""

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split):
        return [{"topic": "tides", "word": "moon"}, {"topic": "rain", "word": "cloud"}]

    def __init__(self, task_spec, secrets):
        super().__init__(task_spec, secrets)
        self.running = 0

    async def get_messages(self):
        topic = self.task_spec["topic"]
        return [
            Message(role="system", blocks=[TextBlock(text="You are a tutor.")]),
            Message(role="user", blocks=[TextBlock(text=f"Why are there {topic}?")]),
            Message(
                role="assistant",
                blocks=[
                    ReasoningBlock(text="Look it up first.", signature="s1"),
                    ToolCallBlock(id="t1", name="look_up", input={"query": topic}),
                ],
            ),
            Message(
                role="user",
                blocks=[
                    ToolResultBlock(
                        tool_call_id="t1", blocks=[TextBlock(text=f"{topic}: see {self.task_spec['word']}")]
                    )
                ],
                detail={"source": "book"},
            ),
        ]

    @tool(concurrent=True)
    async def look_up(self, params: Query) -> ToolOutput:
        """Look a word up."""
        self.running += 1
        await asyncio.sleep(0.3)
        seen = self.running
        await asyncio.sleep(0.3)
        self.running -= 1
        return ToolOutput(blocks=[TextBlock(text=f"{params.query}: {seen} at once")])

    @tool(exclusive=True)
    async def give_up(self) -> ToolOutput:
        """End the lesson."""
        return ToolOutput(blocks=[TextBlock(text=f"{self.running} still running")], reward=0.0, finished=True)

    @terminal
    @tool
    async def explain(self, params: Reply) -> ToolOutput:
        """Receives the explanation."""
        right = self.task_spec["word"] in params.message
        return ToolOutput(blocks=[TextBlock(text="heard")], reward=float(right), finished=True)

    async def score_group(self, candidates):
        if not candidates:
            raise ValueError("nothing to compare")
        lengths = [sum(len(b.text) for m in c.messages for b in m.blocks if b.type == "text") for c in candidates]
        longest = max(lengths) or 1
        return [
            GroupScore(reward=length / longest, metadata={"length": length}) if length else 0.0 for length in lengths
        ]


class Shell:
    """Stands where a sandbox's client would."""

    async def run(self, command, *args, **kwargs):
        return f"ran: {command}", 0


class Desk(Environment):
    """Has a sandbox, so a session may bring a toolset."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": 1}]

    def __init__(self, task_spec, secrets):
        super().__init__(task_spec, secrets)
        self.sandbox = Shell()

    def get_prompt(self):
        return [TextBlock(text="Do something.")]

    @tool
    def submit(self) -> ToolOutput:
        """Finish."""
        return ToolOutput(blocks=[TextBlock(text="ok")], reward=1.0, finished=True)


if __name__ == "__main__":
    Server([Tutor, Desk]).run(port=8080)
