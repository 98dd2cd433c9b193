"""Checking what an author's code returned, before the host is told. Pure, no I/O.

Every function returns the value in its wire type or raises ``RequestFault`` (``bad_result``) that names the method, what it
returned and what was expected. Values are validated again even if they are of the right class: ``model_construct`` and
assignment go past a model's own checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from .faults import RequestFault
from .messages import Block, Fault, ImageBlock, ListToolsOutput, Split, TextBlock, ToolOutput, describe
from .output import shorten

_blocks: TypeAdapter[list[Block]] = TypeAdapter(list[Annotated[Block, Field(discriminator="type")]])
_tool_output = TypeAdapter(ToolOutput)
_list_tools_output = TypeAdapter(ListToolsOutput)

T = TypeVar("T")


def tool_output(value: Any, source: str) -> ToolOutput:
    """Check what a tool returned."""
    _expect(value, ToolOutput, source, "a ToolOutput")
    return _validated(_tool_output, _plain(value, ToolOutput), source)


def blocks(value: Any, source: str) -> list[Block]:
    """Check a prompt: a list of blocks, which may be empty."""
    _expect_list(value, source, "a list of TextBlock and ImageBlock")
    for block in value:
        _expect(block, (TextBlock, ImageBlock), source, "a list of TextBlock and ImageBlock", inside=True)
    return _validated(_blocks, [_plain(block, type(block)) for block in value], source)


def tools(value: Any, source: str) -> ListToolsOutput:
    """Check a list of tools."""
    _expect(value, ListToolsOutput, source, "a ListToolsOutput")
    return _validated(_list_tools_output, _plain(value, ListToolsOutput), source)


def splits(value: Any, source: str) -> list[Split]:
    """Check the splits; bare names become ``Split``."""
    _expect_list(value, source, "a list of Split or str")
    for split in value:
        _expect(split, (Split, str), source, "a list of Split or str", inside=True)
    found = [Split.of(split) for split in value]
    names = [split.name for split in found]
    if len(set(names)) != len(names):
        raise _bad(f"{source} returned a split twice: {', '.join(sorted(names))}")
    return found


def task(value: Any, source: str) -> Mapping[str, Any]:
    """Check one task: a JSON object."""
    _expect(value, Mapping, source, "a task (a dict)")
    return value  # type: ignore[no-any-return]


def tasks(value: Any, source: str) -> list[Mapping[str, Any]]:
    """Check a list of tasks."""
    _expect_list(value, source, "a list of tasks (dicts)")
    for item in value:
        if not isinstance(item, Mapping):
            _expect(item, Mapping, source, "a list of tasks (dicts)", inside=True)
    return list(value)


def count(value: Any, source: str) -> int:
    """Check a number of tasks."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _bad(f"{source} returned {_name(value)}; expected a number of tasks (an int, not negative)")
    return value


def _expect(value: Any, kind: Any, source: str, expected: str, *, inside: bool = False) -> None:
    if not isinstance(value, kind):
        what = f"something with {_name(value)} in it" if inside else _name(value)
        raise _bad(f"{source} returned {what}; expected {expected}")


def _expect_list(value: Any, source: str, expected: str) -> None:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise _bad(f"{source} returned {_name(value)}; expected {expected}")


def _plain(value: BaseModel, model: type[BaseModel]) -> Any:
    # Only the wire's fields: a subclass may have more. What is missing or of a wrong type is the validation's to say.
    return value.model_dump(include=set(model.model_fields), warnings=False)


def _validated(adapter: TypeAdapter[T], value: Any, source: str) -> T:
    try:
        return adapter.validate_python(value)
    except ValidationError as exc:
        raise _bad(f"{source} returned an invalid value: {describe(exc)}") from exc


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _bad(message: str) -> RequestFault:
    return RequestFault(Fault.BAD_RESULT, shorten(message))
