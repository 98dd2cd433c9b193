"""What containers wrote, kept after their end: how much, how long, and what of it is believed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from host.engine import EngineError
from host.errors import StartupError
from host.kept_logs import KeptLogs, find
from host.settings import Settings
from host.state import Assignment
from tests.host.fakes import FakeEngine
from tests.host.served import Serve, until


class Engine:
    """An engine that writes a container's output to ``file``, and has ``answer`` for those who ask."""

    def __init__(self, file: Path | None = None, answer: bytes | EngineError = b"") -> None:
        self.file = file
        self.answer = answer

    def log_files(self, name: str) -> list[Path]:
        return [self.file.with_name(self.file.name + ".1"), self.file] if self.file else []

    async def log(self, name: str, *, lines: int) -> bytes:
        if isinstance(self.answer, EngineError):
            raise self.answer
        return self.answer


def engines_line(text: str, at: str = "2030-01-01T00:00:00Z") -> str:
    return json.dumps({"log": text, "stream": "stdout", "time": at}) + "\n"


def kept_logs(engine: Engine, path: Path, **settings: object) -> KeptLogs:
    return KeptLogs(engine, path, Settings(log_keep_bytes=4096, **settings))  # type: ignore[arg-type]


async def keep(kept: KeptLogs, sid: str, sandbox: str = "ab12") -> None:
    async with kept.keeping("ors-1", sandbox, Assignment(sid, "env", 0)):
        pass


def texts(path: Path, sid: str) -> list[str]:
    found = find(path, sid)
    assert found is not None
    return [text for _, text in found.lines()]


async def test_the_last_words_are_in_it_although_the_file_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "json.log"
    file.write_text(engines_line("first\n"))
    kept = kept_logs(Engine(file), tmp_path)
    async with kept.keeping("ors-1", "ab12", Assignment("s1", "env", 0)):
        with file.open("a") as output:
            output.write(engines_line("half of a ") + engines_line("line\n") + engines_line("no end"))
        file.unlink()
    assert texts(tmp_path, "s1") == ["first", "half of a line", "no end"]
    (written,) = (tmp_path / "logs").iterdir()
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert stat.S_IMODE(written.parent.stat().st_mode) == 0o700


async def test_it_is_bounded_whatever_was_written(tmp_path: Path) -> None:
    file = tmp_path / "json.log"
    (tmp_path / "json.log.1").write_text("".join(engines_line(f"old {n}\n") for n in range(2000)))
    for hostile in ("\x00" * 500_000 + "\n", "x" * 500_000, "\x1b[2J\n" * 9000):
        lines = [engines_line(part) for part in (hostile[i : i + 16384] for i in range(0, len(hostile), 16384))]
        file.write_text(
            "not json\n" + '{"log": 5}\n[[[\n' + "".join(lines) + engines_line("the last\n") + '{"log": "cut'
        )
        kept = kept_logs(Engine(file), tmp_path)
        await keep(kept, "s1")
        (written,) = (tmp_path / "logs").iterdir()
        assert 0 < written.stat().st_size < 4096 + 200
        assert texts(tmp_path, "s1")[-1].endswith("the last")
        written.unlink()


async def test_the_older_part_is_read_where_the_newer_is_short(tmp_path: Path) -> None:
    file = tmp_path / "json.log"
    (tmp_path / "json.log.1").write_text("".join(engines_line(f"{n}\n") for n in range(10)))
    file.write_text(engines_line("new\n"))
    await keep(kept_logs(Engine(file), tmp_path), "s1")
    assert texts(tmp_path, "s1") == [*map(str, range(10)), "new"]


async def test_an_engine_elsewhere_is_asked(tmp_path: Path) -> None:
    await keep(kept_logs(Engine(answer=b"2030-01-01T00:00:00Z one\n2030-01-01T00:00:00Z \xfftwo 2\n"), tmp_path), "s1")
    assert texts(tmp_path, "s1") == ["one", "\ufffdtwo 2"]


@pytest.mark.parametrize("engine", [Engine(), Engine(Path("/nonexistent/x")), Engine(answer=EngineError("it is gone"))])
async def test_nothing_written_nothing_kept(tmp_path: Path, engine: Engine) -> None:
    await keep(kept_logs(engine, tmp_path), "s1")
    assert not (tmp_path / "logs").exists() and find(tmp_path, "s1") is None


async def test_off_and_what_was_no_sessions(tmp_path: Path) -> None:
    engine = Engine(answer=b"2030-01-01T00:00:00Z one\n")
    await keep(kept_logs(engine, tmp_path, log_keep="off"), "s1")
    async with kept_logs(engine, tmp_path).keeping("ors-1", "ab12", None):
        pass
    assert not (tmp_path / "logs").exists()


async def test_a_full_disk_hinders_nobody(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    await keep(kept_logs(Engine(answer=b"2030-01-01T00:00:00Z one\n"), tmp_path), "s1")
    assert find(tmp_path, "s1") is None


async def test_the_oldest_goes_first_also_after_a_restart(tmp_path: Path) -> None:
    line = b"2030-01-01T00:00:00Z " + b"x" * 900 + b"\n"
    for number in range(6):
        await keep(kept_logs(Engine(answer=line), tmp_path, log_keep_total=3500), f"s{number}", f"ab{number}")
    assert [find(tmp_path, f"s{number}") is not None for number in range(6)] == [False] * 3 + [True] * 3
    for path in (tmp_path / "logs").iterdir():
        if path.name.endswith("ab4"):
            os.rename(path, path.with_name("00000000001000-ab4"))  # it ended long ago
    kept_logs(Engine(), tmp_path)
    assert find(tmp_path, "s4") is None and find(tmp_path, "s5") is not None


async def test_it_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "00000000001000-ff").write_bytes(b"\xff not one of ours\n")
    (tmp_path / "logs" / "README").write_text("nor this")
    kept = kept_logs(Engine(answer=b"2030-01-01T00:00:00Z one\n"), tmp_path)
    for sid, sandbox in (("abc-1", "11"), ("abc-2", "22"), ("abc", "33")):
        await keep(kept, sid, sandbox)
    assert (found := find(tmp_path, "abc-1")) is not None and found.session == "abc-1"
    assert (found := find(tmp_path, "abc")) is not None and found.session == "abc"
    assert (found := find(tmp_path, "22")) is not None and found.session == "abc-2"
    with pytest.raises(StartupError, match="begins the ids of 3 sessions"):
        find(tmp_path, "ab")
    assert find(tmp_path, "x") is None and find(tmp_path / "nowhere", "x") is None


async def test_a_session_that_died(serve: Serve, engine: FakeEngine, state_dir: Path) -> None:
    server = await serve()
    container = await server.create("s1")
    await container.die(1, log="what it wrote")
    await until(lambda: len(server.sessions) == 0)
    assert texts(state_dir, "s1") == ["what it wrote"]
