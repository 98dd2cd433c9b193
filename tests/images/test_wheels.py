"""Wheels collected outside an image: which ones are asked for, and the runtime's own."""

from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from host import wheels
from host.wheels import Target, WheelsUnavailable


def test_pip_is_asked_for_the_images_python_and_not_for_its_own() -> None:
    options = Target((3, 12), "x86_64", 36).pip_options()
    assert {"--python-version=3.12", "--abi=cp312", "--only-binary=:all:"} <= set(options)
    platforms = [option.removeprefix("--platform=") for option in options if option.startswith("--platform=")]
    assert platforms[0] == "manylinux_2_36_x86_64"
    assert {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "linux_x86_64"} <= set(platforms)
    assert "manylinux_2_37_x86_64" not in platforms


def test_no_glibc_wheel_is_asked_for_where_there_is_no_glibc() -> None:
    assert not any("manylinux" in option for option in Target((3, 12), "aarch64", None).pip_options())


def test_pips_own_words_say_why_wheels_are_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(
            command, 1, "", "WARNING: noise\nERROR: No matching distribution found for nope\n"
        )

    monkeypatch.setattr(subprocess, "run", failing)
    with pytest.raises(WheelsUnavailable, match="No matching distribution found for nope"):
        wheels.collect(Target((3, 12), "x86_64", 36), tmp_path / "requirements.txt", tmp_path)


def test_without_pip_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(WheelsUnavailable, match="there is no pip"):
        wheels.collect(Target((3, 12), "x86_64", 36), tmp_path / "requirements.txt", tmp_path)


def test_the_runtimes_wheel_holds_the_package_and_checks_out(tmp_path: Path) -> None:
    wheel = wheels.write_runtime_wheel("1.2", tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        assert "sandbox_runtime/messages.py" in archive.namelist()
        assert not any(name.startswith("host/") or "__pycache__" in name for name in archive.namelist())
        for name, digest, size in csv.reader(
            archive.read("ors_host_runtime-1.2.dist-info/RECORD").decode().splitlines()
        ):
            if digest:
                content = archive.read(name)
                expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={expected}", len(content))


def test_the_runtimes_wheel_is_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first = wheels.write_runtime_wheel("1.2", tmp_path).read_bytes()
    assert wheels.write_runtime_wheel("1.2", tmp_path / "again").read_bytes() == first


def test_pip_installs_the_runtimes_wheel(tmp_path: Path) -> None:
    wheel = wheels.write_runtime_wheel("1.2", tmp_path)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        f"--target={tmp_path / 'to'}",
    ]
    subprocess.run([*command, str(wheel)], check=True, timeout=60)
    assert (tmp_path / "to" / "sandbox_runtime" / "frames.py").is_file()


def test_the_runtime_requires_pydantic_and_nothing_that_only_the_host_needs() -> None:
    (requirement,) = wheels.runtime_requirements()
    assert requirement.startswith("pydantic") and not requirement.startswith("pydantic-settings")
