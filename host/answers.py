"""What runtimes answer, checked: each answer must be what its method promises, and becomes JSON to send on.

A frame of a few megabytes can hold millions of values, which take a second to parse and a hundred times their size as objects.
``is_light`` tells, at the speed of a byte search, whether a frame may be parsed where it arrives; ``check`` is for the others
and runs in another process (``intake.py``), so that no session's answer can stall or swell the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from sandbox_runtime import frames, messages
from sandbox_runtime.messages import (
    Blocks,
    Fault,
    ListToolsOutput,
    Message,
    Method,
    Response,
    RunToolOutput,
    ScoreGroupOutput,
    Split,
    describe,
)

LIGHT_BYTES = 2 * 1024 * 1024
"""Text costs about 2 ms a MiB; a screenshot is smaller, and so is a MiB of lines, whose ends are escaped."""

LIGHT_VALUES = 20_000
"""Objects, arrays and their members cost up to 0.8 µs each, parsed and written again."""

MAX_VALUES = 1_000_000
"""In one frame: 200,000 tasks of five fields. As objects they take about 100 MB."""

MAX_FAULT_CHARS = 16 * 1024
"""Of an error's text, which goes to logs, bodies and streams."""

_ADAPTERS: Mapping[Method, TypeAdapter[Any]] = {
    Method.LIST_TOOLS: TypeAdapter(ListToolsOutput),
    Method.LIST_SPLITS: TypeAdapter(list[Split]),
    Method.LIST_TASKS: TypeAdapter(list[dict[str, Any]]),
    Method.NUM_TASKS: TypeAdapter(int),
    Method.GET_TASK: TypeAdapter(dict[str, Any]),
    Method.GET_TASK_RANGE: TypeAdapter(list[dict[str, Any]]),
    Method.PROMPT: TypeAdapter(Blocks),
    Method.MESSAGES: TypeAdapter(list[Message]),
    Method.TASK_TOOLS: TypeAdapter(ListToolsOutput),
    Method.CALL: TypeAdapter(RunToolOutput),
    Method.SCORE_GROUP: TypeAdapter(ScoreGroupOutput),
    Method.RESULT: TypeAdapter(RunToolOutput | ScoreGroupOutput),
}
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)  # create, setup, teardown: their answer says only that they are done

_PUNCTUATION = b",[{:"
_NO_PUNCTUATION = bytes(byte for byte in range(256) if byte not in _PUNCTUATION)
_NO_STRUCTURE = bytes(byte for byte in range(256) if byte not in _PUNCTUATION + b'"')


class InvalidAnswer(Exception):
    """The runtime answered, in a sound frame, with what the method doesn't promise; ``str()`` names the field."""


@dataclass(frozen=True)
class CheckedJSON:
    """An answer that was checked elsewhere, as JSON."""

    json: bytes


@dataclass(frozen=True)
class Verdict:
    """What ``check`` found: ``answer`` unless ``fault`` (the runtime answered with an error) or ``invalid`` says why not."""

    request_id: int
    answer: CheckedJSON | None = None
    fault: Fault | None = None
    message: str = ""
    invalid: str | None = None


def is_light(body: bytes | bytearray) -> bool:
    """Tell whether a frame's body costs no more than a few milliseconds to parse, whatever it holds."""
    return len(body) <= LIGHT_BYTES and not has_more_values(body, LIGHT_VALUES)


def has_more_values(body: bytes | bytearray, limit: int) -> bool:
    """Tell whether a JSON text holds more values than ``limit``, give or take a few, without parsing it.

    Exact of what a parser would read of it, also if it breaks off at a mistake: until there all quotes come in pairs.
    """
    if len(body) <= limit or len(body.translate(None, _NO_PUNCTUATION)) <= limit:
        return False
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    structure = unescaped.translate(None, _NO_STRUCTURE)
    if structure.count(b'"') > 2 * limit + 2:  # so many strings, each a value or a name
        return True
    outside = structure.split(b'"')[::2]
    return sum(map(len, outside)) > limit


def check(body: bytes, asked: Mapping[int, Method]) -> Verdict:
    """Parse and check the answer in a frame's body to one of the requests in ``asked``.

    Raises:
        frames.FrameError: it isn't JSON, or holds too many values.
        messages.MessageError: it is no answer, or to no open request.
    """
    if has_more_values(body, MAX_VALUES):
        raise frames.FrameError(f"a frame with more than {MAX_VALUES} values")
    response = messages.parse_message(frames.parse_body(body))
    if not isinstance(response, Response):
        raise messages.MessageError("a runtime may only answer")
    if response.id not in asked:
        raise messages.MessageError("an answer to no open request")
    if response.error is not None:
        return Verdict(response.id, fault=response.error.data.fault, message=response.error.message[:MAX_FAULT_CHARS])
    try:
        return Verdict(response.id, CheckedJSON(as_json(asked[response.id], response.result)))
    except InvalidAnswer as exc:
        return Verdict(response.id, invalid=str(exc))


def as_json(method: Method, value: Any) -> bytes:
    """Return a method's answer as JSON.

    Raises:
        InvalidAnswer: it isn't what the method promises.
    """
    if isinstance(value, CheckedJSON):
        return value.json
    return checked_json(method, value)


def as_value(method: Method, value: Any) -> Any:
    """Return a method's answer as the value that the method promises.

    Raises:
        InvalidAnswer: it isn't that.
    """
    if isinstance(value, CheckedJSON):
        return adapter(method).validate_json(value.json)
    return _validated(method, value)


def checked_json(method: Method, value: Any, *, ignore_extra: bool = False, exclude_none: bool = False) -> bytes:
    """Return a value as a method's answer, as JSON; ``ignore_extra`` leaves out fields that are not known.

    Raises:
        InvalidAnswer: it isn't what the method promises.
    """
    checked = _validated(method, value, ignore_extra=ignore_extra)
    return adapter(method).serializer.to_json(checked, exclude_none=exclude_none)


def _validated(method: Method, value: Any, *, ignore_extra: bool = False) -> Any:
    # The adapter's parts: what it does around them takes as long as they do with a small answer.
    try:
        return adapter(method).validator.validate_python(value, extra="ignore" if ignore_extra else None)
    except ValidationError as exc:
        raise InvalidAnswer(describe(exc)[:500]) from exc


def adapter(method: Method) -> TypeAdapter[Any]:
    """Return what a method's answer is checked by."""
    return _ADAPTERS.get(method, _ANYTHING)
