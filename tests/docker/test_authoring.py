"""From nothing to an environment that was seen to work: init, build, test, play."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from host import docker_client
from tests.docker.harness import RunningHost, running_host

ORS_HOST = str(Path(sys.executable).with_name("ors-host"))
TEMPLATES = ("bash", "code", "plain")


def run(*args: str, cwd: Path, code: int = 0, stdin: str | None = None) -> str:
    """Run ``ors-host`` as a user would; return what it prints."""
    done = subprocess.run([ORS_HOST, *args], cwd=cwd, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty directory; images named after it are removed."""
    yield tmp_path_factory.mktemp("authoring")
    with closing(docker_client.connect()) as client:
        for tag in ("ors-host-test-init-bash", "ors-host-test-init-code", "ors-host-test-init-plain"):
            client.remove_image(tag, force=True)


def test_from_an_empty_directory_in_two_minutes(folder: Path) -> None:
    started = time.monotonic()
    run("init", "ors-host-test-init-bash", cwd=folder)
    run("build", "ors-host-test-init-bash", "-t", "ors-host-test-init-bash", cwd=folder)
    transcript = run("test", "ors-host-test-init-bash", cwd=folder)
    assert time.monotonic() - started < 120
    assert "0 failed" in transcript and "✗" not in transcript
    for words in (
        "orshosttestinitbash · train · task 0",
        "orshosttestinitbash · test · task 0",
        "bash {",
        "nothing is left",
    ):
        assert words in transcript


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_passes_its_own_tests(folder: Path, template: str) -> None:
    name = f"ors-host-test-init-{template}"
    if not (folder / name).exists():
        run("init", name, "--template", template, cwd=folder)
        run("build", name, "-t", name, cwd=folder)
    unit = [sys.executable, "-m", "unittest"]
    done = subprocess.run(unit, cwd=folder / name, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "\nOK" in done.stderr, done.stderr
    report = json.loads(run("test", name, "--script", f"{name}/episodes.json", "--json", cwd=folder))
    assert report["failures"] == 0
    kinds = [line["kind"] for line in report["transcript"]]
    assert kinds.count("environment") == len(json.loads((folder / name / "episodes.json").read_text()))


def test_what_is_not_so_is_a_failure(folder: Path) -> None:
    name = "ors-host-test-init-bash"
    script = [{"split": "train", "calls": [{"tool": "submit"}], "reward": 1.0}]
    (folder / "wrong.json").write_text(json.dumps(script))
    output = run("test", name, "--script", "wrong.json", cwd=folder, code=1)
    assert "✗ not so: the reward is 1.0 (the reward is 0.0, not 1.0)" in output and "1 failed" in output


def test_nothing_is_overwritten(folder: Path) -> None:
    name = "ors-host-test-init-bash"
    (folder / name / "env.py").write_text("mine")
    (folder / name / "README.md").unlink()
    output = run("init", name, cwd=folder, code=1)
    assert "has env.py, episodes.json, test_env.py already; nothing was written" in output
    assert (folder / name / "env.py").read_text() == "mine" and not (folder / name / "README.md").exists()
    assert "gives no name to a class" in run("init", "1", cwd=folder, code=1)


@pytest.fixture(scope="module")
def host(probe_image: str) -> Iterator[RunningHost]:
    with running_host(probe_image, env={"ORS_HOST_API_KEY": "k"}, warm=0) as host:
        yield host


def test_a_person_plays(host: RunningHost, folder: Path) -> None:
    answers = ["nosuch", "echo", "hi\\nthere", "x", "2", "fail", "raise", "finish", "unread"]
    output = run("play", host.url, "--api-key", "k", "-i", "3", cwd=folder, stdin="\n".join(answers) + "\n")
    assert "probe · train · task 3" in output and "task 3\n" in output
    assert "there is no tool 'nosuch'" in output
    assert "hi\nthere" in output and "it raised: the tool raised" in output
    assert "reward 1.0" in output and "The episode is finished." in output
    episode = json.loads(run("play", host.url, "--api-key", "k", "--json", cwd=folder, stdin="echo\nhi\n\n"))
    assert [call["input"] for call in episode["calls"]] == [{"text": "hi"}]
    assert host.containers(role="session") == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("test", "no-such-image"), "image 'no-such-image' is not on this engine"),
        (("test", "x", "--script", "nosuch.json"), "nosuch.json can't be read"),
        (("play", "http://127.0.0.1:1"), "no answer to GET /list_environments"),
    ],
)
def test_what_is_not_there(folder: Path, args: tuple[str, ...], words: str) -> None:
    assert words in run(*args, cwd=folder, code=1)


def test_a_wrong_key(host: RunningHost, folder: Path) -> None:
    assert "401 unauthorized" in run("play", host.url, "--api-key", "wrong", cwd=folder, code=1)


def test_an_environment_cannot_write_to_the_terminal(host: RunningHost, folder: Path) -> None:
    """An attack: a tool's output that sets the terminal's title, or worse."""
    answers = ["echo", "\x1b]0;pwned\x07", "", "quit"]
    output = run("play", host.url, "--api-key", "k", cwd=folder, stdin="\n".join(answers) + "\n")
    assert "\\x1b]0;pwned\\x07" in output and "\x1b" not in output
