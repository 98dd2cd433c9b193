"""Jobs on files in a shell, graded by looking at the result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, Field
from tasks import TASKS, Task

from sandbox_runtime import Environment, JSONObject, Split, TextBlock, ToolOutput, shell, tool

MAX_TIMEOUT_S = 300.0
OUTPUT_BYTES = 32 * 1024
GRADER_TIMEOUT_S = 10.0
"""For each look at the result: what takes longer is not what was asked for."""
RESULT_BYTES = 64 * 1024
"""More than any right result needs."""


class BashInput(BaseModel):
    """What ``bash`` takes."""

    command: str = Field(max_length=100_000, description="The command line, run with bash in the work directory.")
    timeout_s: float = Field(default=60.0, gt=0, le=MAX_TIMEOUT_S, description="Time limit in seconds.")


class BashEnv(Environment):
    """Arrange files with a shell. Reward: 1.0 if everything that was asked for is there, else 0.0."""

    workspace: ClassVar[str] = shell.WORKSPACE

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        known = {task_id: task for tasks in TASKS.values() for task_id, task in tasks.items()}
        task = known.get(str(self.task_spec.get("id")))
        if task is None:
            raise ValueError("the task's 'id' is not that of a known task")
        self._task: Task = task

    @classmethod
    def list_splits(cls) -> list[Split]:
        """Return the splits ``train`` and ``test``."""
        return [Split.of(name) for name in TASKS]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """Return the split's tasks: ``{"id", "instruction"}``."""
        return [{"id": task_id, "instruction": task.instruction} for task_id, task in TASKS[split].items()]

    async def setup(self) -> None:
        """Write the task's files, as the agent."""
        for path, text in self._task.files.items():
            await shell.write_file(self._path(path), text.encode())

    def get_prompt(self) -> list[TextBlock]:
        """Return the instruction and the rules."""
        text = (
            f"{self._task.instruction}\n\nYou work in {self.workspace} with the tool `bash`. When you are done call the tool "
            "`submit`, once: it looks at the result."
        )
        return [TextBlock(text=text)]

    @tool
    async def bash(self, params: BashInput) -> ToolOutput:
        """Run a command with bash and return what it writes to standard output and standard error.

        Each command is a new shell in the work directory; only files last from one to the next.
        """
        result = await shell.run(
            params.command, cwd=self.workspace, timeout_s=params.timeout_s, max_output_bytes=OUTPUT_BYTES
        )
        status = f"timed out after {params.timeout_s:g} s" if result.timed_out else result.status
        return ToolOutput(blocks=[TextBlock(text=f"{result.output}\n[{status}]")])

    @tool(exclusive=True)
    async def submit(self) -> ToolOutput:
        """Have the result looked at. This ends the episode."""
        await shell.end_processes()  # nothing may change under the grader
        wrong = await self._first_wrong()
        verdict = "Everything is as it should be." if wrong is None else f"Not done: {wrong}."
        return ToolOutput(blocks=[TextBlock(text=verdict)], reward=1.0 if wrong is None else 0.0, finished=True)

    async def _first_wrong(self) -> str | None:
        """Return what is not as it should be, or None. One fault is enough, so that many traps can't make this long."""
        task = self._task
        for path, text in task.expected.items():
            if await self._text(path) != text.rstrip():
                return f"{path} is missing, or is not what it should be"
        for path in task.absent:
            if await self._look(f"[ -e {self._quoted(path)} ] || [ -L {self._quoted(path)} ]") is not None:
                return f"{path} is still there"
        for path, mode in task.modes.items():
            if await self._look(f"stat --format=%a -- {self._quoted(path)}") != f"{mode:o}":
                return f"{path} does not have the permissions {mode:o}"
        for path, members in task.archives.items():
            if not await self._holds(path, members):
                return f"{path} is missing, or does not hold what it should"
        return None

    async def _text(self, path: str) -> str | None:
        """Return a file's text without white space at its end, or None if there's no small readable file."""
        try:
            content = await shell.read_file(self._path(path), RESULT_BYTES)
        except OSError:
            return None
        return content.decode(errors="replace").rstrip()

    async def _holds(self, path: str, members: Mapping[str, str]) -> bool:
        """Tell whether a tar.gz file holds exactly these files. It's the agent who unpacks it, not this process."""
        archive = self._quoted(path)
        listing = await self._look(f"tar --list --gzip --file {archive}")
        if listing is None:
            return False
        files = [name for name in listing.splitlines() if not name.endswith("/")]
        if sorted(name.removeprefix("./") for name in files) != sorted(members):
            return False
        for name in files:
            extract = f"tar --extract --to-stdout --gzip --file {archive} -- {shlex.quote(name)}"
            if await self._look(extract) != members[name.removeprefix("./")].rstrip():
                return False
        return True

    async def _look(self, command: str) -> str | None:
        """Return what a command of the grader prints, run as the agent, or None if it fails or prints too much."""
        result = await shell.run(command, cwd=self.workspace, timeout_s=GRADER_TIMEOUT_S, max_output_bytes=RESULT_BYTES)
        return result.output.rstrip() if result.ok and not result.is_cut else None

    def _path(self, path: str) -> str:
        return f"{self.workspace}/{path}"

    def _quoted(self, path: str) -> str:
        return shlex.quote(self._path(path))
