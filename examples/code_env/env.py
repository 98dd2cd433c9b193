"""Write a Python function; hidden tests grade it.

How cheating fails. The agent's processes never see the expected results, nor the tests before the submission: they are in
this folder and in this process, both closed to the agent's user. For each test the submitted code runs as the agent, in a
new process that gets one call's arguments and returns one value as JSON; the comparison happens here. So there is no verdict to
print, no test to patch and no exit code that counts: the only way to pass is to return the right values.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

from problems import PROBLEMS
from pydantic import BaseModel, Field

from sandbox_runtime import Environment, JSONObject, Split, TextBlock, ToolOutput, shell, tool

RUN_TIMEOUT_S = 20.0
RUN_OUTPUT_BYTES = 32 * 1024
TEST_TIMEOUT_S = 5.0
"""For each hidden test, the start of Python included."""
RESULT_BYTES = 64 * 1024
"""More than any right result needs."""
ERROR_CHARS = 500
CODE_CHARS = 100_000

# -I: neither the working directory, nor variables, nor the agent's own site-packages can shadow a module.
_PYTHON = f"{shlex.quote(sys.executable)} -I"
_DRIVER = f"{_PYTHON} -c {shlex.quote(Path(__file__).with_name('driver.py').read_text(encoding='utf-8'))}"


class RunInput(BaseModel):
    """What ``run`` takes."""

    code: str = Field(max_length=CODE_CHARS, description="Python code, run as a script in the working directory.")


class SubmitInput(BaseModel):
    """What ``submit`` takes."""

    code: str = Field(
        max_length=CODE_CHARS,
        description="Python code that defines the function. Standard library only, no other files.",
    )


class CodeEnv(Environment):
    """Write a function that hidden tests grade. Reward: 1.0 if every test passes, else 0.0."""

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        known = {task_id: problem for problems in PROBLEMS.values() for task_id, problem in problems.items()}
        problem = known.get(str(self.task_spec.get("id")))
        if problem is None:
            raise ValueError("the task's 'id' is not that of a known problem")
        self._problem = problem

    @classmethod
    def list_splits(cls) -> list[Split]:
        """Return the splits ``train`` and ``test``."""
        return [Split.of(name) for name in PROBLEMS]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """Return the split's tasks: ``{"id", "function"}``, without tests."""
        return [{"id": task_id, "function": problem.function} for task_id, problem in PROBLEMS[split].items()]

    def get_prompt(self) -> list[TextBlock]:
        """Return the problem with its examples and the rules."""
        problem = self._problem
        examples = "\n".join(
            f"    {problem.function}({', '.join(map(repr, args))}) == {problem.expected(args)!r}"
            for args in problem.examples
        )
        text = (
            f"Write the Python function `{problem.signature}`.\n\n{problem.statement}\n\n{examples}\n\n"
            "Try things out with the tool `run`, then submit the code with the tool `submit`, once. Hidden tests grade it: "
            f"each calls the function in a new process and has {TEST_TIMEOUT_S:g} seconds. All must pass."
        )
        return [TextBlock(text=text)]

    @tool
    async def run(self, params: RunInput) -> ToolOutput:
        """Run Python code and return what it prints."""
        result = await shell.run(
            f"{_PYTHON} -u -",
            stdin=params.code.encode(),
            timeout_s=RUN_TIMEOUT_S,
            max_output_bytes=RUN_OUTPUT_BYTES,
        )
        status = f"timed out after {RUN_TIMEOUT_S:g} s" if result.timed_out else result.status
        return ToolOutput(blocks=[TextBlock(text=f"{result.output}\n[{status}]")])

    @tool(exclusive=True)
    async def submit(self, params: SubmitInput) -> ToolOutput:
        """Submit the code that defines the function, to be graded by the hidden tests. This ends the episode."""
        tests = self._problem.hidden
        for number, args in enumerate(tests, start=1):
            failure = await self._failure(params.code, args)
            if failure is not None:
                text = f"Test {number} of {len(tests)} failed: {failure}."
                return ToolOutput(blocks=[TextBlock(text=text)], reward=0.0, finished=True)
        return ToolOutput(blocks=[TextBlock(text=f"All {len(tests)} tests passed.")], reward=1.0, finished=True)

    async def _failure(self, code: str, args: list[Any]) -> str | None:
        """Return why the submitted code fails for ``args``, or None if it passes."""
        await shell.end_processes()  # what earlier commands and tests left running
        request = {"code": code, "function": self._problem.function, "args": args}
        result = await shell.run(
            _DRIVER,
            stdin=json.dumps(request).encode("ascii"),
            timeout_s=TEST_TIMEOUT_S,
            max_output_bytes=RESULT_BYTES,
        )
        if result.timed_out:
            return f"it took longer than {TEST_TIMEOUT_S:g} seconds"
        try:
            answer = json.loads(result.output, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return f"the process ended without a result ({result.status})"
        match answer:
            case {"value": value}:
                return None if same(value, self._problem.expected(args)) else "wrong result"
            case {"error": str(error)}:
                return f"it raised {error[:ERROR_CHARS]}"
            case _:
                return "the process wrote something else than a result"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def same(value: Any, expected: Any) -> bool:
    """Tell whether two JSON values are the same, types included: neither True nor 1.0 is 1."""
    if type(value) is not type(expected):
        return False
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(same(value[key], expected[key]) for key in expected)
    return bool(value == expected)
