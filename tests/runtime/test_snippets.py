"""Source that was compiled before: it means what it would mean if it were compiled now, and nothing is left behind."""

from __future__ import annotations

import collections
import dataclasses
import marshal
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from sandbox_runtime import snippets

_COUNT_COMPILED = """
import builtins, gc, sys
from sandbox_runtime.deferred import defer_modules
defer_modules()
from sandbox_runtime import snippets
snippets._FILE = sys.argv[1]
count = 0
def counting(*args, _compile=compile, **options):
    global count
    count += 1
    return _compile(*args, **options)
snippets.compile = counting
with snippets.compiled_before():
    import sandbox_runtime.process
print(count)
"""


def make_all() -> list[object]:
    """Have the standard library make up source, and return what it made."""

    @dataclasses.dataclass(frozen=True, order=True, slots=True)
    class Point:
        x: int
        y: int = 2

    pair = collections.namedtuple("pair", "a b")
    hint = typing.get_type_hints(type("Hinted", (), {"__annotations__": {"field": "list[int]"}}))
    return [Point(1), Point(1) < Point(2), repr(Point(3, 4)), hash(Point(1)), pair(1, b=2), hint]


def written(path: Path) -> Path:
    """Write what is compiled for the runtime's start, as the image's build does."""
    script = "import sys; from sandbox_runtime import snippets; snippets._FILE = sys.argv[1]; snippets._write()"
    subprocess.run([sys.executable, "-W", "error", "-c", script, str(path)], check=True, timeout=60)
    return path


def test_what_is_found_means_the_same() -> None:
    plain = repr(make_all())
    kept: snippets.Snippets = {}
    with snippets._looked_up(kept, keep=True):
        assert repr(make_all()) == plain
    assert {kind for _, kind in kept} == {"eval", "exec"}
    read = marshal.loads(marshal.dumps(kept))
    with snippets._looked_up(read, keep=True):
        assert repr(make_all()) == plain
    assert read.keys() == kept.keys()


def test_nothing_is_left_behind() -> None:
    with pytest.raises(SyntaxError), snippets.compiled_before():
        typing.ForwardRef("list[")
    assert not {"exec", "eval", "compile"} & (vars(collections).keys() | vars(dataclasses).keys() | vars(typing).keys())


def test_the_start_compiles_nothing_that_was_compiled_before(tmp_path: Path) -> None:
    def compiled(file: Path) -> int:
        command = [sys.executable, "-W", "error", "-c", _COUNT_COMPILED, str(file)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)

    assert compiled(tmp_path / "none") > 100
    assert compiled(written(tmp_path / "snippets")) == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no marshal",
        marshal.dumps(("another interpreter", {("1", "eval"): 1})),
        marshal.dumps((sys.version,)),
        marshal.dumps(17),
    ],
    ids=["empty", "nothing of ours", "another interpreter's", "short", "a number"],
)
def test_a_file_that_is_not_for_this_interpreter_is_as_good_as_none(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "snippets").write_bytes(content)
    monkeypatch.setattr(snippets, "_FILE", str(tmp_path / "snippets"))
    assert snippets._read() == {}
