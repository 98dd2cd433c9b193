"""The tutorial is followed to the letter in an empty directory: files are written, commands run, what it shows is printed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docker.harness import free_port

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial"
PORT = "8080"
"""Which the tutorial names; a free one takes its place here."""

_BLOCK = re.compile(
    r"^```(?:\{(?P<directive>[\w-]+)\} ?(?P<argument>\S*)|(?P<language>\w+))\n(?P<body>.*?)^```$", re.M | re.S
)
_OPTION = re.compile(r"^:(\w+): (.*)$", re.M)
START_TIMEOUT_S = 60

pytestmark = [pytest.mark.docker, pytest.mark.timeout(400)]  # packages are installed


@dataclass(frozen=True)
class Step:
    """A block of the tutorial: a file to write, commands to give, or what these have printed."""

    kind: str
    text: str
    options: dict[str, str]


def steps() -> Iterator[Step]:
    for block in _BLOCK.finditer((TUTORIAL / "index.md").read_text()):
        options = dict(_OPTION.findall(block["body"])) if block["directive"] else {}
        if block["directive"] == "literalinclude":
            yield Step("file", (TUTORIAL / block["argument"]).read_text(), options)
        elif "console" in (block["argument"], block["language"]):
            commands = re.findall(r"^\$ (.*)$", block["body"], re.M)
            yield Step("background" if "background" in options.values() else "commands", "\n".join(commands), options)
        elif "expected" in options.values():
            yield Step("expected", block["body"].partition("\n\n")[2], options)


@contextmanager
def in_background(command: str, directory: Path, environ: dict[str, str]) -> Iterator[None]:
    """Run a host as in a second terminal; end it with Ctrl-C."""
    log = directory.parent / "host.log"
    with log.open("wb") as output:
        words = ["bash", "-c", f"exec {command}"]
        process = subprocess.Popen(
            words, cwd=directory, env=environ, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while " serving " not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def state_dir() -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="ors-", dir="/tmp")
    yield directory
    shutil.rmtree(directory)


def test_it_works_as_it_is_written(tmp_path: Path, state_dir: str) -> None:
    port = str(free_port())
    work = tmp_path / "empty"
    work.mkdir()
    environ = {**os.environ, "ORS_HOST_PORT": port, "ORS_HOST_STATE_DIR": state_dir, "NO_PROXY": "127.0.0.1"}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    printed = ""
    done: list[str] = []
    with ExitStack() as second_terminal:
        for step in steps():
            done.append(step.kind)
            if step.options.get("class") == "install":
                continue  # tests/deploy/test_wheel.py does
            match step.kind:
                case "file":
                    (work / step.options["caption"]).write_text(step.text.replace(PORT, port))
                case "background":
                    second_terminal.enter_context(in_background(step.text, work, environ))
                case "commands":
                    result = subprocess.run(
                        ["bash", "-ec", step.text], cwd=work, env=environ, capture_output=True, text=True, timeout=110
                    )
                    printed = result.stdout
                    assert result.returncode == 0, f"{step.text}\n{printed}{result.stderr}"
                case "expected":
                    for line in filter(None, step.text.splitlines()):
                        assert re.search(re.escape(line).replace("…", ".*"), printed), f"{line!r} is not in\n{printed}"
    assert done.count("file") == 3 and done.count("expected") == 2 and "background" in done
