"""Settings from flags, environment variables and a file, in this order; where each comes from; and what is wrong with one.

The file is TOML. Its keys are the settings' names, a section ``[image."TAG"]`` is one image's and counts more than what the
file says of all; a flag or a variable counts more than either. It is named by ``--config`` or ``ORS_HOST_CONFIG``; else it is
``ors-host/ors-host.toml`` in ``~/.config`` (not for root), else in ``/etc``, if there.
One in the current directory is not read unasked: that is often an environment's folder, written by somebody whom the host
doesn't trust, and a setting can open the host to the network or hand a file of this machine to containers.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ByteSize, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource

from host.settings import ENV_PREFIX, OPTIONS, SECRET, ImageSettings, Settings

FILE_NAME = "ors-host.toml"
CONFIG_VARIABLE = f"{ENV_PREFIX}CONFIG"
DEFAULT = "default"

_INSTEAD = (("api_key", "api_key_file"), ("agent_key", "agent_key_file"), ("network", "allow_host"))
"""Two ways to say one thing: what a flag says of it is not to be contradicted, or widened, by what a file says."""


class ConfigError(Exception):
    """Settings that can't be used; each line names where one stands and what is expected there."""


@dataclass(frozen=True)
class Config:
    """The settings in effect, and for each of ``OPTIONS`` where it comes from: a flag, a variable, a file or ``default``."""

    settings: Settings
    origins: Mapping[str, str]
    file: Path | None

    @property
    def passed_over(self) -> Path | None:
        """A file in the current directory that was not read."""
        here = Path(FILE_NAME).absolute()
        return here if here.is_file() and here != self.file else None


def flag(name: str) -> str:
    """Return a setting's flag: a unit in its name is left to the help text."""
    return "--" + name.removesuffix("_s").replace("_", "-")


def variable(name: str) -> str:
    """Return a setting's environment variable."""
    return f"{ENV_PREFIX}{name.upper()}"


def unknown_variables() -> list[str]:
    """Return the environment variables that look like settings and are none."""
    known = {variable(name) for name in OPTIONS} | {CONFIG_VARIABLE}
    return sorted(name for name in os.environ if name.startswith(ENV_PREFIX) and name not in known)


def load(flags: Mapping[str, Any], file: Path | None = None) -> Config:
    """Return the settings in effect.

    Args:
        flags: what was given on the command line, by the settings' names.
        file: the file to read in place of the one that would be looked for.

    Raises:
        ConfigError: the file can't be read, or a setting is unknown or wrong, wherever it stands.
    """
    path = _file(file)
    layers: list[tuple[str, Mapping[str, Any]]] = [
        ("file", {} if path is None else _read(path)),
        ("variable", {name: value for name, value in EnvSettingsSource(Settings)().items() if name in OPTIONS}),
        ("flag", flags),
    ]
    values: dict[str, Any] = {}
    came_from: dict[str, str] = {}
    for layer, given in layers:
        for pair in _INSTEAD:
            if any(name in given for name in pair):
                for name in pair:
                    values.pop(name, None)
                    came_from.pop(name, None)
        values |= given
        came_from |= dict.fromkeys(given, layer)
        if layer != "file" and "images" in values:
            values["images"] = _without(values["images"], given)
    where = {name: _where(name, layer, path) for name, layer in came_from.items()}
    try:
        # All are given, or a variable that gave way to another setting would be read again.
        settings = Settings(**{**_defaults(), **values})
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_context=False)
        raise ConfigError("\n".join(_explain(error, where, path) for error in errors)) from None
    return Config(settings, {name: where.get(name, DEFAULT) for name in OPTIONS}, path)


def shown(value: Any) -> Any:
    """Return a setting's value as JSON has it, without what is secret."""
    if isinstance(value, SecretStr):
        return "(hidden)"
    if isinstance(value, ByteSize):
        return value.human_readable()
    if isinstance(value, tuple):
        return [shown(item) for item in value]
    return str(value) if isinstance(value, Path | str) else value


def _without(sections: Any, given: Collection[str]) -> Any:
    """Return the images' sections without what flags or variables say of all images."""
    said = {name for pair in _INSTEAD if any(name in given for name in pair) for name in pair} | set(given)
    if not isinstance(sections, dict):
        return sections
    return {
        tag: {name: value for name, value in section.items() if name not in said}
        if isinstance(section, dict)
        else section
        for tag, section in sections.items()
    }


def _defaults() -> dict[str, Any]:
    return {name: field.get_default(call_default_factory=True) for name, field in Settings.model_fields.items()}


def _file(given: Path | None) -> Path | None:
    if given is None and (named := os.environ.get(CONFIG_VARIABLE)):
        given = Path(named)
    if given is not None:
        return given.expanduser().absolute()
    folders = [Path("/etc")]
    if os.geteuid() != 0:
        folders.insert(0, Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"))
    return next((path for folder in folders if (path := folder / "ors-host" / FILE_NAME).is_file()), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path}: can't be read: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: is not TOML: {exc}") from None
    if "images" in values:
        raise ConfigError(f'{path}: images: no such key; a section of one image is [image."TAG"]')
    if isinstance(sections := values.get("image"), dict):
        values |= {"image": list(sections), "images": sections}
    return values


def _where(name: str, layer: str, path: Path | None) -> str:
    return {"flag": flag(name), "variable": variable(name)}.get(layer, str(path))


def _explain(error: ErrorDetails, where: Mapping[str, str], path: Path | None) -> str:
    name, *rest = (str(step) for step in error["loc"])
    known: Collection[str] = OPTIONS
    if name == "images":  # [image."TAG"] KEY, or KEY.NAME within it
        tag, rest = rest[0], [step for step in rest[1:] if step != "[key]"]
        known = ImageSettings.model_fields
        place = f'{path}: [image."{tag}"]' + (f" {'.'.join(rest)}" if rest else "")
        name = rest[0] if rest else name
    elif where.get(name) == str(path):
        place = f"{path}: {name}"
    else:
        place = where.get(name, name)
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "ors-host config show lists those there are"
        return f"{place}: unknown key; {hint}"
    got = "" if name in SECRET or name == "secrets" else f" (got {error['input']!r})"
    return f"{place}: {_expected(error)}{got}"


def _expected(error: ErrorDetails) -> str:
    if error["type"].startswith("byte_size"):
        return "should be a size such as 512MiB or 2GiB"
    return error["msg"].removeprefix("Value error, ")
