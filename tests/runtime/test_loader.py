"""Loading environments by name: what comes out, and a sentence for everything that can be wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox_runtime.loader import LoadError, load

HEADER = """
from sandbox_runtime import Environment, Split, TextBlock, ToolOutput, tool

class Base(Environment):
    @classmethod
    def list_tasks(cls, split): return [{}]
    def get_prompt(self): return []
    @tool
    def act(self) -> ToolOutput: return ToolOutput(blocks=[TextBlock(text="x")])

class Good(Base):
    @classmethod
    def list_splits(cls): return ["train"]
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Write a module that can be imported in this test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write_module(name: str, source: str, header: str = HEADER) -> None:
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(header + source)

    yield write_module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names(*specs: str) -> list[str]:
    return [env.__name__ for env in load(specs)]


def test_by_class_and_by_module(write: Callable[..., None]) -> None:
    write("one", "class Second(Good): pass\nAlias = Second\n")
    write("two", "from one import Good\nclass Third(Good): pass\n", header="")
    assert names("one:Good") == ["Good"]
    assert names("one") == ["Good", "Second"]  # not Base, which is abstract
    assert names("two") == ["Third"]  # not what is only imported there
    assert names("two:Good", "one:Second", "two") == ["Good", "Second", "Third"]
    assert names("one", "one:Good") == ["Good", "Second"]
    assert names("one:Alias") == ["Second"]


def test_in_a_package(write: Callable[..., None]) -> None:
    write("package/__init__", "", header="")
    write("package/env", "")
    assert names("package.env:Good") == ["Good"]


def test_async_splits(write: Callable[..., None]) -> None:
    write("one", "class Async(Base):\n    @classmethod\n    async def list_splits(cls): return ['train']\n")
    assert names("one:Async") == ["Async"]


ABSTRACT = "class Abstract(Environment):\n    def get_prompt(self): return []\n"


@pytest.mark.parametrize(
    ("source", "spec", "message"),
    [
        ("", "", "'' names no environment; expected module:Class, or module"),
        ("", "one:", "'one:' names no environment"),
        ("", ":Good", "':Good' names no environment"),
        ("", "nowhere", "no module named 'nowhere'"),
        ("", "nowhere.inside:Env", "no module named 'nowhere'"),
        ("", "one.inside:Env", "no module named 'one.inside'"),
        ("", "one:Missing", "module 'one' has no 'Missing'; environments in it: Base, Good"),
        ("number = 3", "one:number", "one:number is no environment: it is not a subclass of Environment"),
        ("", "one:TextBlock", "one:TextBlock is no environment"),
        ("", "one:Base", "one:Base is not complete: Base does not define list_splits"),
        (ABSTRACT, "one:Abstract", "one:Abstract is not complete: Abstract does not define list_splits, list_tasks"),
        (
            "class Bare(Good): act = None",
            "one:Bare",
            "one:Bare: it has no tools: decorate at least one method with @tool",
        ),
        ("class Odd(Good):\n    @tool\n    def odd(self, x: int): pass", "one:Odd", "one:Odd: Odd.odd can't be a tool"),
        ("class No(Good):\n    @classmethod\n    def list_splits(cls): return []", "one:No", "one:No has no splits"),
        (
            "class Bad(Good):\n    @classmethod\n    def list_splits(cls): return 'train'",
            "one:Bad",
            "one:Bad: list_splits failed: Bad.list_splits returned str",
        ),
        (
            "class Bad(Good):\n    @classmethod\n    def list_splits(cls): raise ValueError('no data')",
            "one:Bad",
            "one:Bad: list_splits failed: ValueError: no data",
        ),
        ("class GOOD(Good): pass", "one", "the same name but for upper and lower case: one:Good and one:GOOD"),
        ("raise ValueError('at import')", "one", "importing 'one' failed: ValueError: at import"),
        ("import sys; sys.exit(2)", "one", "importing 'one' failed: SystemExit: 2"),
        ("import not_installed", "one", "importing 'one' failed: ModuleNotFoundError: No module named 'not_installed'"),
        ("x = (", "one", "importing 'one' failed: SyntaxError"),
    ],
)
def test_what_can_be_wrong(write: Callable[..., None], source: str, spec: str, message: str) -> None:
    write("one", source)
    with pytest.raises(LoadError) as caught:
        load([spec])
    assert message in str(caught.value)


def test_a_module_without_environments(write: Callable[..., None]) -> None:
    write("empty", "", header="")
    with pytest.raises(
        LoadError, match="module 'empty' defines no environment and starts no server with one .in /.*/empty.py.$"
    ):
        load(["empty"])
    write("abstract", "from sandbox_runtime import Environment\n" + ABSTRACT, header="")
    with pytest.raises(LoadError, match="defines no environment .Abstract does not define list_splits, list_tasks"):
        load(["abstract"])


def test_one_name_in_two_modules(write: Callable[..., None]) -> None:
    write("one", "")
    write("two", "")
    with pytest.raises(LoadError, match="one:Good and two:Good"):
        load(["one:Good", "two:Good"])


def test_nothing_to_load() -> None:
    with pytest.raises(LoadError, match="no environment given"):
        load([])


def test_the_traceback_of_an_import_is_in_the_log(
    write: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    write("one", "raise ValueError('at import')")
    with pytest.raises(LoadError):
        load(["one"])
    assert "Traceback" in capsys.readouterr().err
