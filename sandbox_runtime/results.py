"""Checking what an author's code returned, before the host is told. Pure, no I/O.

Every function returns the value in its wire type or raises ``RequestFault`` (``bad_result``) that names the method, what it
returned and what was expected. Values are validated again even if they are of the right class: ``model_construct`` and
assignment go past a model's own checks.

Each SDK has classes of its own for these values (``Types``); what comes out is in ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from .faults import RequestFault
from .messages import (
    Block,
    Fault,
    ImageBlock,
    ListToolsOutput,
    Split,
    TextBlock,
    ToolOutput,
    describe,
)
from .output import shorten

if TYPE_CHECKING:
    from .messages import GroupScore, Message

T = TypeVar("T")


# Made when first needed: an episode may have no prompt of blocks, and most have neither of the others.


@cache
def _blocks() -> TypeAdapter[list[Block]]:
    return TypeAdapter(list[Annotated[Block, Field(discriminator="type")]])


@cache
def _messages() -> TypeAdapter[list[Message]]:
    from .messages import Message

    return TypeAdapter(list[Message])


@cache
def _group_scores() -> TypeAdapter[list[GroupScore]]:
    from .messages import GroupScore

    return TypeAdapter(list[GroupScore])


class Types(NamedTuple):
    """The classes of an SDK that its authors' code returns. ``blocks`` are what may stand in a prompt."""

    tool_output: type[BaseModel]
    tools: type[BaseModel]
    split: type[BaseModel]
    blocks: tuple[type, ...]


OURS = Types(ToolOutput, ListToolsOutput, Split, (TextBlock, ImageBlock))


def tool_output(value: Any, source: str, types: Types = OURS) -> ToolOutput:
    """Check what a tool returned."""
    _expect(value, types.tool_output, source, "ToolOutput")
    return _validated(ToolOutput.model_validate, _plain(value, ToolOutput), source)


def blocks(value: Any, source: str, types: Types = OURS) -> list[Block]:
    """Check a prompt: a list of blocks, which may be empty."""
    expected = "a list of TextBlock and ImageBlock"
    _expect_list(value, source, expected)
    for block in value:
        _expect(block, types.blocks, source, expected, inside=True)
    return _validated(_blocks().validate_python, [_dumped(block) for block in value], source)


def messages(value: Any, source: str) -> list[Message]:
    """Check a conversation: a list of messages, of whatever class."""
    _expect_list(value, source, "a list of Message")
    return _validated(_messages().validate_python, [_dumped(message) for message in value], source)


def group_scores(value: Any, source: str, candidates: int) -> list[GroupScore]:
    """Check the scores of a group: as many as there are candidates, each a number or an object with a ``reward``."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise _bad(f"{source} returned {_name(value)}; expected a list of GroupScore or float")
    scores = [_dumped(score) if isinstance(score, BaseModel) else {"reward": _number(score, source)} for score in value]
    if len(scores) != candidates:
        raise _bad(f"{source} returned {len(scores)} scores for {candidates} candidates")
    return _validated(_group_scores().validate_python, scores, source)


def tools(value: Any, source: str, types: Types = OURS) -> ListToolsOutput:
    """Check a list of tools."""
    _expect(value, types.tools, source, "a ListToolsOutput")
    return _validated(ListToolsOutput.model_validate, _plain(value, ListToolsOutput), source)


def splits(value: Any, source: str, types: Types = OURS) -> list[Split]:
    """Check the splits; bare names become ``Split``."""
    _expect_list(value, source, "a list of Split or str")
    for split in value:
        _expect(split, (types.split, str), source, "a list of Split or str", inside=True)
    found = [
        Split.of(split) if isinstance(split, str) else _validated(Split.model_validate, _plain(split, Split), source)
        for split in value
    ]
    names = [split.name for split in found]
    if len(set(names)) != len(names):
        raise _bad(f"{source} returned a split twice: {', '.join(sorted(names))}")
    return found


def task(value: Any, source: str) -> Any:
    """Check one task: a dict, or an object of the author's that has the same JSON form."""
    if not _is_object(value):
        _expect(value, Mapping, source, "a task (a dict)")
    return value


def tasks(value: Any, source: str) -> list[Any]:
    """Check a list of tasks."""
    _expect_list(value, source, "a list of tasks (dicts)")
    for item in value:
        if not _is_object(item):
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


def _number(value: Any, source: str) -> float:
    try:
        return float(value)  # numpy's too
    except (TypeError, ValueError):
        raise _bad(f"{source} returned something with {_name(value)} in it; expected GroupScore or float") from None


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping | BaseModel) or (is_dataclass(value) and not isinstance(value, type))


def _dumped(value: Any) -> Any:
    return value.model_dump(warnings=False) if isinstance(value, BaseModel) else value


def _plain(value: BaseModel, model: type[BaseModel]) -> Any:
    # Only the wire's fields: a subclass may have more. What is missing or of a wrong type is the validation's to say.
    return value.model_dump(include=set(model.model_fields), warnings=False)


def _validated(validate: Callable[[Any], T], value: Any, source: str) -> T:
    try:
        return validate(value)
    except ValidationError as exc:
        raise _bad(f"{source} returned an invalid value: {describe(exc)}") from exc


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _bad(message: str) -> RequestFault:
    return RequestFault(Fault.BAD_RESULT, shorten(message))
