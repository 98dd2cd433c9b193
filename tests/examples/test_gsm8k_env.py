"""gsm8k_env: what counts as the right number, and that the answer can't be had beforehand."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from .conftest import EXAMPLES, load_example, text_of

gsm8k = load_example("gsm8k_env")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", "42"),
        ("  42.0 ", "42"),
        ("42.", "42"),
        ("$1,234.50", "1234.5"),
        ("1,234,567 dollars", "1234567"),
        ("The answer is 18 apples.", "18"),
        ("3 + 4 = 7", "7"),
        ("#### 72", "72"),
        ("-4", "-4"),
        ("\u22124 degrees", "-4"),
        ("-$15", "-15"),
        ("10-5", "5"),
        (".5", "0.5"),
        ("well...42", "42"),
        ("50%", "50"),
        ("007", "7"),
    ],
)
def test_a_number_is_found_whatever_is_around_it(text: str, number: str) -> None:
    assert gsm8k.parse_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "forty-two", "$", "-", ",", "...", "\u0664\u0662"])
def test_no_number_is_found_where_there_is_none(text: str) -> None:
    assert gsm8k.parse_number(text) is None


def _every_task() -> list[tuple[str, dict[str, str]]]:
    splits = json.loads((EXAMPLES / "gsm8k_env" / "tasks.json").read_text(encoding="utf-8"))
    return [(split, task) for split, tasks in splits.items() for task in tasks]


def test_there_are_enough_tasks_and_ids_are_unique() -> None:
    ids = [task["id"] for _, task in _every_task()]
    assert len(ids) == len(set(ids)) >= 20
    assert [split.name for split in gsm8k.GSM8KEnv.list_splits()] == ["train", "test"]


@pytest.mark.parametrize(("split", "task"), _every_task())
def test_every_answer_is_right_for_its_own_task_and_told_nowhere(split: str, task: dict[str, str]) -> None:
    (listed,) = [each for each in gsm8k.GSM8KEnv.list_tasks(split) if each["id"] == task["id"]]
    assert listed.keys() == {"id", "question"}
    env = gsm8k.GSM8KEnv(listed)
    (prompt,) = env.get_prompt()
    numbers_in_prompt = gsm8k._NUMBER.findall(prompt.text.replace(",", ""))
    assert Decimal(task["answer"]) not in map(Decimal, numbers_in_prompt)
    output = env.submit(gsm8k.SubmitInput(answer=f"It is {task['answer']}."))
    assert (output.reward, output.finished) == (1.0, True)


@pytest.mark.parametrize("answer", ["54", "no idea", "", "55 or maybe 56"])
def test_a_wrong_answer_ends_the_episode_without_reward(answer: str) -> None:
    env = gsm8k.GSM8KEnv({"id": "train-2"})
    output = env.submit(gsm8k.SubmitInput(answer=answer))
    assert (output.reward, output.finished) == (0.0, True)
    assert text_of(output).startswith("Incorrect") and "55" not in text_of(output).replace(answer, "")


@pytest.mark.parametrize("task_spec", [{}, {"id": "train-99"}, {"id": ["train-0"]}, {"id": None}])
def test_an_unknown_task_is_refused(task_spec: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not that of a known problem"):
        gsm8k.GSM8KEnv(task_spec)
