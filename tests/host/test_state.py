"""The state directory: one host each, an identity that stays, and paths that fit a socket."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from host.errors import StartupError
from host.state import MAX_SOCKET_PATH_BYTES, SOCKET_NAME, Assignment, StateDir


def test_identity_is_kept(state_dir: Path) -> None:
    with closing(StateDir.open(state_dir)) as first:
        server_id, token = first.server_id, first.token("a")
    with closing(StateDir.open(state_dir)) as second:
        assert (second.server_id, second.token("a")) == (server_id, token)
    assert len(server_id) >= 16


def test_tokens_differ_by_sandbox_and_by_host(state_dir: Path) -> None:
    with closing(StateDir.open(state_dir / "a")) as a, closing(StateDir.open(state_dir / "b")) as b:
        assert a.server_id != b.server_id
        assert len({a.token("x"), a.token("y"), b.token("x")}) == 3
        assert a.new_sandbox_id() != a.new_sandbox_id()


def test_nobody_else_may_read_it(state_dir: Path) -> None:
    path = state_dir / "new" / "deep"
    with closing(StateDir.open(path)):
        for made, mode in ((path, 0o700), (path / "s", 0o700), (path / "key", 0o600), (path / "server-id", 0o600)):
            assert stat.S_IMODE(made.stat().st_mode) == mode, made


def test_one_host_at_a_time(state_dir: Path) -> None:
    with closing(StateDir.open(state_dir)), pytest.raises(StartupError) as caught:
        StateDir.open(state_dir)
    assert f"another ors-host (pid {os.getpid()}) runs with the state directory {state_dir}" in str(caught.value)
    assert "--state-dir" in str(caught.value)
    StateDir.open(state_dir).close()


def test_the_lock_of_a_killed_host_is_free(state_dir: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from host.state import StateDir\n"
        "StateDir.open(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(state_dir)], check=False).returncode == -9
    StateDir.open(state_dir).close()


def test_a_path_that_just_fits_and_one_that_does_not(state_dir: Path) -> None:
    room = MAX_SOCKET_PATH_BYTES - len(os.fsencode(state_dir / "x" / "s" / ("0" * 12) / SOCKET_NAME)) + 1
    with closing(StateDir.open(state_dir / ("d" * room))) as state:
        path = state.sandbox_dir(state.new_sandbox_id()) / SOCKET_NAME
        assert len(os.fsencode(path)) == MAX_SOCKET_PATH_BYTES
    too_long = state_dir / ("d" * (room + 1))
    with pytest.raises(StartupError, match="too long for a unix socket path: it may have 82 bytes"):
        StateDir.open(too_long)
    assert not too_long.exists()


def test_bytes_count_not_characters(state_dir: Path) -> None:
    with pytest.raises(StartupError, match="too long"):
        StateDir.open(state_dir / ("é" * 45))


def test_where_it_cannot_be(state_dir: Path) -> None:
    (state_dir / "file").touch()
    for path in (state_dir / "file", state_dir / "file" / "below"):
        with pytest.raises(StartupError, match=r"can't be used: (File exists|Not a directory)"):
            StateDir.open(path)


def test_a_crash_while_the_identity_is_written(state_dir: Path) -> None:
    (state_dir / "key.new").write_bytes(b"half")
    (state_dir / "server-id").write_bytes(b"")
    with closing(StateDir.open(state_dir)) as state:
        assert state.server_id and len((state_dir / "key").read_bytes()) == 32
        server_id = state.server_id
    with closing(StateDir.open(state_dir)) as state:
        assert state.server_id == server_id


def test_sandbox_directories(state_dir: Path) -> None:
    with closing(StateDir.open(state_dir)) as state:
        path = state.sandbox_dir("abc")
        (path / "x").mkdir(parents=True)
        assert state.sandbox_ids() == {"abc"}
        state.forget("abc")
        state.forget("abc")
        assert state.sandbox_ids() == set()


def test_assignments(state_dir: Path) -> None:
    given = Assignment("session one", "BashEnv", 1234.5)
    with closing(StateDir.open(state_dir)) as state:
        assert state.assignment("abc") is None
        state.assign("abc", given)
        with pytest.raises(FileExistsError):  # a sandbox is for one session, ever
            state.assign("abc", Assignment("another", "BashEnv", 1.0))
        os.utime(state_dir / "sessions" / "abc", (5, 5))
        assert state.last_touched("abc") == 5
        state.touch("abc")
        assert abs(state.last_touched("abc") - time.time()) < 60
        assert (state_dir / "sessions" / "abc").stat().st_mode & 0o777 == 0o600
    with closing(StateDir.open(state_dir)) as state:
        assert state.assignment("abc") == given
        state.forget("abc")
        state.touch("abc")
        assert (state.assignment("abc"), state.sandbox_ids()) == (None, set())


@pytest.mark.parametrize("content", [b"", b'{"session": "s1"', b'{"session": "s1"}', b"[]", b"\xff"])
def test_an_assignment_that_was_never_finished(state_dir: Path, content: bytes) -> None:
    with closing(StateDir.open(state_dir)) as state:
        (state_dir / "sessions" / "abc").write_bytes(content)
        assert state.assignment("abc") is None
        assert state.assignment("") is None


def test_what_cannot_be_written_any_more_ends_nothing(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has become read-only: sessions go on and end, and what is left is tried again."""

    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with closing(StateDir.open(state_dir)) as state:
        state.assign("abc", Assignment("s1", "BashEnv", 0.0))
        monkeypatch.setattr(os, "utime", fail)
        monkeypatch.setattr(Path, "unlink", fail)
        state.touch("abc")
        state.forget("abc")
        assert state.sandbox_ids() == {"abc"}
