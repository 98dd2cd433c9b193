"""The benchmark's environment as it is written for ors-host: the same tools, and one that runs a command as the agent."""

from functools import cache
from typing import Any

from pydantic import BaseModel

from sandbox_runtime import Environment, TextBlock, ToolOutput, shell, tool


@cache  # made once, but not in a session that never asks for it: idle ones are measured too
def large_text() -> str:
    """A little over a million characters, and a line break every 62."""
    return "".join(f"{line:07} what a command printed, line by line, as long as this\n" for line in range(16_130))


class Words(BaseModel):
    text: str


class Bench(Environment):
    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{}]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Say something.")]

    @tool
    async def echo(self, params: Words) -> ToolOutput:
        """Return what was said."""
        return ToolOutput(blocks=[TextBlock(text=params.text)], reward=0.0)

    @tool
    async def large(self) -> ToolOutput:
        """Return a million characters."""
        return ToolOutput(blocks=[TextBlock(text=large_text())], reward=0.0)

    @tool
    async def command(self) -> ToolOutput:
        """Run a command as the agent."""
        result = await shell.run("echo done")
        return ToolOutput(blocks=[TextBlock(text=result.output)], reward=0.0)
