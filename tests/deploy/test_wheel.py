"""What is published: a wheel that works in an empty virtual environment, and a source archive that makes the same wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TAG = "ors-host-test-demo:latest"
INIT_TO_TEST_S = 120
"""From nothing to an environment that was seen to work: what is promised."""


def run(command: Sequence[str | Path], cwd: Path, **environ: str) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, and the wheel that is made of it."""
    folder = tmp_path_factory.mktemp("dist")
    backend = "from hatchling.build import build_sdist; print(build_sdist(__import__('sys').argv[1]))"
    tools = folder / "tools"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run([*pip, "install", f"--target={tools}", "hatchling"], folder)
    run([sys.executable, "-c", backend, folder], ROOT, PYTHONPATH=str(tools))
    (archive,) = folder.glob("*.tar.gz")
    run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", archive],
        folder,
        PYTHONPATH=str(tools),
    )
    return folder


def test_what_is_in_it(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"host/_images/Dockerfile", "host/_images/rootfs.sh", "host/profiles/strict.json"} <= names
    assert {name.split("/")[0] for name in names} == {"host", "sandbox_runtime", "ors_host-0.1.0.dist-info"}
    packaged = ("templates", "ui", "profiles")
    there = {
        path.relative_to(ROOT).as_posix()
        for folder in packaged
        for path in (ROOT / "host" / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there <= names and any(name.startswith("host/ui/") for name in there)
    tests = {name for name in names if "test" in name and not name.startswith(("host/templates/", "host/commands/"))}
    assert tests == set()


def test_the_archive_has_what_the_wheel_is_made_of_and_no_more_than_the_repository(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"images/Dockerfile", "pyproject.toml", "README.md", "host/cli.py"} <= names
    assert not [name for name in names if name.startswith((".git/", ".venv/", "bench/.cache/", "docs/_build/"))]


@pytest.mark.docker
@pytest.mark.timeout(400)
def test_from_nothing_to_an_environment_that_works(dist: Path, tmp_path: Path) -> None:
    """``pip install`` into an empty environment, then what the tutorial begins with, in an empty directory."""
    venv.create(tmp_path / "venv", with_pip=True)
    (wheel,) = dist.glob("*.whl")
    python, ors_host = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "ors-host"
    run([python, "-m", "pip", "install", "--quiet", wheel], tmp_path)
    assert run([ors_host, "--version"], tmp_path).startswith("ors-host, version ")
    work = tmp_path / "empty"
    work.mkdir()
    started = time.monotonic()
    run([ors_host, "init", "demo"], work)
    run([ors_host, "build", "demo", "-t", TAG], work)
    assert " 0 failed" in run([ors_host, "test", TAG], work)
    assert time.monotonic() - started < INIT_TO_TEST_S
