"""What `ors-host build` makes of a folder, before any engine is asked."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from host.base_image import tag
from host.build import BuildError, Install, build_environment, dockerfile_of, generated_dockerfile
from host.build_context import IGNORED_BY_DEFAULT, context_files, ignore_patterns, open_context

ENGINE_NOT_THERE = "tcp://127.0.0.1:1"  # docker-py leaves the socket open after a failed dial of a unix one


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_a_folder_with_env_py_needs_one_copy_and_one_name() -> None:
    compiled = "RUN python -m compileall -q /opt/env || true"
    assert generated_dockerfile("base:1") == f'FROM base:1\nCOPY . /opt/env/\n{compiled}\nCMD ["env"]\n'


def test_requirements_are_installed_from_wheels_without_an_index_and_before_the_code_is_copied() -> None:
    lines = generated_dockerfile("base:1", source="env/", install=Install.WHEELS).splitlines()
    install = next(index for index, line in enumerate(lines) if "pip install" in line)
    assert "--no-index" in lines[install]
    assert lines.index("COPY wheels/ /opt/wheels/") < install < lines.index("COPY env/ /opt/env/")


def test_without_wheels_pip_runs_beside_the_requirements_file_and_may_ask_the_index() -> None:
    lines = generated_dockerfile("base:1", install=Install.FROM_INDEX).splitlines()
    assert lines.index("COPY . /opt/env/") < lines.index("RUN cd /opt/env && pip install -r requirements.txt")


@pytest.mark.parametrize("requirements, installs", [("six\n", True), ("# none\n\n", False), (None, False)])
def test_the_shown_dockerfile_can_be_saved_in_the_folder(
    tmp_path: Path, requirements: str | None, installs: bool
) -> None:
    write(tmp_path, **{"env.py": ""})
    if requirements is not None:
        (tmp_path / "requirements.txt").write_text(requirements)
    shown = dockerfile_of(tmp_path)
    assert "COPY . /opt/env/" in shown
    assert ("pip install -r requirements.txt" in shown) is installs


def test_a_dockerfile_in_the_folder_is_shown_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, **{"env.py": "", "Dockerfile": "FROM other:1\n"})
    assert dockerfile_of(tmp_path) == "FROM other:1\n"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="is not there"):
        dockerfile_of(tmp_path / "missing")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    write(tmp_path, **{"env.py": ""})
    with pytest.raises(BuildError, match="is not a directory"):
        dockerfile_of(tmp_path / "env.py")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"is empty: an environment is an env\.py"):
        dockerfile_of(tmp_path)


@pytest.mark.parametrize(
    ("files", "module"),
    [
        (["server.py"], "server"),
        (["main.py"], "main"),
        (["main.py", "server.py"], "server"),
        (["env.py", "server.py"], "env"),
    ],
)
def test_which_file_has_the_environments(tmp_path: Path, files: list[str], module: str) -> None:
    write(tmp_path, **dict.fromkeys(files, ""))
    assert dockerfile_of(tmp_path).endswith(f'CMD ["{module}"]\n')


def test_a_dockerfile_for_another_way_of_serving_can_be_ignored(tmp_path: Path) -> None:
    write(tmp_path, **{"server.py": "", "Dockerfile": "FROM python:3.11-slim\n"})
    assert dockerfile_of(tmp_path, ignore_dockerfile=True) == generated_dockerfile(tag(), module="server")


def test_a_folder_with_neither_dockerfile_nor_env_py(tmp_path: Path) -> None:
    write(tmp_path, **{"environment.py": ""})
    with pytest.raises(BuildError, match=r"has neither a Dockerfile nor an env\.py"):
        dockerfile_of(tmp_path)


@pytest.mark.parametrize("name", ["My-Env", "my env", "", "my-env:", "-x", "a//b", "env:" + "x" * 129, "ünder"])
def test_a_bad_image_name_is_refused_before_anything_else(tmp_path: Path, name: str) -> None:
    with pytest.raises(BuildError, match="is no image name"):
        build_environment(tmp_path, name)


@pytest.mark.parametrize("name", ["my-env", "my-env:latest", "lab/my_env:1.0", "Registry.local:5000/lab/env__x:V2"])
def test_a_good_image_name_is_not_what_fails(tmp_path: Path, name: str) -> None:
    with pytest.raises(BuildError, match="is empty"):
        build_environment(tmp_path, name)


def test_an_environment_can_not_replace_the_base_image(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="the name of the base image"):
        build_environment(tmp_path, "ors-host-base:latest")


def test_without_an_engine_one_sentence_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, **{"env.py": ""})
    monkeypatch.setenv("DOCKER_HOST", ENGINE_NOT_THERE)
    with pytest.raises(BuildError, match=f"no Docker engine answers at {ENGINE_NOT_THERE}") as caught:
        build_environment(tmp_path, "my-env")
    assert "\n" not in str(caught.value)


def test_dockerignore_leaves_out_and_takes_back(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path, **{"env.py": "", "notes.md": "", ".dockerignore": "# mine\n*.md\n\ndata/*\n!data/keep.json\n"})
    write(tmp_path / "data", **{"keep.json": "", "big.bin": ""})
    patterns = ignore_patterns(tmp_path)
    assert patterns == ["*.md", "data/*", "!data/keep.json"]
    files = context_files(tmp_path, patterns)
    assert {"env.py", "data/keep.json"} <= set(files)
    assert not {"notes.md", "data/big.bin"} & set(files)


def test_a_dockerfile_stays_though_everything_is_ignored(tmp_path: Path) -> None:
    write(tmp_path, **{"Dockerfile": "FROM x", "secret": ""})
    assert context_files(tmp_path, ["*"]) == ["Dockerfile"]


def test_what_no_image_needs_is_left_out_where_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "lib" / "__pycache__").mkdir(parents=True)
    write(tmp_path, **{"env.py": ""})
    write(tmp_path / "lib", **{"part.py": ""})
    write(tmp_path / "lib" / "__pycache__", **{"part.cpython-311.pyc": ""})
    assert ignore_patterns(tmp_path) is None
    assert context_files(tmp_path, list(IGNORED_BY_DEFAULT)) == ["env.py", "lib", "lib/part.py"]


def test_a_context_belongs_to_root_keeps_links_and_leaves_out_what_is_no_file(tmp_path: Path) -> None:
    write(tmp_path, **{"env.py": "x = 1\n"})
    (tmp_path / "link").symlink_to("env.py")
    os.mkfifo(tmp_path / "pipe")
    with (
        open_context({"env": (tmp_path, [])}, {"Dockerfile": "FROM x\n"}) as context,
        tarfile.open(fileobj=context) as tar,
    ):
        entries = {entry.name: entry for entry in tar.getmembers()}
        dockerfile = tar.extractfile("Dockerfile")
        assert dockerfile is not None and dockerfile.read() == b"FROM x\n"
    assert set(entries) == {"env/env.py", "env/link", "Dockerfile"}
    assert entries["env/link"].linkname == "env.py"
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}
