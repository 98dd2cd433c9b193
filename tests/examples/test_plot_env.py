"""plot_env: the picture is a picture, the answer is the curve's, and parameters have bounds."""

from __future__ import annotations

import base64
import io
import os
import stat

import pytest
from matplotlib.image import imread
from pydantic import ValidationError

from sandbox_runtime import ImageBlock

from .conftest import load_example, text_of

plot_env = load_example("plot_env")

ALL_TASKS = [(task_id, task) for tasks in plot_env.TASKS.values() for task_id, task in tasks.items()]


@pytest.mark.parametrize("style", ["line", "points"])
def test_plot_returns_a_png_of_the_size_it_says(style: str) -> None:
    output = plot_env.PlotEnv({"id": "train-0"}).plot(plot_env.PlotInput(start=2, stop=3, style=style))
    assert (output.reward, output.finished) == (None, False)
    assert "from x = 2 to 3" in text_of(output)
    (image,) = [block for block in output.blocks if isinstance(block, ImageBlock)]
    assert image.mimeType == "image/png" and image.detail is not None
    pixels = imread(io.BytesIO(base64.b64decode(image.data, validate=True)), format="png")
    assert pixels.shape[:2] == (image.detail["height"], image.detail["width"])
    assert pixels.min() < pixels.max(), "the picture is empty"


def test_different_parts_look_different() -> None:
    env = plot_env.PlotEnv({"id": "train-0"})
    pictures = {env.plot(plot_env.PlotInput(start=start)).blocks[1].data for start in (0, 0, 4, 8)}
    assert len(pictures) == 3


@pytest.mark.parametrize(
    "bad",
    [
        {"start": 3, "stop": 3},
        {"start": 5, "stop": 4},
        {"start": -1},
        {"stop": 11},
        {"start": float("nan")},
        {"style": "pie"},
        {"start": "left"},
    ],
)
def test_plot_refuses_parameters_out_of_bounds(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        plot_env.PlotInput.model_validate(bad)


@pytest.mark.parametrize(("task_id", "task"), ALL_TASKS)
def test_the_answer_is_what_the_question_asks(task_id: str, task: object) -> None:
    assert isinstance(task, plot_env.Task)
    x = plot_env.np.linspace(plot_env.X_MIN, plot_env.X_MAX, 20_001)
    y = task.curve(x)
    value = task.curve(plot_env.np.array([task.answer()]))[0]
    if task.question == "maximum":
        assert value >= y.max() - 1e-6
    elif task.question == "minimum":
        assert value <= y.min() + 1e-6
    else:
        assert abs(value) < 1e-3
        before = y[x < task.answer() - 1e-3]
        assert (before > 0).all() or (before < 0).all()


@pytest.mark.parametrize(("task_id", "task"), ALL_TASKS)
@pytest.mark.parametrize(("error", "reward"), [(0.0, 1.0), (0.045, 1.0), (-0.045, 1.0), (0.06, 0.0), (-3.0, 0.0)])
def test_submit_rewards_an_x_within_the_tolerance(task_id: str, task: object, error: float, reward: float) -> None:
    assert isinstance(task, plot_env.Task)
    output = plot_env.PlotEnv({"id": task_id}).submit(plot_env.SubmitInput(x=task.answer() + error))
    assert (output.reward, output.finished) == (reward, True)


@pytest.mark.parametrize("x", ["nan", "inf", "-inf"])
def test_submit_refuses_what_is_no_number(x: str) -> None:
    with pytest.raises(ValidationError):
        plot_env.SubmitInput(x=float(x))


def test_tasks_do_not_tell_the_curve() -> None:
    for split in plot_env.PlotEnv.list_splits():
        for task in plot_env.PlotEnv.list_tasks(split.name):
            assert task.keys() == {"id", "question"}
            assert plot_env.PlotEnv(task).get_prompt()[0].text.count(task["question"]) == 1


@pytest.mark.parametrize("task_spec", [{}, {"id": "train-99"}])
def test_an_unknown_task_is_refused(task_spec: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not that of a known task"):
        plot_env.PlotEnv(task_spec)


def test_the_font_cache_is_in_a_private_directory() -> None:
    assert stat.S_IMODE(os.stat(os.environ["MPLCONFIGDIR"]).st_mode) == 0o700
