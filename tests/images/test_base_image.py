"""Where the base image comes from, and when it is made again; on an engine that only keeps account of what it is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, cast

import pytest

from host import base_image, docker_client, wheels
from host.base_image import LABEL_INPUTS, ensure_base, inputs_digest
from host.image_builder import BuildError

from .conftest import RecordedSteps

WANTED = "python:3.12-slim-bookworm"
PROBED = [[3, 12], "x86_64", ["glibc", "2.36"]]


class FakeEngine:
    """Images by name with their labels; a registry that has ``WANTED`` or can't be reached."""

    def __init__(self) -> None:
        self.images: dict[str, dict[str, str]] = {}
        self.registry_reached = False
        self.probe_output = json.dumps(PROBED)
        self.build_arguments: list[dict[str, str]] = []
        self.removed: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def inspect_image(self, name: str) -> dict[str, Any]:
        if name not in self.images:
            raise docker_client.ImageNotFound(name)
        return {"Id": f"id of {name}", "Config": {"Labels": self.images[name]}}

    def inspect_distribution(self, name: str) -> dict[str, Any]:
        if not self.registry_reached:
            raise docker_client.APIError("500", explanation=f"no such host, for {name}")
        return {}

    def pull(self, name: str, **_: object) -> Iterator[dict[str, str]]:
        self.images[name] = {}
        return iter([{"status": "Pull complete", "id": "layer"}])

    def import_image_from_file(self, file: str, *, repository: str, tag: str, changes: list[str]) -> None:
        assert Path(file).read_text() == "a file system\n"
        label, _, value = changes[-1].removeprefix("LABEL ").partition("=")
        self.images[f"{repository}:{tag}"] = {label: value}

    def build(self, *, tag: str, buildargs: dict[str, str], labels: dict[str, str], **_: object) -> Iterator[Any]:
        self.build_arguments.append(buildargs)
        self.images[tag] = labels
        return iter(())

    def tag(self, name: str, repository: str, tag: str, **_: object) -> None:
        self.images[f"{repository}:{tag}"] = self.images[name]

    def remove_image(self, image_id: str) -> None:
        self.removed.append(image_id)

    def prune_images(self, **_: object) -> None:
        pass

    def create_container(self, *_: object, **__: object) -> dict[str, str]:
        return {"Id": "probe"}

    def start(self, container: str) -> None:
        pass

    def wait(self, container: str, **_: object) -> None:
        pass

    def logs(self, container: str) -> bytes:
        return self.probe_output.encode()

    def remove_container(self, container: str, **_: object) -> None:
        self.removed.append(container)


@pytest.fixture
def images_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "Dockerfile").write_text(f"ARG BASE={WANTED}\nFROM ${{BASE}}\n")
    (tmp_path / "rootfs.sh").write_text('echo "I: unpacking"; echo "a file system" >"$1"\n')
    monkeypatch.setattr(base_image, "images_dir", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def engine(images_dir: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine()
    monkeypatch.setattr(docker_client, "connect", lambda **_: engine)
    monkeypatch.setattr(wheels, "collect", lambda *_: None)
    return engine


def ensure(engine: FakeEngine, steps: RecordedSteps) -> str:
    return ensure_base(cast(docker_client.APIClient, engine), steps)


def test_an_image_that_is_here_is_the_start_and_the_registry_is_not_asked(
    engine: FakeEngine, steps: RecordedSteps
) -> None:
    engine.images[WANTED] = {}
    name = ensure(engine, steps)
    assert engine.build_arguments[0]["BASE"] == WANTED
    assert engine.images["ors-host-base:latest"] == engine.images[name] == {LABEL_INPUTS: inputs_digest()}
    assert "which is here" in steps.text and "registry" not in steps.text


def test_an_image_that_can_be_pulled_is_pulled(engine: FakeEngine, steps: RecordedSteps) -> None:
    engine.registry_reached = True
    ensure(engine, steps)
    assert engine.build_arguments[0]["BASE"] == WANTED
    assert WANTED in engine.images


def test_where_nothing_can_be_pulled_a_root_filesystem_is_made_and_that_is_said(
    engine: FakeEngine, steps: RecordedSteps
) -> None:
    ensure(engine, steps)
    assert engine.build_arguments[0]["BASE"].startswith("ors-host-rootfs:")
    assert "can't be pulled (no such host, for python:3.12-slim-bookworm)" in steps.text
    assert "unpacking" in steps.text


def test_a_root_filesystem_is_made_once_for_one_script(
    engine: FakeEngine, steps: RecordedSteps, images_dir: Path
) -> None:
    name = ensure(engine, steps)
    del engine.images[name]
    ensure(engine, steps)
    assert steps.text.count("unpacking") == 1
    del engine.images[name]
    (images_dir / "rootfs.sh").write_text('echo "I: unpacking more"; echo "a file system" >"$1"\n')
    ensure(engine, steps)
    assert steps.text.count("unpacking more") == 1


def test_a_script_that_fails_has_the_last_word(engine: FakeEngine, steps: RecordedSteps, images_dir: Path) -> None:
    (images_dir / "rootfs.sh").write_text('echo "E: no such release" >&2; exit 3\n')
    with pytest.raises(BuildError, match="no root filesystem could be made:\n  E: no such release"):
        ensure(engine, steps)
    assert engine.build_arguments == []


def test_a_base_of_the_same_inputs_is_left_alone(engine: FakeEngine, steps: RecordedSteps) -> None:
    ensure(engine, steps)
    shown = steps.text
    ensure(engine, steps)
    assert len(engine.build_arguments) == 1
    assert steps.text == shown


def test_a_changed_dockerfile_makes_a_new_base_and_removes_the_old(
    engine: FakeEngine, steps: RecordedSteps, images_dir: Path
) -> None:
    name = ensure(engine, steps)
    (images_dir / "Dockerfile").write_text(f"ARG BASE={WANTED}\nFROM ${{BASE}}\nRUN true\n")
    ensure(engine, steps)
    assert len(engine.build_arguments) == 2
    assert f"id of {name}" in engine.removed


def test_a_changed_runtime_changes_the_digest(images_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = inputs_digest()
    sources = wheels.runtime_sources()
    assert inputs_digest() == before
    monkeypatch.setattr(wheels, "runtime_sources", lambda: sources | {"sandbox_runtime/frames.py": b"changed"})
    assert inputs_digest() != before


def test_the_build_asks_the_index_itself_only_if_wheels_can_not_be_collected(
    engine: FakeEngine, steps: RecordedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = ensure(engine, steps)
    assert engine.build_arguments[0]["INDEX_OPTION"] == "--no-index"

    def collect(*_: object) -> None:
        raise wheels.WheelsUnavailable("there is no pip beside ors-host")

    del engine.images[name]
    monkeypatch.setattr(wheels, "collect", collect)
    ensure(engine, steps)
    assert engine.build_arguments[1]["INDEX_OPTION"] == ""
    assert "the build itself will ask the package index, as here there is no pip" in steps.text


def test_a_start_without_python_is_named_and_its_container_removed(engine: FakeEngine, steps: RecordedSteps) -> None:
    engine.probe_output = "exec: python: not found"
    with pytest.raises(BuildError, match="ors-host-rootfs:.* has no python that runs: exec: python: not found"):
        ensure(engine, steps)
    assert engine.removed == ["probe"]


def test_an_installed_host_and_a_checkout_both_find_the_dockerfile() -> None:
    assert (base_image.images_dir() / "Dockerfile").read_text().count("FROM ") == 2
    assert (base_image.images_dir() / "rootfs.sh").is_file()
