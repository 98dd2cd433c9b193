"""The vocabulary that host and runtime share: the data types of ORS, and the messages of the channel. Pure, no I/O.

The data types are those of the ORS documents ("Data Types"), with the fields of the newer public SDK where the two differ.
The channel speaks JSON-RPC 2.0 inside frames (``frames.py``):

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
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter, ValidationError, model_validator

PROTOCOL_VERSION = 1

JSONObject = Mapping[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


# --- Blocks -----------------------------------------------------------------------------------------------------------


class TextBlock(_Strict):
    """Text content; ``detail`` is optional metadata about it."""

    text: str
    detail: JSONObject | None = None
    type: Literal["text"] = "text"


class ImageBlock(_Strict):
    """An image: ``data`` is base64, ``mimeType`` for example ``image/png``."""

    data: str
    mimeType: str
    detail: JSONObject | None = None
    type: Literal["image"] = "image"


Block = TextBlock | ImageBlock
Blocks = Sequence[Annotated[Block, Field(discriminator="type")]]


# --- Tools ------------------------------------------------------------------------------------------------------------


class ToolSpec(_Strict):
    """One tool; ``input_schema`` is its JSON Schema, or None if it takes no parameter (never left out on the wire)."""

    name: str
    description: str
    input_schema: JSONObject | None


class ListToolsOutput(_Strict):
    """The answer of ``GET /{env}/tools`` and ``/task_tools``."""

    tools: list[ToolSpec]


class ToolOutput(_Strict):
    """What a tool returns. A reward is a finite number or None: a lost reward must not look like none."""

    blocks: Annotated[Blocks, Field(min_length=1)]
    metadata: JSONObject | None = None
    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    finished: bool = False


class RunToolSuccess(_Strict):
    """The tool ran; only this carries a reward."""

    ok: Literal[True] = True
    output: ToolOutput


RunToolErrorReason = Literal["not_found", "name_collision", "input_validation", "episode_finished"]


class RunToolError(_Strict):
    """The tool was not run, ``reason`` says why. (A tool that raised is not this: its stream ends with ``error``.)"""

    ok: Literal[False] = False
    error: str
    reason: RunToolErrorReason | None = None


class RunToolOutput(RootModel[Annotated[RunToolSuccess | RunToolError, Field(discriminator="ok")]]):
    """The data of the ``end`` event of ``POST /{env}/call``."""


# --- Tasks and splits -------------------------------------------------------------------------------------------------

SplitType = Literal["train", "validation", "test"]


class Split(_Strict):
    """A named list of tasks."""

    name: str
    type: SplitType

    @classmethod
    def of(cls, split: Split | str) -> Split:
        """Return a split for a bare name: the three well-known names are their own type, others are ``validation``."""
        if isinstance(split, Split):
            return split
        if split in ("train", "validation", "test"):
            return cls(name=split, type=split)
        return cls(name=split, type="validation")


class ListTasks(_Strict):
    """The body of ``POST /{env}/tasks``."""

    split: str


class NumTasks(_Strict):
    """The body of ``POST /{env}/num_tasks``."""

    split: str


class GetTask(_Strict):
    """The body of ``POST /{env}/task``."""

    split: str
    index: int


class GetTaskRange(_Strict):
    """The body of ``POST /{env}/task_range``: ``start`` inclusive, ``stop`` exclusive, negative and None as in a slice."""

    split: str
    start: int | None = None
    stop: int | None = None


# --- Bodies of the session routes -------------------------------------------------------------------------------------


class CreateSession(_Strict):
    """The body of ``POST /create``: exactly one of ``task_spec`` and ``split`` + ``index``."""

    env_name: str | None = None
    task_spec: dict[str, Any] | None = None
    split: str | None = None
    index: int | None = None
    secrets: dict[str, str] | None = Field(default=None, repr=False)
    toolset_name: str | None = None

    @model_validator(mode="after")
    def _one_task_source(self) -> CreateSession:
        if (self.split is None) != (self.index is None):
            raise ValueError("'split' and 'index' must be given together")
        if (self.task_spec is None) == (self.split is None):
            raise ValueError("give either 'task_spec' or both 'split' and 'index', not both and not neither")
        return self


class ToolCall(_Strict):
    """The body of ``POST /{env}/call``; ``task_id`` reconnects to a call, or names a new one."""

    name: str
    input: dict[str, Any]
    task_id: str | None = None


# --- The channel ------------------------------------------------------------------------------------------------------


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
    TASK_TOOLS = "task_tools"  # {} → ListToolsOutput
    CALL = "call"  # {call_id, name, input} → RunToolOutput; runs once per call_id
    RESULT = "result"  # {call_id} → RunToolOutput, of a call that was asked for before, on this connection or another
    TEARDOWN = "teardown"  # {} → null


class Fault(StrEnum):
    """Why a runtime answers with an error."""

    INVALID_SPLIT = "invalid_split"
    INVALID_INDEX = "invalid_index"
    NOT_SUPPORTED = "not_supported"  # the environment does not offer it (list_tasks raised NotImplementedError)
    INVALID_TOOLSET = "invalid_toolset"
    ENVIRONMENT_RAISED = "environment_raised"  # the author's code raised; the message is "Type: text"
    BAD_RESULT = "bad_result"  # the author's code returned what it may not
    RESULT_TOO_LARGE = "result_too_large"
    UNKNOWN_CALL = "unknown_call"  # no such call, or its result is no longer kept
    CANCELLED = "cancelled"
    BAD_REQUEST = "bad_request"  # the host asked what makes no sense: unknown method, wrong params, wrong order


class EpisodeState(_Strict):
    """What a host that comes back must know of the episode: its environment, and its calls, the forgotten ones included."""

    environment: str
    running_calls: list[str]
    finished_calls: list[str]
    forgotten_calls: list[str]


class Hello(_Strict):
    """Params of the runtime's first message. ``environments`` are the names of its classes, in the order given.

    ``episode`` is None until the environment is constructed, and again from ``teardown`` on.
    """

    protocol: int
    token: str = Field(repr=False)
    runtime_version: str
    environments: list[str]
    episode: EpisodeState | None = None


class Welcome(_Strict):
    """The host's answer to ``hello``."""

    max_frame_bytes: int


class Request(_Strict):
    """A request, or a notification where ``id`` is None."""

    jsonrpc: Literal["2.0"] = "2.0"
    id: int | None = None
    method: str
    params: dict[str, Any] = Field(default_factory=dict)


class ErrorData(_Strict):
    """The ``data`` of an error answer."""

    fault: Fault


class ErrorBody(_Strict):
    """The ``error`` of an error answer."""

    code: int
    message: str
    data: ErrorData


class Response(_Strict):
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
    body = {"code": APPLICATION_ERROR, "message": message, "data": {"fault": fault}}
    return {"jsonrpc": "2.0", "id": request_id, "error": body}


def describe(exc: ValidationError) -> str:
    """Return a validation error as one sentence that names the field and what was expected, without echoing the input."""
    parts = []
    for item in exc.errors(include_url=False, include_input=False, include_context=False):
        field = ".".join(str(step) for step in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        parts.append(f"{field}: {message}" if field else message)
    return "; ".join(parts)
