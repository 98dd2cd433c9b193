"""``ors-host dev``: a class served from its folder; a change counts from the next session on; nothing is isolated."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ORS_HOST = str(Path(sys.executable).with_name("ors-host"))
WAIT_S = 30


class Dev:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for(self, words: str, *, times: int = 1) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.log.count(words) < times:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def play(self, *answers: str) -> str:
        (url,) = re.findall(r"url=(http://\S+)", self.log)
        done = subprocess.run(
            [ORS_HOST, "play", url], input="\n".join(answers) + "\n", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def dev(*args: str, cwd: Path, log: Path) -> Iterator[Dev]:
    """Serve until the block is left; it must end in order then, and leave no work directory."""
    temporary = log.with_name("temporary")
    temporary.mkdir()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [ORS_HOST, "dev", "--port", "0", *args],
            cwd=cwd,
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
    try:
        yield Dev(process, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, log.read_text()
        assert list(temporary.iterdir()) == []
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "try-it"
    subprocess.run([ORS_HOST, "init", str(folder)], check=True, capture_output=True)
    return folder


def test_an_episode_and_a_change(folder: Path, tmp_path: Path) -> None:
    solved = ("bash", "pwd; ls -A; echo hello > hello.txt", "submit")
    env = folder / "env.py"
    with dev("env:TryIt", cwd=folder, log=tmp_path / "log") as server:
        server.wait_for(" serving ")
        assert "NOTHING IS ISOLATED" in server.log
        output = server.play(*solved)
        assert "Right." in output and "reward 1.0" in output
        assert (
            str(tmp_path / "temporary") in output and "env.py" not in output
        )  # an empty directory, not the author's own
        assert not (folder / "hello.txt").exists()

        env.write_text(env.read_text().replace('"Right."', '"Quite right."') + '\nprint("imported anew")\n')
        server.wait_for("new_image_served")
        assert "Quite right." in server.play(*solved)
        assert "imported anew" in server.log

        text = env.read_text()
        env.write_text(text + "\nthis is no Python\n")
        server.wait_for("new_image_not_served")
        assert "SyntaxError" in server.log
        env.write_text(text.replace('"Quite right."', '"Right again."'))
        server.wait_for("new_image_served", times=2)
        assert "Right again." in server.play(*solved)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nosuch",), "no module named 'nosuch'"),
        (("env:Nosuch",), "Nosuch"),
        (("env", "-C", "/nonexistent"), "/nonexistent is not a directory"),
    ],
)
def test_what_cannot_be_served(folder: Path, args: tuple[str, ...], words: str) -> None:
    done = subprocess.run(
        [ORS_HOST, "dev", "--port", "0", *args], cwd=folder, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr
