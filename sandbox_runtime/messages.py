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

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from .data_types import (
    Block,
    Blocks,
    GroupCandidate,
    GroupScore,
    ImageBlock,
    JSONObject,
    ListToolsOutput,
    Message,
    MessageBlock,
    ReasoningBlock,
    RunToolError,
    RunToolErrorReason,
    RunToolOutput,
    RunToolSuccess,
    ScoreGroupOutput,
    Split,
    SplitType,
    Strict,
    TerminalToolSpec,
    TextBlock,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
    ToolSpec,
)

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
    "notification",
    "parse_message",
    "request",
    "result",
]

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


class EpisodeState(Strict):
    """What a host that comes back must know of the episode: its environment, and its calls, the forgotten ones included."""

    environment: str
    running_calls: list[str]
    finished_calls: list[str]
    forgotten_calls: list[str]


EnvironmentName = Annotated[str, Field(max_length=128, pattern=r"^[^\W\d]\w*$")]
"""A Python class's name: it becomes a part of paths and of log lines."""


class Hello(Strict):
    """Params of the runtime's first message. ``environments`` are the names of its classes, in the order given.

    ``agent_goes_first``: when memory is short, the agent's processes can be held to going before the runtime. ``episode`` is
    None until the environment is constructed, and again from ``teardown`` on.
    """

    protocol: int
    token: str = Field(repr=False)
    runtime_version: str
    environments: Annotated[list[EnvironmentName], Field(max_length=1000)]
    agent_goes_first: bool = False
    episode: EpisodeState | None = None


class Welcome(Strict):
    """The host's answer to ``hello``."""

    max_frame_bytes: int


class Request(Strict):
    """A request, or a notification where ``id`` is None."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: int | None = None
    method: str
    params: dict[str, Any] = Field(default_factory=dict)


class ErrorData(Strict):
    """The ``data`` of an error answer."""

    fault: Fault


class ErrorBody(Strict):
    """The ``error`` of an error answer."""

    code: int
    message: str
    data: ErrorData


class Response(Strict):
    """An answer: ``result`` (which may be null) or ``error``."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: int
    result: Any = None
    error: ErrorBody | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Response:
        if self.error is not None and self.result is not None:
            raise ValueError("an answer has a result or an error, not both")
        return self


APPLICATION_ERROR = -32000
"""JSON-RPC's code for every error here; ``data.fault`` tells them apart."""

_request = TypeAdapter(Request)
_response = TypeAdapter(Response)


class MessageError(Exception):
    """The peer sent a JSON object that is no message of this vocabulary."""


def parse_message(message: dict[str, Any]) -> Request | Response:
    """Return the frame's object as a request (or notification) or an answer.

    Raises:
        MessageError: it is neither.
    """
    try:
        if "method" in message:
            return _request.validate_python(message)
        return _response.validate_python(message)
    except ValidationError as exc:
        raise MessageError(describe(exc)) from exc


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
