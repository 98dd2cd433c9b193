"""Write a Python function that hidden tests grade.

The submitted code never meets the expected results: for each test it runs as the agent, in a new process that is told the
arguments and returns a value, which is compared here.
"""

import json
import sys
from typing import Any

from pydantic import BaseModel, Field

from sandbox_runtime import Environment, TextBlock, ToolOutput, shell, tool

PROBLEMS: dict[str, dict[str, dict[str, Any]]] = {
    "train": {
        "double": {"statement": "double(n) returns twice n.", "tests": [([2], 4), ([0], 0), ([-3], -6)]},
        "reverse": {"statement": "reverse(text) returns text backwards.", "tests": [(["abc"], "cba"), ([""], "")]},
    },
    "test": {
        "largest": {"statement": "largest(numbers) returns the largest of a list.", "tests": [([[1, 3, 2]], 3)]},
    },
}
"""Split → name of the function → what it should do, and tests: arguments and result. Clients see the names alone."""

RUN = f"{sys.executable} -I -c"
DRIVER = """
import json, sys
request = json.load(sys.stdin)
names = {}
exec(request["code"], names)
print(json.dumps(names[request["function"]](*request["args"])))
"""
TEST_TIMEOUT_S = 5
LIMIT_BYTES = 64 * 1024


class Code(BaseModel):
    """What both tools take."""

    code: str = Field(description="Python code.", max_length=100_000, examples=["print(1 + 1)"])


class MyEnv(Environment):
    """Write a function. Reward: 1.0 if it passes all hidden tests, else 0.0."""

    def __init__(self, task_spec: dict[str, Any] | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        self.function = self.task_spec["function"]
        self.problem = {name: problem for split in PROBLEMS.values() for name, problem in split.items()}[self.function]

    @classmethod
    def list_splits(cls) -> list[str]:
        return list(PROBLEMS)

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"function": name} for name in PROBLEMS[split]]

    def get_prompt(self) -> list[TextBlock]:
        text = (
            f"Write a Python function: {self.problem['statement']} Try things out with run, then submit the code, once."
        )
        return [TextBlock(text=text)]

    @tool
    async def run(self, params: Code) -> ToolOutput:
        """Run Python code and return what it prints."""
        result = await shell.run(f"{sys.executable} -I -", stdin=params.code.encode(), timeout_s=30)
        return ToolOutput(blocks=[TextBlock(text=f"{result.output}\n[{result.status}]")])

    @tool(exclusive=True)
    async def submit(self, params: Code) -> ToolOutput:
        """Submit the code that defines the function. This ends the episode."""
        tests = self.problem["tests"]
        passed = [await self.passes(params.code, args, expected) for args, expected in tests]
        text = f"{sum(passed)} of {len(tests)} tests passed."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=float(all(passed)), finished=True)

    async def passes(self, code: str, args: list[Any], expected: Any) -> bool:
        """Tell whether the function returns what it should; what it prints, or how it fails, is all one."""
        await shell.end_processes()  # what earlier code left running
        request = json.dumps({"code": code, "function": self.function, "args": args}).encode()
        command = f"{RUN} '{DRIVER}'"
        result = await shell.run(command, stdin=request, timeout_s=TEST_TIMEOUT_S, max_output_bytes=LIMIT_BYTES)
        try:
            value = json.loads(result.output)
        except (ValueError, RecursionError):
            return False
        return type(value) is type(expected) and bool(value == expected)
