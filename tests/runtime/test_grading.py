"""What a grader needs: a place of its own, programs of its own, and files that are what they seem."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_runtime import grading, shell


@pytest.fixture(autouse=True)
def same_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ORS_RUNTIME_UNSAFE_SAME_USER", "1")
    yield


def test_the_private_directory_is_one_and_closed_to_others() -> None:
    path = grading.private_directory()
    assert grading.private_directory() == path
    assert path.stat().st_mode & 0o077 == 0
    assert path.stat().st_uid == os.getuid()


async def test_a_check_runs_there_with_nothing_of_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hidden")
    monkeypatch.setenv("PATH", "/nonexistent")
    result = await grading.run_check(["env"])
    assert result.ok and "hidden" not in result.output and "/nonexistent" not in result.output
    assert (await grading.run_check(["pwd"])).output.strip() == str(grading.private_directory())


async def test_a_check_reads_what_it_is_given_and_is_bounded() -> None:
    assert (await grading.run_check(["cat"], stdin=b"given")).output == "given"
    result = await grading.run_check(["yes"], timeout_s=0.2, max_output_bytes=1000)
    assert result.timed_out and result.is_cut


def test_a_check_that_fails_or_is_missing_is_a_result() -> None:
    assert grading.run_check_sync(["false"]).exit_code == 1
    missing = grading.run_check_sync(["no-such-program"])
    assert missing.exit_code == 126 and "No such file or directory: 'no-such-program'" in missing.output
    with pytest.raises(ValueError, match="program"):
        grading.run_check_sync([])


class TestNoLinks:
    async def test_a_file_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "file").write_bytes(b"\0content\xff" * 1000)
        content = await shell.read_file(f"{tmp_path}/./a//file", follow_links=False)
        assert content == b"\0content\xff" * 1000

    async def test_a_file_that_is_missing_or_too_long(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            await shell.read_file(f"{tmp_path}/none", follow_links=False)
        (tmp_path / "long").write_bytes(b"x" * 1001)
        with pytest.raises(OSError) as caught:
            await shell.read_file(f"{tmp_path}/long", 1000, follow_links=False)
        assert caught.value.errno == errno.EFBIG

    def test_whatever_is_no_regular_file(self, tmp_path: Path) -> None:
        real = tmp_path / "real"
        real.mkdir()
        (real / "file").write_text("x")
        (tmp_path / "link").symlink_to(real / "file")
        (tmp_path / "directory-link").symlink_to(real)
        os.mkfifo(tmp_path / "fifo")
        for path in ("link", "directory-link/file", "fifo", "real"):
            with pytest.raises(OSError) as caught:
                shell.read_file_sync(f"{tmp_path}/{path}", follow_links=False)
            assert caught.value.errno == errno.ELOOP, path

    async def test_a_device(self) -> None:
        with pytest.raises(OSError) as caught:
            await shell.read_file("/dev/zero", follow_links=False)
        assert caught.value.errno == errno.ELOOP
