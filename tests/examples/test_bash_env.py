"""bash_env: every task can be solved, nothing but a solution is rewarded, and traps do no harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from sandbox_runtime import ToolOutput

from .conftest import load_example, text_of

bash_env = load_example("bash_env")
SPLIT_OF = {task_id: split for split, tasks in bash_env.TASKS.items() for task_id in tasks}

pytestmark = pytest.mark.usefixtures("same_user")

SOLUTIONS = {
    "logs-by-year": 'cd logs; for f in app-*.log; do mkdir -p "${f:4:4}"; mv "$f" "${f:4:4}/"; done',
    "count-errors": """
        for f in logs/*.log; do echo "$(basename "$f" .log) $(grep -c '^ERROR' "$f")"; done | sort -k2,2nr > report.txt
    """,
    "rename-photos": """
        cd photos; for f in *; do n=${f,,}; mv "$f" "${n// /_}"; done
    """,
    "largest-file": "find data -type f -printf '%s %p\\n' | sort -n | tail -n 1 | cut -d ' ' -f 2- > largest.txt",
    "permissions": "chmod 755 scripts/*; chmod 600 keys/*",
    "archive-notes": "find ./notes -name '*.md' | tar -czf notes.tar.gz --files-from=-",
    "sum-sales": """
        { echo customer,total; tail -n +2 sales.csv | awk -F, '{t[$2] += $3} END {for (c in t) print c "," t[c]}' | sort
        } > totals.csv
    """,
    "delete-duplicates": "rm inbox/c.txt inbox/e.txt",
}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in the place of /workspace."""
    monkeypatch.setattr(bash_env.BashEnv, "workspace", str(tmp_path))
    return tmp_path


async def _started(task_id: str) -> Any:
    env = bash_env.BashEnv({"id": task_id})
    await env.setup()
    return env


async def _bash(env: Any, command: str, **more: float) -> ToolOutput:
    output = await env.bash(bash_env.BashInput(command=command, **more))
    assert isinstance(output, ToolOutput)
    return output


async def _reward(task_id: str, *commands: str) -> float | None:
    env = await _started(task_id)
    for command in commands:
        output = await _bash(env, command)
        assert (output.reward, output.finished) == (None, False)
    output = await env.submit()
    assert output.finished
    assert (output.reward == 1.0) == (text_of(output) == "Everything is as it should be.")
    assert isinstance(output, ToolOutput)
    return output.reward


@pytest.mark.parametrize("task_id", SPLIT_OF)
async def test_a_solution_is_rewarded(workspace: Path, task_id: str) -> None:
    assert await _reward(task_id, SOLUTIONS[task_id]) == 1.0


@pytest.mark.parametrize("task_id", SPLIT_OF)
async def test_doing_nothing_is_not_rewarded(workspace: Path, task_id: str) -> None:
    assert await _reward(task_id) == 0.0


@pytest.mark.parametrize("task_id", SPLIT_OF)
async def test_deleting_everything_is_not_rewarded(workspace: Path, task_id: str) -> None:
    assert await _reward(task_id, "rm -rf -- *") == 0.0


@pytest.mark.parametrize(
    ("task_id", "almost"),
    [
        ("logs-by-year", "; cp 2021/*.log ."),  # copied instead of moved
        ("logs-by-year", "; rm README.txt"),
        ("count-errors", "; sed -i s/ERROR/ERR/ logs/mail.log"),
        ("count-errors", "; sort report.txt -o report.txt"),  # in the wrong order
        ("count-errors", "; yes >> report.txt & sleep 0.1; kill %1"),
        ("rename-photos", "; touch 'Grandma.JPG'"),
        ("rename-photos", "; ln -s nowhere 'the cat.JPG'"),  # a dangling link is still something
        ("largest-file", "; rm data/four.bin"),
        ("permissions", "; chmod o+r keys/bob.pem"),
        ("permissions", "; chmod u+s scripts/test.sh"),
        ("archive-notes", "; tar -czf notes.tar.gz notes"),  # with the clutter
        ("archive-notes", "; tar -cf notes.tar.gz notes/*.md notes/work/*.md"),  # not gzipped
        ("archive-notes", "; rm notes/work/cache.bin"),
        ("sum-sales", "; sed -i 1d totals.csv"),
        ("delete-duplicates", "; rm inbox/d.txt"),
    ],
)
async def test_almost_is_not_rewarded(workspace: Path, task_id: str, almost: str) -> None:
    assert await _reward(task_id, SOLUTIONS[task_id].strip() + almost) == 0.0


@pytest.mark.parametrize(
    "trap",
    [
        "ln -s /dev/zero report.txt",
        "ln -s /etc/passwd report.txt",
        "ln -s report.txt report.txt",
        "truncate -s 100G report.txt",
        "mkdir report.txt",
        "head -c 60000 /dev/urandom > report.txt",
    ],
)
async def test_a_trap_in_the_place_of_a_result_is_not_a_result(workspace: Path, trap: str) -> None:
    assert await _reward("count-errors", trap) == 0.0


async def test_a_fifo_costs_one_time_limit(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bash_env.shell, "FILE_TIMEOUT_S", 0.3)
    assert await _reward("logs-by-year", "rm logs/*; mkdir logs/2021; mkfifo logs/2021/app-2021-03-04.log") == 0.0


async def test_an_archive_that_unpacks_to_too_much_is_not_a_result(workspace: Path) -> None:
    bomb = "mkdir -p x/notes/work; cd x; cp -r ../notes/* notes; truncate -s 20M notes/monday.md"
    assert await _reward("archive-notes", f"{bomb}; {SOLUTIONS['archive-notes']}; mv notes.tar.gz ..") == 0.0


async def test_what_still_runs_is_ended_before_the_result_is_looked_at(workspace: Path) -> None:
    env = await _started("largest-file")
    await _bash(env, f"sleep 1000 >/dev/null 2>&1 & echo $! > {workspace}/pid")
    pid = int((workspace / "pid").read_text())
    assert _runs(pid)
    await env.submit()
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Tell whether a process is there and not just waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_bash_tells_how_the_command_ended(workspace: Path) -> None:
    env = await _started("largest-file")
    assert text_of(await _bash(env, "echo out; echo err >&2; exit 3")) == "out\nerr\n\n[exit code 3]"
    assert text_of(await _bash(env, "echo so far; sleep 100", timeout_s=0.5)) == "so far\n\n[timed out after 0.5 s]"
    assert text_of(await _bash(env, "kill -SEGV $$")).endswith("[killed by SIGSEGV]")
    assert len(text_of(await _bash(env, "head -c 1M /dev/urandom"))) < 4 * bash_env.OUTPUT_BYTES
    assert text_of(await _bash(env, "pwd")) == f"{workspace}\n\n[exit code 0]"


@pytest.mark.parametrize("bad", [{}, {"command": "ls", "timeout_s": 0}, {"command": "ls", "timeout_s": 1e9}])
def test_bash_refuses_parameters_out_of_bounds(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        bash_env.BashInput.model_validate(bad)


def test_tasks_are_listed_with_their_instruction_only() -> None:
    listed = {
        task["id"]: split.name
        for split in bash_env.BashEnv.list_splits()
        for task in bash_env.BashEnv.list_tasks(split.name)
        if task.keys() == {"id", "instruction"}
    }
    assert listed == SPLIT_OF and len(listed) >= 6


@pytest.mark.parametrize("task_spec", [{}, {"id": "train-99"}])
def test_an_unknown_task_is_refused(task_spec: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not that of a known task"):
        bash_env.BashEnv(task_spec)
