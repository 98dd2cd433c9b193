"""Flags before variables before the file before defaults; what is wrong is named by file and key; no secret is shown."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from host.cli import main
from host.config import ConfigError, load
from host.isolation import Profile
from host.settings import OPTIONS, SECTIONS, ImageSettings, Settings

MIB = 1024**2


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("ORS_HOST_")]:
        monkeypatch.delenv(name)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "ors-host.toml"
        path.write_text(text)
        return path

    return write


def show(*args: str, **environ: str) -> Result:
    return CliRunner().invoke(main, ["config", "show", *args], env=environ)


def test_flag_before_variable_before_file_before_default(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("port = 1\npids = 2\nmax_sessions = 3\n")
    monkeypatch.setenv("ORS_HOST_PORT", "4")
    monkeypatch.setenv("ORS_HOST_PIDS", "5")
    config = load({"port": "6"}, path)
    assert (config.settings.port, config.settings.pids, config.settings.max_sessions) == (6, 5, 3)
    assert config.settings.queue_size == Settings().queue_size
    origins = [config.origins[name] for name in ("port", "pids", "max_sessions", "queue_size")]
    assert origins == ["--port", "ORS_HOST_PIDS", str(path), "default"]


def test_the_variable_names_a_file_and_the_flag_another(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("port = 1")
    other = path.with_name("other.toml")
    other.write_text("port = 2")
    monkeypatch.setenv("ORS_HOST_CONFIG", str(path))
    assert load({}).settings.port == 1
    assert load({}, other).settings.port == 2


def test_a_file_in_the_current_directory_is_not_read_unasked() -> None:
    """An attack: the folder of an environment that is built or served from within it says what the host may do."""
    Path("ors-host.toml").write_text('host = "0.0.0.0"\nallow_unauthenticated = true\nnetwork = "internet"')
    config = load({})
    assert (config.settings.host, config.settings.network) == ("127.0.0.1", "none")
    assert config.file != Path("ors-host.toml").absolute() == config.passed_over
    assert "is not read unasked" in show().output
    assert load({}, Path("ors-host.toml")).settings.host == "0.0.0.0"


def test_a_users_own_file_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "ors-host").mkdir()
    (tmp_path / "ors-host" / "ors-host.toml").write_text("port = 7")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert load({}).settings.port == 7
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # root's settings are not to be had from a variable's directory
    assert load({}).settings.port == Settings().port


def test_what_a_flag_closes_no_file_opens(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write('allow_host = ["example.com"]\napi_key_file = "/etc/key"')
    assert load({}, path).settings.egress is not None
    assert load({"network": "none"}, path).settings.egress is None
    monkeypatch.setenv("ORS_HOST_API_KEY", "k")
    settings = load({}, path).settings
    assert settings.api_key is not None and settings.api_key_file is None


# --- Images -----------------------------------------------------------------------------------------------------------

SECTIONS_FILE = """
memory = "1GiB"
network = "internet"

[image."a:latest"]
memory = "512MiB"
cpus = 0.5
network = "none"
data = "/srv/a"

[image."a:latest".environment]
LEVEL = "3"

[image."a:latest".secrets]
JUDGE_KEY = "/etc/judge"

[image."b:latest"]
allow_host = ["example.com"]
isolation = "strict"
warm = 0
"""


def test_sections_are_what_is_served_and_how(write: Any) -> None:
    settings = load({}, write(SECTIONS_FILE)).settings
    assert settings.image == ("a:latest", "b:latest")
    a, b, c = (settings.for_image(tag) for tag in ("a:latest", "b:latest", "c:latest"))
    assert (a.memory, a.cpus, a.egress) == (512 * MIB, 0.5, None)
    assert (b.memory, b.isolation, b.warm) == (1024 * MIB, Profile.STRICT, 0)
    assert b.egress is not None and b.egress.allowed == ("example.com",)
    assert c == settings and c.egress is not None and c.egress.allowed is None
    assert settings.environment_of("a:latest") == {"LEVEL": "3"} and settings.environment_of("b:latest") == {}
    assert settings.images["a:latest"].secrets == {"JUDGE_KEY": Path("/etc/judge")}


def test_sections_of_images_that_a_flag_leaves_out_are_not_served(write: Any) -> None:
    settings = load({"image": ("b:latest",)}, write(SECTIONS_FILE)).settings
    assert settings.image == ("b:latest",) and settings.for_image("b:latest").isolation is Profile.STRICT
    assert settings.data_folders == ()


def test_a_sections_folder_gives_way_to_the_flag(write: Any) -> None:
    path = write(SECTIONS_FILE)
    assert load({}, path).settings.data_folders == ("a:latest=/srv/a",)
    assert load({"data": ("a:latest=/x",)}, path).settings.data_folders == ("a:latest=/x",)
    assert load({"data": ("/x",)}, path).settings.data_folders == ("/x",)


def test_flags_and_variables_count_more_than_sections(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_HOST_CPUS", "2")
    settings = load({"memory": "3GiB", "network": "none"}, write(SECTIONS_FILE)).settings
    a, b = settings.for_image("a:latest"), settings.for_image("b:latest")
    assert (a.memory, b.memory, a.cpus) == (3072 * MIB, 3072 * MIB, 2)
    assert a.egress is None and b.egress is None  # what a flag closes no section opens
    assert b.isolation is Profile.STRICT


def test_what_an_image_may_have_otherwise_is_a_setting_of_the_same_form() -> None:
    own = {"data", "environment", "secrets"}
    assert set(ImageSettings.model_fields) - own <= set(OPTIONS)
    assert set(SECTIONS) <= set(OPTIONS)


# --- What is wrong ----------------------------------------------------------------------------------------------------

WRONG = {
    "max_sesions = 3": "max_sesions: unknown key; did you mean max_sessions?",
    "zzzz = 3": "zzzz: unknown key; ors-host config show lists those there are",
    'memory = "lots"': "memory: should be a size such as 512MiB or 2GiB (got 'lots')",
    "port = 70000": "port: Input should be less than or equal to 65535 (got 70000)",
    'log_format = "xml"': "log_format: Input should be 'human' or 'json' (got 'xml')",
    '[image."a"]\nmemry = 1': '[image."a"] memry: unknown key; did you mean memory?',
    '[image."a"]\nmemory = "x"': "[image.\"a\"] memory: should be a size such as 512MiB or 2GiB (got 'x')",
    '[image."a"]\nallow_host = ["http://x/"]': '[image."a"] allow_host: ',
    '[image."a".environment]\nORS_RUNTIME_RECONNECT_S = "9"': "is the host's own; choose another name",
    '[image."a".environment]\n"A=B" = "9"': '[image."a"] environment.A=B: ',
    '[image."a".environment]\nA = 9': '[image."a"] environment.A: Input should be a valid string (got 9)',
    '[image."a"]\nsecrets = "hunter2"': '[image."a"] secrets: Input should be a valid dictionary',
    "image = 3": "image: ",
    "image = [3]": "image: ",
    "images = 3": 'images: no such key; a section of one image is [image."TAG"]',
    "[image]\na = 3": '[image."a"]: ',
    "port = ": "is not TOML: ",
}


@pytest.mark.parametrize(("text", "words"), WRONG.items(), ids=[text.replace("\n", " ") for text in WRONG])
def test_what_is_wrong_is_named(write: Any, text: str, words: str) -> None:
    path = write(text)
    result = CliRunner().invoke(main, ["config", "show", "--config", str(path)])
    assert result.exit_code == 2
    assert f"{path}: " in result.output and words in result.output
    assert "Traceback" not in result.output and "hunter2" not in result.output


def test_all_that_is_wrong_is_named_at_once(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write('pids = "y"')
    monkeypatch.setenv("ORS_HOST_CPUS", "z")
    with pytest.raises(ConfigError) as caught:
        load({"port": "x"}, path)
    assert [line.partition(": ")[0] for line in sorted(str(caught.value).splitlines())] == [
        "--port",
        str(path),
        "ORS_HOST_CPUS",
    ]


@pytest.mark.parametrize("name", ["missing.toml", ".", "latin.toml"])
def test_a_file_that_cannot_be_read(name: str) -> None:
    Path("latin.toml").write_bytes(b'host = "\xff"')
    result = CliRunner().invoke(main, ["config", "show", "--config", name])
    assert result.exit_code == 2 and name in result.output and "Traceback" not in result.output


# --- config show ------------------------------------------------------------------------------------------------------


def test_show_says_where_each_comes_from_and_hides_keys(write: Any) -> None:
    path = write(SECTIONS_FILE)
    result = show("--config", str(path), "--port", "9", "--json", ORS_HOST_API_KEY="hunter2", ORS_HOST_PROT="1")
    data = json.loads(result.output)
    assert data["settings"]["port"] == {"value": 9, "from": "--port"}
    assert data["settings"]["memory"] == {"value": "1.0GiB", "from": str(path)}
    assert data["settings"]["api_key"] == {"value": "(hidden)", "from": "ORS_HOST_API_KEY"}
    assert data["settings"]["agent_key"]["value"] is None
    assert list(data["settings"]) == list(OPTIONS)
    assert data["image"]["a:latest"]["secrets"] == {"JUDGE_KEY": "/etc/judge"}
    assert data["unknown_variables"] == ["ORS_HOST_PROT"]
    text = show("--config", str(path), ORS_HOST_API_KEY="hunter2").output
    assert '[image."b:latest"] isolation' in text and "ORS_HOST_API_KEY" in text
    assert "hunter2" not in result.output + text
