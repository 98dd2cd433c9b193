"""Tasks done with a shell, graded by looking at the files that result."""

from typing import Any

from pydantic import BaseModel, Field

from sandbox_runtime import Environment, TextBlock, ToolOutput, shell, tool

TASKS: dict[str, dict[str, dict[str, str]]] = {
    "train": {
        "hello": {"instruction": "Write the word hello to the file hello.txt.", "file": "hello.txt", "text": "hello"},
        "count": {"instruction": "Write how many lines /etc/passwd has to count.txt.", "file": "count.txt", "text": ""},
    },
    "test": {
        "date": {"instruction": "Write the year 1999 to the file year.txt.", "file": "year.txt", "text": "1999"},
    },
}
"""Split → id → task. Clients can list tasks, so what they are shown is the id alone: the answer stays here."""

LIMIT_BYTES = 4096


class Command(BaseModel):
    """What ``bash`` takes."""

    command: str = Field(description="The command line.", examples=["ls -la", "echo hello > hello.txt"])


class MyEnv(Environment):
    """Write a file with a shell. Reward: 1.0 if it is as the task asks, else 0.0."""

    def __init__(self, task_spec: dict[str, Any] | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        tasks = {task_id: task for split in TASKS.values() for task_id, task in split.items()}
        self.task = tasks[self.task_spec["id"]]

    @classmethod
    def list_splits(cls) -> list[str]:
        return list(TASKS)

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"id": task_id} for task_id in TASKS[split]]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"{self.task['instruction']} Use the tool bash, then call submit.")]

    @tool
    async def bash(self, params: Command) -> ToolOutput:
        """Run a command with bash and return what it prints."""
        result = await shell.run(params.command, timeout_s=60)
        return ToolOutput(blocks=[TextBlock(text=f"{result.output}\n[{result.status}]")])

    @tool(exclusive=True)
    async def submit(self) -> ToolOutput:
        """Hand in the work. This ends the episode."""
        await shell.end_processes()  # nothing may change while it is looked at
        expected = self.task["text"] or str(len((await self.read("/etc/passwd")).splitlines()))
        is_right = (await self.read(self.task["file"])).strip() == expected
        text = "Right." if is_right else f"{self.task['file']} is not what was asked for."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=float(is_right), finished=True)

    async def read(self, path: str) -> str:
        """Return a file's text, read as the agent, who may have put anything in its place; empty if there is none."""
        try:
            return (await shell.read_file(path, LIMIT_BYTES)).decode(errors="replace")
        except OSError:
            return ""
