"""code_env: right code is rewarded, and nothing else is, whatever it does to look right."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import pytest
from pydantic import ValidationError

from sandbox_runtime import ToolOutput

from .conftest import load_example, text_of

code_env = load_example("code_env")
ALL_PROBLEMS = {task_id: problem for problems in code_env.PROBLEMS.values() for task_id, problem in problems.items()}

pytestmark = pytest.mark.usefixtures("same_user")


async def _submit(task_id: str, code: str) -> ToolOutput:
    output = await code_env.CodeEnv({"id": task_id}).submit(code_env.SubmitInput(code=code))
    assert isinstance(output, ToolOutput) and output.finished
    return output


async def _run(code: str) -> str:
    output = await code_env.CodeEnv({"id": "train-0"}).run(code_env.RunInput(code=code))
    assert (output.reward, output.finished) == (None, False)
    return text_of(output)


def _reference_code(problem: Any) -> str:
    source = textwrap.dedent(inspect.getsource(problem.reference)).replace("Counter[int] =", "object =")
    imports = "import heapq\nfrom collections import Counter, deque\n"
    return f"{imports}\n{source}\n{problem.function} = {problem.reference.__name__}\n"


@pytest.mark.parametrize("task_id", ALL_PROBLEMS)
async def test_right_code_is_rewarded(task_id: str) -> None:
    output = await _submit(task_id, _reference_code(ALL_PROBLEMS[task_id]))
    assert output.reward == 1.0, text_of(output)


@pytest.mark.parametrize("task_id", ALL_PROBLEMS)
async def test_answers_to_the_examples_alone_are_not_rewarded(task_id: str) -> None:
    problem = ALL_PROBLEMS[task_id]
    table = {repr(args): problem.expected(args) for args in problem.examples}
    output = await _submit(task_id, f"def {problem.function}(*args):\n    return {table!r}.get(repr(list(args)))")
    assert output.reward == 0.0


WRONG = {
    "wrong": ("def to_roman(n): return 'I'", "Test 2 of 10 failed: wrong result."),
    "wrong type": ("def to_roman(n): return ['I']", "Test 1 of 10 failed: wrong result."),
    "nothing": ("", "KeyError"),
    "syntax": ("def to_roman(n) return 'I'", "SyntaxError"),
    "raises": ("def to_roman(n): raise ZeroDivisionError('oh')", "ZeroDivisionError: oh"),
    "raises at length": ("def to_roman(n): raise ValueError('x' * 10**6)", "xxx"),
    "recursion": ("def to_roman(n): return to_roman(n)", "RecursionError"),
    "exits": ("import sys; sys.exit(0)", "without a result"),
    "exits hard": ("import os; os._exit(0)", "without a result"),
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    "kills its group": ("import os, signal; os.killpg(0, signal.SIGKILL)", "SIGKILL"),
    "exhausts memory": ("def to_roman(n): return 'I' * 10**10", "MemoryError"),
    "not JSON": ("def to_roman(n): return {1, 2}", "TypeError"),
    "NaN": ("def to_roman(n): return float('nan')", "ValueError"),
    "equal to everything": (
        "class Any(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\n"
        "def to_roman(n): return Any('?')",
        "wrong result",
    ),
    "replaces json": (
        "import json\njson.dumps = lambda *args, **kwargs: '{\"value\": true}'\ndef to_roman(n): return 1",
        "wrong result",
    ),
    "prints a verdict": (
        'import os\nfor fd in range(20):\n    try: os.write(fd, b\'{"reward": 1.0, "passed": true}\')\n'
        "    except OSError: pass\nos._exit(0)",
        "something else than a result",
    ),
    "prints NaN": ("import os\nfor fd in (3, 4): os.write(fd, b'{\"value\": NaN}')\nos._exit(0)", "without a result"),
    "prints a deep value": ("import os\nos.write(3, b'[' * 60000)\nos._exit(0)", "without a result"),
    "prints without end": ("import os\nwhile True: os.write(3, b'x' * 65536)", "longer than"),
    "surrogates": ("def to_roman(n): return '\\ud800'", "wrong result"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_code_is_not_rewarded_and_told_why(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_env, "TEST_TIMEOUT_S", 2.0)
    code, reason = WRONG[name]
    output = await _submit("train-0", code)
    assert output.reward == 0.0
    assert reason in text_of(output)
    assert len(text_of(output)) < 1000


async def test_slow_code_costs_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_env, "TEST_TIMEOUT_S", 1.0)
    output = await _submit("train-2", "def count_pairs(numbers, target):\n    while True: pass")
    assert (output.reward, text_of(output)) == (0.0, "Test 1 of 5 failed: it took longer than 1 seconds.")


async def test_a_quadratic_solution_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_env, "TEST_TIMEOUT_S", 2.0)
    naive = "def count_pairs(xs, t):\n    return sum(a + b == t for i, a in enumerate(xs) for b in xs[:i])"
    assert "Test 5 of 5 failed: it took longer" in text_of(await _submit("train-2", naive))


async def test_threads_and_children_left_behind_do_not_hold_up_the_grading() -> None:
    problem = ALL_PROBLEMS["train-0"]
    left = (
        "import subprocess, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "subprocess.Popen(['sleep', '1000'])\n"
    )
    output = await _submit("train-0", left + _reference_code(problem))
    assert output.reward == 1.0, text_of(output)
    await code_env.shell.end_processes()


async def test_a_submission_sees_its_own_arguments_and_no_expected_value() -> None:
    spy = """
import gc, os, sys
def to_roman(n):
    seen = " ".join(map(repr, gc.get_objects())) + repr(dict(os.environ)) + repr(sys.argv)
    next_args, last_expected = f"[{n + 3998}]", "".join(reversed("XICXMCMMM"))
    raise LookupError(f"{n} {next_args in seen} {last_expected in seen}")
"""
    assert "LookupError: 1 False False" in text_of(await _submit("train-0", spy))


async def test_modules_of_the_agent_do_not_shadow_those_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    await _run("import pathlib, os; pathlib.Path('json.py').write_text('raise SystemExit')")
    try:
        assert (await _submit("train-3", _reference_code(ALL_PROBLEMS["train-3"]))).reward == 1.0
    finally:
        await _run("import os; os.remove('json.py')")


async def test_run_returns_what_is_printed() -> None:
    assert await _run("print(6 * 7)") == "42\n\n[exit code 0]"
    assert "ZeroDivisionError" in await _run("1 / 0")


async def test_run_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_env, "RUN_TIMEOUT_S", 1.0)
    text = await _run("print('start')\nwhile True: print('x' * 1000)")
    assert text.startswith("start") and text.endswith("[timed out after 1 s]")
    assert len(text) < 2 * code_env.RUN_OUTPUT_BYTES


@pytest.mark.parametrize(
    ("value", "expected", "result"),
    [
        ([1, "a", None], [1, "a", None], True),
        ({"a": [True]}, {"a": [True]}, True),
        (1, True, False),
        (True, 1, False),
        (1.0, 1, False),
        (None, False, False),
        ([1], [1, 2], False),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"0": 1}, [1], False),
        ("1", 1, False),
    ],
)
def test_values_are_the_same_only_with_the_same_types(value: Any, expected: Any, result: bool) -> None:
    assert code_env.same(value, expected) is result


@pytest.mark.parametrize("task_id", ALL_PROBLEMS)
def test_neither_tasks_nor_prompts_tell_hidden_arguments(task_id: str) -> None:
    problem = ALL_PROBLEMS[task_id]
    listed = [task for split in code_env.PROBLEMS for task in code_env.CodeEnv.list_tasks(split)]
    (task,) = [task for task in listed if task["id"] == task_id]
    assert task == {"id": task_id, "function": problem.function}
    prompt = code_env.CodeEnv(task).get_prompt()[0].text
    assert problem.signature in prompt
    calls = [f"{problem.function}({', '.join(map(repr, args))})" for args in problem.hidden]
    assert not any(call in prompt for call in calls)
    assert not any(args in problem.hidden for args in problem.examples)


def test_code_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValidationError):
        code_env.SubmitInput(code="#" * (code_env.CODE_CHARS + 1))


@pytest.mark.parametrize("task_spec", [{}, {"id": "train-99"}])
def test_an_unknown_task_is_refused(task_spec: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not that of a known problem"):
        code_env.CodeEnv(task_spec)
