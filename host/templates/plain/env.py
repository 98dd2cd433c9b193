"""Questions with one answer each. The agent runs nothing, it only answers."""

from typing import Any

from pydantic import BaseModel, Field

from sandbox_runtime import Environment, TextBlock, ToolOutput, tool

QUESTIONS = {
    "train": [("How much is 6 times 7?", "42"), ("What is the capital of Italy?", "rome")],
    "test": [("How much is 12 plus 30?", "42")],
}
"""Split → questions and answers. Clients can list tasks, so a task is a number, not its answer."""


class Answer(BaseModel):
    """What ``answer`` takes."""

    text: str = Field(description="The answer, in one word or number.", max_length=100)


class MyEnv(Environment):
    """Answer a question. Reward: 1.0 for the right answer, else 0.0."""

    def __init__(self, task_spec: dict[str, Any] | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        self.question, self.right_answer = QUESTIONS[self.task_spec["split"]][self.task_spec["number"]]

    @classmethod
    def list_splits(cls) -> list[str]:
        return list(QUESTIONS)

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"split": split, "number": number} for number in range(len(QUESTIONS[split]))]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"{self.question} Answer with the tool answer, once.")]

    @tool
    def answer(self, params: Answer) -> ToolOutput:
        """Give the answer. This ends the episode."""
        is_right = params.text.strip().lower() == self.right_answer
        text = "Right." if is_right else "Wrong."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=float(is_right), finished=True)
