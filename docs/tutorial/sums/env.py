"""Add up the numbers of a file, with a shell."""

import random
from typing import Any

from pydantic import BaseModel, Field

from sandbox_runtime import Environment, TextBlock, ToolOutput, shell, tool

TASKS = {"train": 64, "test": 16}


class Command(BaseModel):
    command: str = Field(description="The command line.", examples=["head numbers.txt"])


class Sums(Environment):
    @classmethod
    def list_splits(cls) -> list[str]:
        return list(TASKS)

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        # What clients can list holds no answer: an id is enough to make the numbers again.
        return [{"id": f"{split}-{number}"} for number in range(TASKS[split])]

    async def setup(self) -> None:
        self.numbers = random.Random(self.task_spec["id"]).choices(range(1000), k=50)
        await shell.write_file("numbers.txt", "".join(f"{number}\n" for number in self.numbers))

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Write the sum of the numbers in numbers.txt to answer.txt, then call submit.")]

    @tool
    async def bash(self, params: Command) -> ToolOutput:
        """Run a command with bash and return what it prints."""
        result = await shell.run(params.command, timeout_s=30)
        return ToolOutput(blocks=[TextBlock(text=result.output or "(no output)")])

    @tool(exclusive=True)
    async def submit(self) -> ToolOutput:
        """Hand in answer.txt. This ends the episode."""
        await shell.end_processes()  # nothing may change while it is looked at
        try:
            answer = (await shell.read_file("answer.txt", 100, follow_links=False)).decode(errors="replace").strip()
        except OSError:
            answer = ""
        is_right = answer == str(sum(self.numbers))
        text = "Right." if is_right else "That is not the sum."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=float(is_right), finished=True)
