"""Directives for what is said elsewhere already: taken from there when the documentation is built, so never out of date.

from-file PATH   a Markdown file of the repository; ``:section: TITLE``: one section of it; ``:until: TEXT``: up to such a line
settings         the table of all settings, from ``host/settings.py``
errors           statuses and reasons of errors, from ``host/errors.py``
map              the map of the modules, from ``host``'s docstring
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from docutils import nodes
from docutils.parsers.rst import directives
from pydantic import BaseModel, ByteSize
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import stringify_annotation

import host
from host import errors
from host.config import flag, variable
from host.settings import OPTIONS, SECTIONS, ImageSettings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_HEADING = re.compile(r"^(#+) +(.*?)\s*$")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


class FromFile(SphinxDirective):
    """A file, or the section of it under a heading, which is left out: the page has its own."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "section": directives.unchanged_required,
        "until": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        path = ROOT / self.arguments[0]
        self.env.note_dependency(str(path))
        lines = _section(path, self.options.get("section"), self.options.get("until"))
        here = Path(self.env.doc2path(self.env.docname)).parent
        text = _LINK.sub(lambda match: _relink(match, path.parent, here), "\n".join(lines))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class SettingsTable(SphinxDirective):
    """A table for each part of the settings."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(ROOT / "host/settings.py"))
        lines: list[str] = []
        for name, field in OPTIONS.items():
            if name in SECTIONS:
                lines += [
                    "",
                    f"## {SECTIONS[name]}",
                    "",
                    "| flag | key of the file | default | what |",
                    "|---|---|---|---|",
                ]
            default = field.get_default(call_default_factory=True)
            if name == "state_dir":
                shown = "`/var/lib/ors-host` (root), `~/.local/state/ors-host`"
            elif isinstance(default, ByteSize):
                shown = f"`{default.human_readable()}`"
            else:
                shown = "" if default in ((), None) else f"`{default}`"
            own = " *" if name in ImageSettings.model_fields else ""
            lines.append(f"| `{flag(name)}` | `{name}`{own} | {shown} | {_cell(field.description or '')} |")
        first = variable(next(iter(OPTIONS)))
        lines += [
            "",
            f"\\* may stand in an image's section, too. The variable of a key is its name in capitals: `{first}`.",
        ]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class ErrorsTable(SphinxDirective):
    """What a client can be answered, by status."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(ROOT / "host/errors.py"))
        found = [
            error
            for _, error in inspect.getmembers(errors, inspect.isclass)
            if issubclass(error, errors.HostError) and error not in (errors.HostError, *_BY_REASON)
        ]
        lines = ["| status | `reason` | when |", "|---|---|---|"]
        for error in sorted(found, key=lambda error: (error.status, str(error.reason))):
            reason = "of the failure" if error in _OF_THE_FAILURE else f"`{error.reason}`"
            again = "" if error.retry_after_s is None else f" `Retry-After: {error.retry_after_s}`."
            again += " `X-Backend-State: starting`." if error.starting else ""
            lines.append(f"| {error.status} | {reason} | {_first_paragraph(error)}{again} |")
        lines.append(f"| 500 | `{errors.HostError.reason}` | A fault of the host's own: its log has the traceback. |")
        return self.parse_text_to_nodes("\n".join(lines))


_OF_THE_FAILURE = (errors.SessionEnded, errors.QuestionLost)
_BY_REASON = (errors.SandboxFailed,)
"""Their status follows from the reason: the table of reasons has it."""


class ModuleMap(SphinxDirective):
    """The map at the head of ``host/__init__.py``."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(ROOT / "host/__init__.py"))
        _, _, text = inspect.cleandoc(host.__doc__ or "").partition("\n\n")
        said, _, drawn = text.partition("\n\n")
        return self.parse_text_to_nodes(f"{said.rstrip(':')}.\n\n```text\n{inspect.cleandoc(drawn)}\n```")


def _section(path: Path, title: str | None, until: str | None) -> list[str]:
    """Return the lines under a heading, with the headings below it raised to the second level; or all but the first heading.

    It ends before a line that begins with ``until``.

    Raises:
        ValueError: there is no such heading.
    """
    taken: list[str] = []
    level = 1 if title is None else 0
    fenced = False
    for line in path.read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        match = None if fenced else _HEADING.match(line)
        if level and until is not None and line.startswith(until):
            break
        if not level:
            if match and match[2] == title:
                level = len(match[1])
        elif match and (len(match[1]) < level or (title is not None and len(match[1]) == level)):
            break
        elif match and len(match[1]) == level:  # the title of a whole file
            continue
        else:
            taken.append(f"{'#' * (len(match[1]) - level + 1)} {match[2]}" if match else line)
    if not level:
        raise ValueError(f"{path.name} has no section {title!r}")
    return [line for line in taken if not line.startswith("<!--")]


def _relink(match: re.Match[str], base: Path, here: Path) -> str:
    """Return a link as it leads from a page; what is no page of the documentation is named, not linked."""
    words, target, anchor = match[1], (base / match[2]).resolve(), match[3] or ""
    if target.is_relative_to(DOCS):
        return f"[{words}]({os.path.relpath(target, here)}{anchor})"
    place = target.relative_to(ROOT)
    for original, page in _PAGES.items():
        if place == Path(original):
            return f"[{words}]({os.path.relpath(DOCS / page, here)}{anchor})"
    return words if str(place) in words else f"{words} (`{place}`)"


_PAGES = {
    "host/THREAT_MODEL.md": "explanation/threat-model.md",
    "tests/conformance/DIFFERENCES.md": "reference/differences.md",
    "examples/README.md": "reference/examples.md",
}
"""Files of the repository that a page shows."""


def _first_paragraph(thing: object) -> str:
    return _cell(" ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()))


def _cell(text: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", text).replace("|", "\\|").replace("*.", "\\*.")


def _escape_stars(_app: Sphinx, _context: object, lines: list[str]) -> None:
    """A star in the help of a command is a star, not the beginning of emphasis."""
    lines[:] = [line.replace("*.", "\\*.") for line in lines]


def _plain_signature(
    _app: Sphinx, _what: str, _name: str, thing: object, _options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show a model with its fields, which are what it is made from; and types by the names that authors write."""
    if inspect.isclass(thing) and issubclass(thing, BaseModel):
        hints = get_type_hints(thing)
        shown = (
            f"{name}: {stringify_annotation(hints[name], 'smart').replace('~', '')}"
            + ("" if field.is_required() else f" = {field.get_default(call_default_factory=True)!r}")
            for name, field in thing.model_fields.items()
        )
        signature = f"(*, {', '.join(shown)})"
    return _plain(signature), _plain(returns)


def _plain(text: str | None) -> str | None:
    if text is None:
        return None
    text = re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text)
    return re.sub(r"\b(collections\.abc|sandbox_runtime\.data_types)\.", "", text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("from-file", FromFile)
    app.add_directive("settings", SettingsTable)
    app.add_directive("errors", ErrorsTable)
    app.add_directive("map", ModuleMap)
    app.connect("autodoc-process-signature", _plain_signature)
    app.connect("sphinx-click-process-options", _escape_stars)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
