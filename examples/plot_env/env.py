"""Questions about a curve that can only be looked at: the tool `plot` draws a part of it as a PNG.

This is the heavy example: it imports matplotlib, which every new container pays for. Figures are made without pyplot, whose
registry would keep each of them alive.
"""

from __future__ import annotations

import atexit
import base64
import io
import math
import os
import shutil
import tempfile
from dataclasses import dataclass
from typing import Any, Literal

# matplotlib writes its font cache when it's imported: into a private directory, as the home may be read-only.
os.environ["MPLCONFIGDIR"] = tempfile.mkdtemp(prefix="matplotlib-")
atexit.register(shutil.rmtree, os.environ["MPLCONFIGDIR"], ignore_errors=True)

import numpy as np  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from pydantic import BaseModel, Field, model_validator  # noqa: E402

from sandbox_runtime import Environment, ImageBlock, JSONObject, Split, TextBlock, ToolOutput, tool  # noqa: E402

X_MIN, X_MAX = 0.0, 10.0
MIN_WIDTH = 0.01
"""The narrowest part of the x axis that is drawn."""
TOLERANCE = 0.05
"""How far from the true x an answer may be: a careful look at two or three plots is enough, a guess is not."""
SAMPLES = 500
GRID = 100_001
"""Points at which the answer is looked up, so it is exact to 0.0001."""

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Task:
    """One question about one curve, a sum of waves ``(amplitude, frequency, phase)`` on a slope."""

    question: Literal["maximum", "minimum", "crossing"]
    waves: tuple[tuple[float, float, float], ...]
    slope: float = 0.0
    offset: float = 0.0

    def curve(self, x: Array) -> Array:
        """Return the curve's values at ``x``."""
        y = self.offset + self.slope * x
        for amplitude, frequency, phase in self.waves:
            y = y + amplitude * np.sin(frequency * x + phase)
        return y

    def answer(self) -> float:
        """Return the x that is asked for."""
        x = np.linspace(X_MIN, X_MAX, GRID)
        y = self.curve(x)
        if self.question == "maximum":
            index = np.argmax(y)
        elif self.question == "minimum":
            index = np.argmin(y)
        else:
            index = np.argmax(np.diff(np.signbit(y)))  # the first change of sign
        return float(x[index])


TASKS: dict[str, dict[str, Task]] = {
    "train": {
        "train-0": Task("maximum", ((2.0, 1.1, 0.3), (0.8, 2.9, 1.0)), slope=0.12),
        "train-1": Task("minimum", ((1.5, 0.9, 1.2), (0.7, 3.1, 0.4)), slope=-0.08),
        "train-2": Task("crossing", ((1.0, 1.7, 0.2),), slope=0.35, offset=-2.2),
        "train-3": Task("maximum", ((1.2, 1.9, 2.0), (1.1, 0.6, 0.0)), slope=0.05),
    },
    "test": {
        "test-0": Task("maximum", ((1.8, 1.3, 1.4), (0.9, 2.3, 0.1)), slope=-0.1),
        "test-1": Task("minimum", ((1.4, 1.0, 0.0), (0.9, 2.1, 2.2)), slope=0.1),
        "test-2": Task("crossing", ((0.9, 2.2, 1.1),), slope=-0.4, offset=1.9),
    },
}

QUESTIONS = {
    "maximum": "At which x does the curve have its highest value?",
    "minimum": "At which x does the curve have its lowest value?",
    "crossing": "At which x does the curve cross y = 0 for the first time, seen from the left?",
}


class PlotInput(BaseModel):
    """What ``plot`` takes: a part of the x axis, and how to draw it."""

    start: float = Field(default=X_MIN, ge=X_MIN, le=X_MAX, description="Left end of the x axis.")
    stop: float = Field(default=X_MAX, ge=X_MIN, le=X_MAX, description="Right end of the x axis.")
    style: Literal["line", "points"] = Field(default="line", description="How the curve is drawn.")

    @model_validator(mode="after")
    def _is_wide_enough(self) -> PlotInput:
        if self.stop - self.start < MIN_WIDTH:
            raise ValueError(f"'stop' must be at least {MIN_WIDTH} greater than 'start'")
        return self


class SubmitInput(BaseModel):
    """What ``submit`` takes."""

    x: float = Field(allow_inf_nan=False, description=f"The x that is asked for, to within {TOLERANCE}.")


class PlotEnv(Environment):
    """Read a value off a curve that only plots show. Reward: 1.0 within the tolerance, else 0.0."""

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        known = {task_id: task for tasks in TASKS.values() for task_id, task in tasks.items()}
        task = known.get(str(self.task_spec.get("id")))
        if task is None:
            raise ValueError("the task's 'id' is not that of a known task")
        self._task = task

    @classmethod
    def list_splits(cls) -> list[Split]:
        """Return the splits ``train`` and ``test``."""
        return [Split.of(name) for name in TASKS]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """Return the split's tasks: ``{"id", "question"}``, without the curve."""
        return [{"id": task_id, "question": QUESTIONS[task.question]} for task_id, task in TASKS[split].items()]

    def get_prompt(self) -> list[TextBlock]:
        """Return the question and the rules."""
        text = (
            f"A curve is defined for x from {X_MIN:g} to {X_MAX:g}. {QUESTIONS[self._task.question]}\n\n"
            "Look at it with the tool `plot`, as often as you like and as closely as you like, then submit the x with the "
            f"tool `submit`. It must be within {TOLERANCE} of the true value. You can submit once."
        )
        return [TextBlock(text=text)]

    @tool
    def plot(self, params: PlotInput) -> ToolOutput:
        """Draw the curve between two values of x and return the picture."""
        x = np.linspace(params.start, params.stop, SAMPLES if params.style == "line" else SAMPLES // 10)
        figure = Figure(figsize=(6.4, 4.0), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)  # what savefig() draws with
        axes = figure.add_subplot()
        axes.plot(x, self._task.curve(x), "-" if params.style == "line" else ".")
        axes.set_xlim(params.start, params.stop)
        axes.axhline(0.0, color="grey", linewidth=0.8)
        axes.grid(True, alpha=0.4)
        axes.set_xlabel("x")
        axes.set_ylabel("y")
        png = io.BytesIO()
        figure.savefig(png, format="png")
        image = ImageBlock(
            data=base64.b64encode(png.getvalue()).decode("ascii"),
            mimeType="image/png",
            detail={"width": 640, "height": 400},
        )
        return ToolOutput(blocks=[TextBlock(text=f"The curve from x = {params.start:g} to {params.stop:g}:"), image])

    @tool(exclusive=True)
    def submit(self, params: SubmitInput) -> ToolOutput:
        """Submit the x that is asked for. This ends the episode."""
        correct = math.isclose(params.x, self._task.answer(), rel_tol=0.0, abs_tol=TOLERANCE)
        verdict = "Correct." if correct else f"Incorrect: {params.x:g} is not within {TOLERANCE} of the right x."
        return ToolOutput(blocks=[TextBlock(text=verdict)], reward=1.0 if correct else 0.0, finished=True)
