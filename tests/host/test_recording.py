"""What is kept of episodes: bounded, without secrets, private, and no session's concern."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from host.calls import Outcome
from host.errors import Failure, Reason, StartupError
from host.masking import STARS, Mask
from host.pieces import LeftOut, Pieces
from host.recording import Recorder, directory_of
from host.settings import Settings
from host.timeline import MAX_STEPS, Timeline, label
from host.timelines import Timelines
from host.transcripts import Transcripts, file_name
from sandbox_runtime.messages import Fault, Method
from tests.host.fakes import raising
from tests.host.served import Serve, Server, secrets_header

DELETED = Failure(Reason.DELETED, "the session was deleted")
RESULT = '{"ok":true,"output":{"blocks":[{"type":"text","text":"%s"}],"metadata":null,"reward":%s,"finished":%s}}'
HOSTILE_IDS = ["../../etc/passwd", "..", "/", "a/b", "x" * 128, "%2e%2e%2f", "-rf", "CON", "a\\b", "~root", "'\"$(id)"]


def played(timeline: Timeline, *, output: str = RESULT % ("hi", "0.5", "true"), tool_input: Any = None) -> Timeline:
    """An episode of one call, from its beginning to its end."""
    timeline.created("ors-1", "warm", 0.1, {"id": 1})
    timeline.set_up()
    timeline.prompted(b'[{"type":"text","text":"do it"}]', 0.01)
    timeline.call_began("call_1", Method.CALL, {"name": "bash", "input": tool_input or {"command": "ls"}})
    timeline.call_ended("call_1", Outcome("end", output))
    timeline.ended(DELETED, left_to_next=False)
    return timeline


def record(settings: Settings, sid: str = "s1", **kwargs: Any) -> list[dict[str, Any]]:
    """Play an episode that is recorded in a directory; return the lines of its file."""
    recorder = Recorder(settings)
    secrets = kwargs.pop("secrets", ())
    with recorder.running():
        timelines = Timelines(recorder)
        timelines.finish(played(timelines.begin(sid, "Env", "env:1", secrets=secrets), **kwargs))
    (path,) = directory_of(settings).iterdir()
    return lines_of(path)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path, record="directory")


class TestTimeline:
    def test_an_episode(self) -> None:
        timeline = played(Timeline("0", "s1", "Env", "env:1", task="train 3"))
        assert [step.kind for step in timeline.steps] == ["created", "set_up", "prompt", "call", "ended"]
        assert (timeline.calls, timeline.errors, timeline.reward, timeline.finished) == (1, 0, 0.5, True)
        assert timeline.failure == ("deleted", "the session was deleted")

    @pytest.mark.parametrize(
        ("text", "reward"),
        [
            (RESULT % ("", "1.0", "true"), 1.0),
            (RESULT % ("", "-2.5e-7", "false"), -2.5e-7),
            (RESULT % ("", "null", "false"), None),
            (RESULT % (r"\"reward\":1.0,\"finished\":true}}", "null", "false"), None),
            ('{"ok":false,"error":"\\"reward\\":1.0,\\"finished\\":true}}","reason":null}', None),
            ('"reward":1.0,"finished":true}} and more', None),
        ],
    )
    def test_only_the_results_own_field_is_its_reward(self, text: str, reward: float | None) -> None:
        timeline = played(Timeline("0", "s1", "Env", "env:1"), output=text)
        assert timeline.reward == reward

    def test_steps_are_bounded(self) -> None:
        timeline = Timeline("0", "s1", "Env", "env:1")
        for number in range(MAX_STEPS + 10):
            timeline.call_began(f"{number}", Method.CALL, {"name": "bash" * 100, "input": {}})
            timeline.call_ended(f"{number}", Outcome("error", "call_timeout: it took too long"))
        assert (len(timeline.steps), timeline.left_out, timeline.errors) == (MAX_STEPS, 10, MAX_STEPS + 10)
        assert timeline.steps[-1].words == "call_timeout"
        assert len(timeline.steps[-1].name) == 100

    def test_an_errors_text_is_no_part_of_it(self) -> None:
        timeline = Timeline("0", "s1", "Env", "env:1")
        timeline.call_began("1", Method.CALL, {"name": "bash", "input": {}})
        timeline.call_ended("1", Outcome("error", "ValueError: what the agent wrote"))
        assert (timeline.steps[-1].state, timeline.steps[-1].words) == ("error", "")

    def test_secrets_are_in_no_name(self) -> None:
        timeline = Timeline("0", "s1", "Env", "env:1", task="the hunter2 task", secrets=["hunter2"])
        timeline.call_began("1", Method.CALL, {"name": "hunter2", "input": {}})
        timeline.ended(Failure(Reason.SETUP_FAILED, "no such key: hunter2"), left_to_next=False)
        assert "hunter2" not in repr((timeline.task, timeline.steps, timeline.failure))

    def test_halves_of_characters_can_be_shown(self) -> None:
        timeline = Timeline("0", "s1", "Env", "env:1", task="\ud800")
        timeline.call_began("1", Method.CALL, {"name": "\udfff", "input": {}})
        assert to_json([timeline.task, timeline.steps[-1].name]) == b'["?","?"]'

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"id": 7, "question": "?"}, "id 7"),
            ({"question": "q" * 100, "level": 3}, "level 3"),
            ({"a": [1], "b": {}}, ""),
        ],
    )
    def test_label(self, spec: dict[str, Any], words: str) -> None:
        assert label(spec) == words


class TestTimelines:
    def test_a_refusal_is_only_counted(self) -> None:
        timelines = Timelines()
        timeline = timelines.begin("s1", "Env", "env:1")
        timeline.ended(Failure(Reason.CAPACITY, "full"), left_to_next=False)
        timelines.finish(timeline)
        assert (list(timelines.ended()), timelines.tally.refused, timelines.tally.failed) == ([], 1, 0)

    def test_after_an_hour_it_is_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        timelines = Timelines()
        timelines.finish(played(timelines.begin("s1", "Env", "env:1")))
        assert timelines.reasons() == {"deleted": 1}
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3601)
        assert (timelines.reasons(), list(timelines.ended())) == ({}, [])


class TestMask:
    @pytest.mark.parametrize("secret", ["hunter2", 'a"b\\c', "line\nbreak", "pässwörd", "\ud800", "0.5", "ab"])
    def test_wherever_it_is(self, secret: str) -> None:
        value = {"text": f"say {secret}!", "list": [secret, {f"key {secret}": None}], "n": 1}
        raw = json.dumps(value).encode() if secret == "\ud800" else to_json(value)
        masked = Mask([secret]).json(raw)
        if secret == "\ud800":  # not text in any encoding: rather nothing than that
            assert masked is None
            return
        assert masked is not None
        assert json.loads(masked) == {"text": f"say {STARS}!", "list": [STARS, {f"key {STARS}": None}], "n": 1}

    def test_numbers(self) -> None:
        assert Mask(["1234"]).json(b'{"pin":1234,"ok":true}') == b'{"pin":"***","ok":true}'

    def test_without_a_secret_it_is_the_same_bytes(self) -> None:
        raw = b'{"a": 1.50}'
        assert Mask(["hunter2", ""]).json(raw) is raw

    def test_the_protocols_names_stay(self) -> None:
        masked = Mask(["text", "o"]).json(b'{"ok":true,"output":{"blocks":[{"type":"text","text":"foo"}]}}')
        assert json.loads(masked or b"")["output"]["blocks"] == [{"type": STARS, "text": f"f{STARS}{STARS}"}]

    def test_what_is_too_much_to_look_through_is_not_kept(self) -> None:
        assert Mask(["hunter2"]).json(b'["hunter2"' + b",1" * 30_000 + b"]") is None

    @given(st.text(min_size=1).filter(lambda text: "*" not in text), st.text(), st.text())
    def test_any_text(self, secret: str, before: str, after: str) -> None:
        raw = to_json({"text": before + secret + after})
        masked = Mask([secret]).json(raw)
        assert masked is not None
        assert secret not in json.loads(masked)["text"].replace(STARS, "\0") or secret == "\0"


class TestPieces:
    def test_the_oldest_of_a_session_go_first(self) -> None:
        pieces = Pieces(max_bytes=100_000, max_session_bytes=2_000)
        for number in range(5):
            pieces.add("a", number, {"input": b"x" * 400})
        assert [bool(pieces.get("a", number)) for number in range(5)] == [False, False, False, True, True]

    def test_the_oldest_of_all_go_first(self) -> None:
        pieces = Pieces(max_bytes=2_500, max_session_bytes=100_000)
        for ref in "abc":
            pieces.add(ref, 0, {"input": b"x" * 400})
            pieces.add(ref, 0, {"output": LeftOut("too large")})
        assert [set(pieces.get(ref, 0)) for ref in "abc"] == [set(), {"input", "output"}, {"input", "output"}]
        assert pieces.held_bytes == 2_400
        for ref in "bc":
            pieces.forget(ref)
        assert pieces.held_bytes == 0


class TestFiles:
    def test_an_episode(self, settings: Settings) -> None:
        lines = record(settings)
        assert [line["type"] for line in lines] == ["session", "created", "set_up", "prompt", "call", "result", "end"]
        session, created, _, prompt, call, result, end = lines
        assert (session["session"], session["format"], session["resumed"]) == ("s1", 1, False)
        assert created["task"] == {"id": 1}
        assert prompt["output"] == [{"type": "text", "text": "do it"}]
        assert (call["name"], call["input"], call["number"]) == ("bash", {"command": "ls"}, result["number"])
        assert (result["reward"], result["finished"], result["outcome"]) == (0.5, True, "ok")
        assert result["output"]["output"]["blocks"] == [{"type": "text", "text": "hi"}]
        assert (end["reason"], end["calls"], end["reward"]) == ("deleted", 1, 0.5)

    def test_only_the_host_can_read_them(self, settings: Settings) -> None:
        record(settings)
        (path,) = directory_of(settings).iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    def test_secrets_are_masked(self, settings: Settings) -> None:
        output = RESULT % ("the key is hunter2", "null", "false")
        record(settings, output=output, tool_input={"key": "hunter2"}, secrets=["hunter2"])
        (path,) = directory_of(settings).iterdir()
        assert "hunter2" not in path.read_text()
        assert "the key is ***" in path.read_text()

    @pytest.mark.parametrize("sid", HOSTILE_IDS)
    def test_an_id_leads_nowhere(self, settings: Settings, tmp_path: Path, sid: str) -> None:
        lines = record(settings, sid)
        assert lines[0]["session"] == sid
        assert {path.name for path in tmp_path.iterdir()} == {"transcripts"}

    def test_names_differ_as_ids_do(self) -> None:
        ids = [*HOSTILE_IDS, "x" * 127 + "y", "a%2Fb", "A/b", *("/" * n for n in range(2, 129))]
        names = {file_name(sid, 0.0) for sid in ids}
        assert len(names) == len(ids)
        assert max(map(len, names)) <= 255

    def test_what_is_too_large_is_left_out(self, settings: Settings) -> None:
        lines = record(settings, tool_input={"text": "x" * 5_000_000})
        call = next(line for line in lines if line["type"] == "call")
        assert "input" not in call
        assert call["left_out"] == {"input": "it is larger than 4 MiB"}

    def test_a_session_is_bounded(self, settings: Settings) -> None:
        lines = record(settings.model_copy(update={"record_session": 700}))
        assert [line["type"] for line in lines][-2:] == ["full", "end"]

    def test_all_are_bounded(self, settings: Settings) -> None:
        settings = settings.model_copy(update={"record_disk": 3_000})
        recorder = Recorder(settings)
        with recorder.running():
            timelines = Timelines(recorder)
            for number in range(10):
                timelines.finish(played(timelines.begin(f"s{number}", "Env", "env:1")))
        files = sorted(directory_of(settings).iterdir())
        assert sum(path.stat().st_size for path in files) <= 3_000
        assert files[-1].name.endswith("-s9.jsonl")

    def test_a_host_that_comes_later_goes_on_without_pieces(self, settings: Settings) -> None:
        recorder = Recorder(settings)
        with recorder.running():
            timeline = Timelines(recorder).begin("a-s1", "Env", "env:1")
            played(timeline)
            other = Timelines(recorder).begin("s1", "Env", "env:1")
            other.created("ors-1", "warm", 0.1, {"id": 1})
            recorder.drain()
        path = next(path for path in directory_of(settings).iterdir() if path.name.endswith("Z-s1.jsonl"))
        with path.open("ab") as file:
            file.write(b'{"type":"cut o')
        recorder = Recorder(settings)
        with recorder.running():
            timelines = Timelines(recorder)
            played(timelines.begin("s1", "Env", "env:1", adopted_age_s=5.0))
        assert len(list(directory_of(settings).iterdir())) == 2
        *before, cut, resumed, _created, _set_up, _prompt, call, result, end = path.read_text().splitlines()
        assert (len(before), cut) == (2, '{"type":"cut o')
        assert json.loads(resumed)["resumed"]
        assert "input" not in json.loads(call)
        assert "not known to this host" in json.loads(result)["left_out"]["output"]
        assert (json.loads(end)["message"], json.loads(result)["reward"]) == ("", 0.5)

    def test_a_full_disk_hurts_nobody(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        recorder = Recorder(settings)
        with recorder.running():
            timelines = Timelines(recorder)
            timeline = timelines.begin("s1", "Env", "env:1")
            timeline.created("ors-1", "warm", 0.1, {"id": 1})
            recorder.drain()
            write = os.write

            def half(fd: int, data: bytes) -> int:
                return write(fd, data[: len(data) // 2])

            monkeypatch.setattr("host.transcripts.os.write", half)
            timeline.set_up()
            recorder.drain()
            monkeypatch.undo()
            assert recorder.problem == os.strerror(errno.ENOSPC)
            timeline.prompted(b"[]", 0.0)
            timeline.ended(DELETED, left_to_next=False)
            played(timelines.begin("s2", "Env", "env:1"))
            recorder.drain()
            assert recorder.problem is None
        first, second = sorted(directory_of(settings).iterdir(), key=lambda path: path.name[-8:])
        assert [line["type"] for line in lines_of(first)] == ["session", "created"]  # whole lines, in order, or none
        assert len(lines_of(second)) == 7

    def test_what_comes_too_fast_is_lost_and_said(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("host.recording._MAX_QUEUED", 3)
        recorder = Recorder(settings)
        timelines = Timelines(recorder)
        timeline = timelines.begin("s1", "Env", "env:1")
        for number in range(10):  # nobody takes anything out yet
            timeline.call_began(f"{number}", Method.CALL, {"name": "bash", "input": {}})
        timeline.ended(DELETED, left_to_next=False)
        with recorder.running():
            recorder.drain()
        (path,) = directory_of(settings).iterdir()
        assert [line["type"] for line in lines_of(path)] == ["session", "call", "call", "lost", "end"]
        assert recorder.lost >= 8

    @pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
    def test_a_directory_that_others_see_is_refused(self, settings: Settings, mode: int) -> None:
        directory_of(settings).mkdir()
        directory_of(settings).chmod(mode)
        with pytest.raises(StartupError, match="chmod 700"):
            Recorder(settings)

    def test_a_link_in_place_of_a_file_is_not_followed(self, tmp_path: Path) -> None:
        files = Transcripts(tmp_path / "t", max_bytes=10_000, max_session_bytes=1_000)
        name = files.begin("s1", 0.0, b"{}\n")
        (tmp_path / "t" / name).unlink()
        (tmp_path / "t" / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="symbolic links"):
            files.append(name, b"{}\n")
        assert not (tmp_path / "elsewhere").exists()
        files.close()


class TestInAHost:
    @pytest.fixture
    async def server(self, serve: Serve) -> Server:
        return await serve(record="directory")

    async def test_an_episode(self, server: Server) -> None:
        await server.create()
        await server.get("/prompt", "s1")
        await server.call(tool_input={"command": "ls"})
        await server.delete()
        server.overview.recorder.drain()
        (path,) = directory_of(server.host.settings).iterdir()
        kinds = ["session", "created", "set_up", "prompt", "call", "result", "end"]
        assert [line["type"] for line in lines_of(path)] == kinds

    async def test_a_clients_secrets_are_masked(self, server: Server) -> None:
        server.engine.script.handlers["call"] = raising(Fault.ENVIRONMENT_RAISED, "the key is hunter2 and swordfish")
        body = {"task_spec": {"key": "hunter2"}, "secrets": {"A": "hunter2"}}
        await server.post("/create", "s1", json=body, headers=secrets_header(B="swordfish"))
        await server.call()
        await server.delete()
        server.overview.recorder.drain()
        (path,) = directory_of(server.host.settings).iterdir()
        text = path.read_text()
        assert "hunter2" not in text
        assert "swordfish" not in text
        assert "the key is *** and ***" in text

    async def test_off_keeps_nothing_that_was_said(self, serve: Serve) -> None:
        server = await serve()
        await server.create(task_spec={"id": 5, "answer": "xyzzy" * 20})
        await server.get("/prompt", "s1")
        await server.call(tool_input={"command": "echo plugh"})
        (timeline,) = (session.timeline for session in server.sessions)
        assert timeline.recording is None
        assert timeline.task == "id 5"
        told = repr(timeline.steps) + repr(server.overview.session(timeline.ref, 0))
        assert not any(word in told for word in ("xyzzy", "plugh", "do it", "done"))
