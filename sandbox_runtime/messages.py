"""The vocabulary that host and runtime share: the data types of ORS, and the messages of the channel. Pure, no I/O.

The data types are in ``data_types.py``, and all to be had from here. The channel speaks JSON-RPC 2.0 inside frames
(``frames.py``):

1. The runtime dials and its first message is the request ``hello`` (``Hello``). The host answers with ``Welcome``, or closes.
2. After that the host asks (``Method``) and the runtime answers, many requests in flight at once, in any order.
3. ``cancel`` (``{"id": N}``) is a notification from the host. A cancelled request is still answered, once, and only when what
   it started has ended; a host that gets no answer in its grace period removes the container.
4. An error answer carries a ``Fault`` in ``data.fault``, so that the host never needs to read the message to know what it is.
5. Work outlives the connection that asked for it. When a host comes back, ``hello`` tells it of the episode and its calls, it
   asks for their results (``result``) and for ``setup`` again, which both wait for what is running and never run it twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import CoreSchema, SchemaValidator
from pydantic_core import core_schema as cs

from .data_types import (
    Block,
    Blocks,
    ImageBlock,
    JSONObject,
    ListToolsOutput,
    RunToolError,
    RunToolErrorReason,
    RunToolOutput,
    RunToolSuccess,
    Split,
    SplitType,
    TerminalToolSpec,
    TextBlock,
    ToolOutput,
    ToolSpec,
)

if TYPE_CHECKING:
    from .conversations import (
        GroupCandidate,
        GroupScore,
        Message,
        MessageBlock,
        ReasoningBlock,
        ScoreGroupOutput,
        ToolCallBlock,
        ToolResultBlock,
    )
    from .greeting import EpisodeState, Hello, Welcome

__all__ = [
    "APPLICATION_ERROR",
    "PROTOCOL_VERSION",
    "Block",
    "Blocks",
    "EpisodeState",
    "ErrorBody",
    "ErrorData",
    "Fault",
    "GroupCandidate",
    "GroupScore",
    "Hello",
    "ImageBlock",
    "JSONObject",
    "ListToolsOutput",
    "Message",
    "MessageBlock",
    "MessageError",
    "Method",
    "ReasoningBlock",
    "Request",
    "Response",
    "RunToolError",
    "RunToolErrorReason",
    "RunToolOutput",
    "RunToolSuccess",
    "ScoreGroupOutput",
    "Split",
    "SplitType",
    "TerminalToolSpec",
    "TextBlock",
    "ToolCallBlock",
    "ToolOutput",
    "ToolResultBlock",
    "ToolSpec",
    "Welcome",
    "describe",
    "error",
    "error_body",
    "hello",
    "notification",
    "parse_message",
    "request",
    "result",
]

_GREETING = frozenset({"EpisodeState", "Hello", "Welcome"})


def __getattr__(name: str) -> Any:
    """Import what is rarely asked for only then: a model costs half a millisecond of each runtime's start."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".greeting" if name in _GREETING else ".conversations", __package__), name)


PROTOCOL_VERSION = 1


class Method(StrEnum):
    """What a host asks a runtime. Beside each: params → result."""

    LIST_TOOLS = "list_tools"  # {env} → ListToolsOutput
    LIST_SPLITS = "list_splits"  # {env} → [Split]
    LIST_TASKS = "list_tasks"  # {env, split} → [task]
    NUM_TASKS = "num_tasks"  # {env, split} → int
    GET_TASK = "get_task"  # {env, split, index} → task
    GET_TASK_RANGE = "get_task_range"  # {env, split, start, stop} → [task]
    CREATE = "create"  # {env, task_spec, secrets, toolset_name} → null; constructs the environment, once per runtime
    SETUP = "setup"  # {} → null; runs once per episode, however often it is asked for
    PROMPT = "prompt"  # {} → Blocks
    MESSAGES = "messages"  # {} → [Message]
    TASK_TOOLS = "task_tools"  # {} → ListToolsOutput
    CALL = "call"  # {call_id, name, input} → RunToolOutput; runs once per call_id
    SCORE_GROUP = "score_group"  # {call_id, candidates} → ScoreGroupOutput; a call as the other
    RESULT = (
        "result"  # {call_id} → what that call's is, of one that was asked for before, on this connection or another
    )
    TEARDOWN = "teardown"  # {} → null


class Fault(StrEnum):
    """Why a runtime answers with an error."""

    INVALID_SPLIT = "invalid_split"
    INVALID_INDEX = "invalid_index"
    NOT_SUPPORTED = "not_supported"  # the environment does not offer it: list_tasks, messages, score_group
    INVALID_TOOLSET = "invalid_toolset"
    ENVIRONMENT_RAISED = "environment_raised"  # the author's code raised; the message is "Type: text"
    BAD_RESULT = "bad_result"  # the author's code returned what it may not
    RESULT_TOO_LARGE = "result_too_large"
    UNKNOWN_CALL = "unknown_call"  # no such call, or its result is no longer kept
    CANCELLED = "cancelled"
    BAD_REQUEST = "bad_request"  # the host asked what makes no sense: unknown method, wrong params, wrong order


class Request(NamedTuple):
    """A request, or a notification where ``id`` is None."""

    method: str
    params: dict[str, Any] = {}
    id: int | None = None
    jsonrpc: str = "2.0"


class ErrorData(NamedTuple):
    """The ``data`` of an error answer."""

    fault: Fault


class ErrorBody(NamedTuple):
    """The ``error`` of an error answer."""

    code: int
    message: str
    data: ErrorData


class Response(NamedTuple):
    """An answer: ``result`` (which may be null) or ``error``."""

    id: int
    result: Any = None
    error: ErrorBody | None = None
    jsonrpc: str = "2.0"


APPLICATION_ERROR = -32000
"""JSON-RPC's code for every error here; ``data.fault`` tells them apart."""


def _object(kind: Any, **members: CoreSchema) -> CoreSchema:
    """Return the schema of a JSON object with these members, and no others, that becomes a ``kind``."""
    optional = kind._field_defaults
    fields = {name: cs.typed_dict_field(schema, required=name not in optional) for name, schema in members.items()}
    return cs.no_info_after_validator_function(
        lambda values: kind(**values), cs.typed_dict_schema(fields, extra_behavior="forbid")
    )


# Written down rather than derived from classes: that would take a tenth of the runtime's start.
_INT, _STR, _VERSION = cs.int_schema(strict=True), cs.str_schema(strict=True), cs.literal_schema(["2.0"])
_request = SchemaValidator(
    _object(
        Request, method=_STR, params=cs.dict_schema(keys_schema=_STR), id=cs.nullable_schema(_INT), jsonrpc=_VERSION
    )
)
_response = SchemaValidator(
    _object(
        Response,
        id=_INT,
        result=cs.any_schema(),
        error=cs.nullable_schema(
            _object(
                ErrorBody,
                code=_INT,
                message=_STR,
                data=_object(ErrorData, fault=cs.enum_schema(Fault, list(Fault), sub_type="str")),
            )
        ),
        jsonrpc=_VERSION,
    )
)


class MessageError(Exception):
    """The peer sent a JSON object that is no message of this vocabulary."""


def parse_message(message: dict[str, Any]) -> Request | Response:
    """Return the frame's object as a request (or notification) or an answer.

    Raises:
        MessageError: it is neither.
    """
    try:
        parsed: Request | Response = (_request if "method" in message else _response).validate_python(message)
    except ValidationError as exc:
        raise MessageError(describe(exc)) from exc
    if isinstance(parsed, Response) and parsed.error is not None and parsed.result is not None:
        raise MessageError("an answer has a result or an error, not both")
    return parsed


def hello(
    *,
    token: str,
    runtime_version: str,
    environments: Sequence[str],
    agent_goes_first: bool = False,
    episode: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the params of hello (``Hello``) as a JSON object."""
    return {
        "protocol": PROTOCOL_VERSION,
        "token": token,
        "runtime_version": runtime_version,
        "environments": list(environments),
        "agent_goes_first": agent_goes_first,
        "episode": episode,
    }


def request(request_id: int, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as a JSON object."""
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def notification(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a notification as a JSON object."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def result(request_id: int, value: Any) -> dict[str, Any]:
    """Return a successful answer as a JSON object."""
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def error(request_id: int, fault: Fault, message: str) -> dict[str, Any]:
    """Return an error answer as a JSON object."""
    return {"jsonrpc": "2.0", "id": request_id, "error": error_body(fault, message)}


def error_body(fault: Fault, message: str) -> dict[str, Any]:
    """Return the ``error`` of an error answer."""
    return {"code": APPLICATION_ERROR, "message": message, "data": {"fault": fault}}


def describe(exc: ValidationError) -> str:
    """Return a validation error as one sentence that names the field and what was expected, without echoing the input."""
    parts = []
    for item in exc.errors(include_url=False, include_input=False, include_context=False):
        field = ".".join(str(step) for step in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        parts.append(f"{field}: {message}" if field else message)
    return "; ".join(parts)
