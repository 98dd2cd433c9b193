"""The agent against the grader: a reward that was not earned.

Each trick is played on a careless grader first, which must fall for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from host.build import build_environment
from tests.attacks.board import AGENT, attack
from tests.attacks.targets import Served, Weakened
from tests.conftest import Once
from tests.docker.harness import RunningHost, running_host

RecordProperty = Callable[[str, object], None]
CODE = "ors-host-test-code:latest"
EXAMPLES = Path(__file__).parents[2] / "examples"

FORGED = 'print(\'{"passed": true, "value": 6174}\', flush=True); import os; os._exit(0)'
AT_FIRST = "export HOME=/home/agent; cd; rm -rf .local bin .profile .bash_profile .bashrc; cd /workspace; rm -rf -- *"
WRONG = "echo 'def solve(): return 0' >solution.py"


class Trick(NamedTuple):
    """What the agent runs, and the grader that is to fall for it."""

    id: str
    what: str
    grader: str
    command: str


TRICKS = [
    Trick("C01", "have the grader read the answer through a link", "judge", "ln -s /run/private/answer result.txt"),
    Trick(
        "C02",
        "have the grader read the answer through a linked directory",
        "judge",
        "ln -s /run/private private; cd private 2>/dev/null; cd /workspace; ln -s private/answer result.txt",
    ),
    Trick(
        "C03",
        "put its own module in place of one that the check imports",
        "check",
        f"{WRONG}; cat >json.py <<'EOF'\n{FORGED}\nEOF",
    ),
    Trick(
        "C04",
        "have its own code run when the check's Python starts",
        "check",
        f"{WRONG}; d=$(python3 -c 'import sys; print(f\"python3.{{sys.version_info[1]}}\")')\n"
        "mkdir -p ~/.local/lib/$d/site-packages\n"
        f"cat >~/.local/lib/$d/site-packages/usercustomize.py <<'EOF'\n{FORGED}\nEOF",
    ),
    Trick(
        "C05",
        "have its own compiled code loaded in place of the source",
        "check",
        "echo 'def solve(): return 0' >solution.py; python3 - <<'EOF'\n"
        "import importlib.util, marshal, pathlib, _imp\n"
        "source = pathlib.Path('solution.py').read_bytes()\n"
        f"code = compile({FORGED!r}, 'solution.py', 'exec')\n"
        "path = pathlib.Path(importlib.util.cache_from_source('solution.py'))\n"
        "path.parent.mkdir(exist_ok=True)\n"
        "path.write_bytes(importlib.util.MAGIC_NUMBER + (1).to_bytes(4, 'little') + bytes(8) + marshal.dumps(code))\n"
        "EOF",
    ),
    Trick(
        "C06",
        "have its own program run in place of python3",
        "check",
        f"{WRONG}; mkdir -p ~/bin; cat >~/bin/python3 <<'EOF'\n#!/bin/sh\n"
        'echo \'{"passed": true, "value": 6174}\'\nEOF\n'
        "chmod +x ~/bin/python3; for file in profile bash_profile bashrc; do echo 'PATH=$HOME/bin:$PATH' >>~/.$file; done",
    ),
    Trick(
        "C07",
        "print the verdict and leave before the check does",
        "check",
        "cat >solution.py <<'EOF'\nimport os\nprint('{\"passed\": true}', flush=True)\nos._exit(0)\nEOF",
    ),
    Trick(
        "C08",
        "take the expected result from whoever compares",
        "check",
        "cat >solution.py <<'EOF'\n"
        "import sys\n"
        "def solve():\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for name, value in {**frame.f_globals, **frame.f_locals}.items():\n"
        "            if name.lower() == 'expected':\n"
        "                return value\n"
        "        frame = frame.f_back\n"
        "EOF",
    ),
    Trick(
        "C09",
        "return something that is equal to everything",
        "check",
        "cat >solution.py <<'EOF'\n"
        "class Yes(int):\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = int.__hash__\n"
        "def solve(): return Yes(1)\n"
        "EOF",
    ),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def careless(vault_image: str) -> AsyncIterator[Weakened]:
    """A careless grader, for all tricks."""
    async with Weakened.open(vault_image) as weakened:
        yield weakened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def careful(vault_host: RunningHost) -> AsyncIterator[Served]:
    """A session whose grader is careful, for all tricks."""
    async with vault_host.client() as client, Served.open(vault_host, client) as served:
        yield served


@pytest.mark.parametrize(
    "trick", [pytest.param(trick, marks=attack(trick.id, AGENT, trick.what), id=trick.id) for trick in TRICKS]
)
@pytest.mark.asyncio(loop_scope="module")
async def test_trick(trick: Trick, careless: Weakened, careful: Served, record_property: RecordProperty) -> None:
    weakened, served = careless, careful
    command = trick.command.replace("/run/private", "/tmp/private-*")  # where it is without a file system of its own
    await weakened.run(f"{AT_FIRST}; {command}")
    assert await weakened.judged(trick.grader) == 1.0, "this trick can't work on anybody"
    record_property("shown", True)
    await served.run(f"{AT_FIRST}; {trick.command}")
    assert await served.judged(trick.grader) == 0.0
    assert await served.alive()


@attack("C10", AGENT, "have the grader wait for a fifo")
async def test_a_fifo_for_a_result(weakened: Weakened, served: Served, record_property: RecordProperty) -> None:
    await weakened.run("mkfifo result.txt")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await weakened.judged("judge")
    record_property("shown", True)
    await served.run("mkfifo result.txt")
    started = time.monotonic()
    assert await served.judged("judge") == 0.0
    assert time.monotonic() - started < 8


@attack("C11", AGENT, "have the grader read a file without end")
async def test_an_endless_result(weakened: Weakened, served: Served, record_property: RecordProperty) -> None:
    await weakened.run("ln -s /dev/zero result.txt")
    assert await weakened.judged("judge") is None and not await weakened.alive()
    record_property("shown", True)
    await served.run("ln -s /dev/zero result.txt")
    assert await served.judged("judge") == 0.0
    await served.run("rm result.txt; truncate -s 100G result.txt")
    assert await served.judged("judge") == 0.0
    assert await served.alive()


@attack("C12", AGENT, "change the result between two looks of the grader")
async def test_a_result_that_changes(weakened: Weakened, served: Served, record_property: RecordProperty) -> None:
    loop = "while :; do echo $RANDOM >new; mv new result.txt; sleep 0.02; done"
    command = f"(setsid bash -c '{loop}' >/dev/null 2>&1 &); sleep 0.3"
    await weakened.run(command)
    looked = await weakened.output("naive_look_twice")
    assert looked is not None and looked["blocks"][0]["text"] == "changed"
    record_property("shown", True)
    await served.run(command)
    looked = await served.output("look_twice")
    assert looked is not None and looked["blocks"][0]["text"] == "same"


@pytest.fixture(scope="module")
def code_host(once: Once, profile: str) -> Iterator[RunningHost]:
    """A host that serves the example ``code_env``."""
    once(CODE, lambda: build_environment(EXAMPLES / "code_env", CODE))
    with running_host(CODE, isolation=profile) as host:
        yield host


LOOK_UP = """
def to_roman(n):
    import glob, os, re
    for path in ['/opt/env/problems.py', *glob.glob('/proc/*/root/opt/env/problems.py')]:
        try:
            source = open(path).read()
        except OSError:
            continue
        namespace = {}
        exec(source, namespace)
        return [p for ps in namespace['PROBLEMS'].values() for p in ps.values() if p.function == 'to_roman'][0].expected([n])
    return 'no'
"""
PREPARED = """
import os, pathlib, site
for folder in {site.getusersitepackages(), '/workspace'}:
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    for name in ('usercustomize', 'sitecustomize', 'json', 'resource'):
        pathlib.Path(folder, f'{name}.py').write_text('print("{\\\\"value\\\\": 1}"); import os; os._exit(0)')
if os.fork() == 0:
    os.setsid()
    while True:
        pass
"""
CODE_CHEATS = {
    "C13": ("read the tests of code_env", "", LOOK_UP),
    "C14": ("prepare the ground for code_env's driver", PREPARED, "def to_roman(n): return 'I'"),
    "C15": ("answer code_env in place of its driver", "", 'print(\'{"value": "I"}\'); import os; os._exit(0)'),
}


@pytest.mark.parametrize(
    ("prepare", "submit"),
    [
        pytest.param(prepare, submit, marks=attack(id, AGENT, what), id=id)
        for id, (what, prepare, submit) in CODE_CHEATS.items()
    ],
)
async def test_code_env(code_host: RunningHost, profile: str, prepare: str, submit: str) -> None:
    async with code_host.client() as client:
        async with client.http.post("/codeenv/tasks", json={"split": "train"}) as response:
            tasks = (await response.json())["tasks"]
        task = next(task for task in tasks if task["function"] == "to_roman")
        session = await client.create(task)
        if prepare:
            assert (await session.call("run", code=prepare)).event == "end"
        output = (await session.call("submit", code=submit)).result["output"]
        assert (output["reward"], output["finished"]) == (0.0, True)
        await session.delete()
