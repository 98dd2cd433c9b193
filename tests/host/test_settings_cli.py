"""Settings by flag, by environment variable, by default; and a sentence that names what is wrong with one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pydantic import ByteSize, ValidationError

from host import cli
from host.cli import main
from host.errors import StartupError
from host.settings import OPTIONS, Settings


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ORS_HOST_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What would have been served: ``serve`` only takes note, and refuses the image named ``bad``."""
    seen: list[Settings] = []

    async def serve(settings: Settings) -> None:
        seen.append(settings)
        if "bad" in settings.image:
            raise StartupError("image 'bad' is not on this engine")

    monkeypatch.setattr(cli, "serve", serve)
    monkeypatch.setattr("host.logs.configure", lambda **_options: None)
    return seen


def run(*args: str, **environ: str) -> Result:
    return CliRunner().invoke(main, args, env=environ)


# --- Settings ---------------------------------------------------------------------------------------------------------


def test_flag_before_variable_before_default(served: list[Settings]) -> None:
    assert run("--image", "a").exit_code == 0
    assert run("--image", "a", ORS_HOST_MAX_SESSIONS="5").exit_code == 0
    assert run("--image", "a", "--max-sessions", "7", ORS_HOST_MAX_SESSIONS="5").exit_code == 0
    assert [settings.max_sessions for settings in served] == [64, 5, 7]


def test_images_repeat_and_keep_their_order(served: list[Settings]) -> None:
    run("--image", "b", "--image", "a")
    run(ORS_HOST_IMAGE="b, a c")
    run("--image", "x", ORS_HOST_IMAGE="b")
    assert [settings.image for settings in served] == [("b", "a"), ("b", "a", "c"), ("x",)]


def test_units(served: list[Settings]) -> None:
    run(
        "--image",
        "a",
        "--memory",
        "512MiB",
        "--call-timeout",
        "1.5",
        "--cpus",
        "0.5",
        "--state-dir",
        "/x",
        "--port",
        "0",
    )
    (settings,) = served
    assert settings.memory == ByteSize(512 * 1024**2)
    assert (settings.call_timeout_s, settings.cpus, settings.port) == (1.5, 0.5, 0)
    assert settings.state_dir == Path("/x")


def test_every_setting_has_a_flag_that_says_its_variable_and_default() -> None:
    text = " ".join(run("serve", "--help").output.split())
    for name, field in OPTIONS.items():
        flag = "--" + name.removesuffix("_s").replace("_", "-")
        assert f"{flag} " in text, flag
        assert f"ORS_HOST_{name.upper()}" in text
        assert field.description is not None and " ".join(field.description.split()) in text


def test_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1  # type: ignore[misc]


BAD = [
    ("port", "--port", "65536"),
    ("port", "--port", "-1"),
    ("port", "--port", "http"),
    ("max_sessions", "--max-sessions", "0"),
    ("max_sessions", "--max-sessions", "many"),
    ("memory", "--memory", "lots"),
    ("call_timeout_s", "--call-timeout", "0"),
    ("call_timeout_s", "--call-timeout", "nan"),
    ("call_timeout_s", "--call-timeout", "soon"),
    ("queue_size", "--queue-size", "-1"),
    ("log_format", "--log-format", "xml"),
    ("log_level", "--log-level", "loud"),
]


@pytest.mark.parametrize(("name", "flag", "value"), BAD)
def test_bad_flag_is_named_with_its_value(served: list[Settings], name: str, flag: str, value: str) -> None:
    result = run("--image", "a", flag, value)
    assert result.exit_code == 2
    assert f"{flag}: " in result.output and f"(got '{value}')" in result.output
    assert "Traceback" not in result.output and served == []


@pytest.mark.parametrize(("name", "flag", "value"), BAD)
def test_bad_variable_is_named_with_its_value(served: list[Settings], name: str, flag: str, value: str) -> None:
    result = run("--image", "a", **{f"ORS_HOST_{name.upper()}": value})
    assert result.exit_code == 2
    assert f"ORS_HOST_{name.upper()}: " in result.output and f"(got '{value}')" in result.output
    assert served == []


def test_all_that_is_bad_is_named_at_once(served: list[Settings]) -> None:
    output = run("--image", "a", "--port", "x", "--pids", "y").output
    assert "--port: " in output and "--pids: " in output


# --- Commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [("--image", "a"), ("serve", "--image", "a"), ("--port", "1", "--image", "a")])
def test_serve_may_be_left_out(served: list[Settings], args: tuple[str, ...]) -> None:
    assert run(*args).exit_code == 0
    assert served[0].image == ("a",)


def test_nothing_to_serve(served: list[Settings]) -> None:
    for args in (("serve",), ("--port", "1")):
        result = run(*args)
        assert result.exit_code == 2
        assert "nothing to serve: give at least one --image" in result.output
    assert served == []


def test_without_a_word() -> None:
    output = run().output
    assert "Usage: " in output and "build" in output and "serve" in output


def test_help_and_version() -> None:
    for args in (("--help",), ("-h",), ("serve", "-h"), ("build", "--help"), ("--image", "a", "--help")):
        result = run(*args)
        assert result.exit_code == 0 and "Usage: " in result.output
    assert run("--version").output.startswith("ors-host, version ")


@pytest.mark.parametrize("args", [("nosuch",), ("--nosuch", "1"), ("serve", "extra")])
def test_what_is_no_command(served: list[Settings], args: tuple[str, ...]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert args[-1] in result.output or args[0] in result.output
    assert served == []


def test_start_up_errors_are_one_sentence_and_exit_code_1(served: list[Settings]) -> None:
    result = run("--image", "bad")
    assert result.output == "ors-host: image 'bad' is not on this engine\n"
    code = f"from host.cli import main; main(['--image', 'x', '--state-dir', '/tmp/{'d' * 120}'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("ors-host: the state directory /tmp/ddd")
    assert len(done.stderr.splitlines()) == 1
