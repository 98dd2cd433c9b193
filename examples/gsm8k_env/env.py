"""Word problems of grade-school arithmetic; the answer is one number, submitted once.

The answers stay in this process: neither the task that clients list nor the prompt holds them.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from sandbox_runtime import Environment, JSONObject, Split, TextBlock, ToolOutput, tool

INSTRUCTION = "Solve the problem and submit the final number with the tool `submit`. You can submit once."

_THOUSANDS_COMMA = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_NUMBER = re.compile(
    r"""
    (?:(?<![0-9])-)?     # a sign, unless it stands between two numbers as in 10-5
    (?: [0-9]+(?:\.[0-9]+)?
      | (?<!\.)\.[0-9]+  # .5, but not what follows an ellipsis
    )
    """,
    re.VERBOSE,
)


class Problem(NamedTuple):
    """One word problem; ``answer`` is its final number."""

    question: str
    answer: Decimal


def _load() -> tuple[dict[str, list[str]], dict[str, Problem]]:
    splits = json.loads(Path(__file__).with_name("tasks.json").read_text(encoding="utf-8"))
    ids = {split: [task["id"] for task in tasks] for split, tasks in splits.items()}
    problems = {
        task["id"]: Problem(task["question"], Decimal(task["answer"])) for tasks in splits.values() for task in tasks
    }
    return ids, problems


SPLITS, PROBLEMS = _load()


def parse_number(text: str) -> Decimal | None:
    """Return the last number in ``text``, or None if there is none.

    Signs, dollar signs, thousands commas and trailing zeros are understood, words around the number ignored. The last
    one counts, as in the answers of GSM8K itself, so that listing many numbers is no way to hit one.
    """
    plain = _THOUSANDS_COMMA.sub("", text.replace("\u2212", "-").replace("$", ""))
    numbers = _NUMBER.findall(plain)
    return Decimal(numbers[-1]) if numbers else None


class SubmitInput(BaseModel):
    """What ``submit`` takes."""

    answer: str = Field(max_length=1000, description="The final answer, a number. Units and words are ignored.")


class GSM8KEnv(Environment):
    """Grade-school word problems with a final number. Reward: 1.0 for the right number, else 0.0."""

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        problem = PROBLEMS.get(str(self.task_spec.get("id")))
        if problem is None:
            raise ValueError("the task's 'id' is not that of a known problem")
        self._problem = problem

    @classmethod
    def list_splits(cls) -> list[Split]:
        """Return the splits ``train`` and ``test``."""
        return [Split.of(name) for name in SPLITS]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """Return the split's tasks: ``{"id", "question"}``, without the answer."""
        return [{"id": task_id, "question": PROBLEMS[task_id].question} for task_id in SPLITS[split]]

    def get_prompt(self) -> list[TextBlock]:
        """Return the question and how to answer it."""
        return [TextBlock(text=f"{self._problem.question}\n\n{INSTRUCTION}")]

    @tool(exclusive=True)
    def submit(self, params: SubmitInput) -> ToolOutput:
        """Submit the final answer, a number. This ends the episode."""
        number = parse_number(params.answer)
        correct = number == self._problem.answer
        if correct:
            verdict = "Correct."
        elif number is None:
            verdict = "Incorrect: there is no number in the answer."
        else:
            verdict = f"Incorrect: {number} is not the answer."
        return ToolOutput(blocks=[TextBlock(text=verdict)], reward=1.0 if correct else 0.0, finished=True)
