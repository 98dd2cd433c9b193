"""The benchmark's environment as it is written for ors-sdk: served by its own server, and by ors-host, unmodified."""

import os
from functools import cache

from ors import Environment, Server, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel


@cache  # made once, but not in a session that never asks for it: idle ones are measured too
def large_text() -> str:
    """A little over a million characters, and a line break every 62."""
    return "".join(f"{line:07} what a command printed, line by line, as long as this\n" for line in range(16_130))


class Words(BaseModel):
    text: str


class Bench(Environment):
    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict]:
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


if __name__ == "__main__":
    Server([Bench]).run(host="127.0.0.1", port=int(os.environ.get("PORT", "8080")))
