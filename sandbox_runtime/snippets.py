"""Source text that is made up during imports, compiled once for all, when the image is made.

Dataclasses write the source of their methods, named tuples that of their constructor, and each annotation in quotes is source
too: pydantic's import alone compiles a thousand such texts, which took a quarter of the runtime's start. What a text compiles
to depends on nothing but the text (and the interpreter), so it is looked up by it; what isn't there is compiled as ever.

``python -m sandbox_runtime.snippets`` writes the file, beside the compiled modules and as trusted as they are.
"""

# No "from __future__" here: compile() would take it over from this module.

import collections
import contextlib
import dataclasses
import marshal
import os
import sys
import typing
from collections.abc import Iterator
from types import CodeType
from typing import Any

_FILE = os.path.join(os.path.dirname(__file__), "__pycache__", f"snippets.{sys.implementation.cache_tag}")
_FORMAT = sys.version
"""Bytecode is one interpreter's."""

_BUILTINS: tuple[tuple[Any, str], ...] = ((collections, "eval"), (dataclasses, "exec"), (typing, "compile"))
"""Who compiles, and by what: a name that the module does not have itself, and so can be given."""

Snippets = dict[tuple[str, str], CodeType]
"""By text and by what it is, ``exec`` or ``eval``."""


@contextlib.contextmanager
def compiled_before() -> Iterator[None]:
    """Have imports in this block find what was compiled when the image was made, if it was."""
    with _looked_up(_read(), keep=False):
        yield


@contextlib.contextmanager
def _looked_up(snippets: Snippets, *, keep: bool) -> Iterator[None]:
    def code(text: str, kind: str) -> CodeType:
        found = snippets.get((text, kind))
        if found is None:
            found = compile(text, "<string>", kind, dont_inherit=True)
            if keep:
                snippets[text, kind] = found
        return found

    def evaluate(source: Any, *scopes: Any) -> Any:
        return eval(code(source, "eval") if type(source) is str else source, *scopes)

    def execute(source: Any, *scopes: Any) -> None:
        exec(code(source, "exec") if type(source) is str else source, *scopes)

    def compile_text(source: Any, filename: str, mode: str, *options: Any, **more: Any) -> Any:
        if type(source) is str and filename == "<string>" and not options and not more:
            return code(source, mode)
        return compile(source, filename, mode, *options, **more)

    ours = {"eval": evaluate, "exec": execute, "compile": compile_text}
    for module, name in _BUILTINS:
        setattr(module, name, ours[name])
    try:
        yield
    finally:
        for module, name in _BUILTINS:
            delattr(module, name)


def _read() -> Snippets:
    try:
        with open(_FILE, "rb") as file:
            version, snippets = marshal.loads(file.read())
    except (OSError, ValueError, EOFError, TypeError):
        return {}
    return snippets if version == _FORMAT else {}


def _write() -> None:
    from .deferred import defer_modules

    snippets: Snippets = {}
    with _looked_up(snippets, keep=True):
        defer_modules()
        from . import process

        assert process
    os.makedirs(os.path.dirname(_FILE), exist_ok=True)
    with open(f"{_FILE}.new", "wb") as file:
        marshal.dump((_FORMAT, snippets), file)
    os.replace(f"{_FILE}.new", _FILE)
    print(f"{len(snippets)} snippets, {os.path.getsize(_FILE) // 1024} kB")


if __name__ == "__main__":
    _write()
