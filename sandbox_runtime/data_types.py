"""The data types of ORS, as its documents give them ("Data Types"), with the newer public SDK's fields where the two differ.

Pure, no I/O. The host has them from ``messages``, which is all that it needs to know of this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

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


class TerminalToolSpec(_Strict):
    """The tool that ends an episode and that no model sees: the harness gives it the model's last message, as ``arg``.

    ``arg`` is None for a tool that takes no parameter and looks at the environment only.
    """

    name: str
    arg: str | None = None
    description: str = ""


class ListToolsOutput(_Strict):
    """The answer of ``GET /{env}/tools`` and ``/task_tools``.

    What stands beside ``tools`` only some environments have; of the others' answers it is no part, not even as null.
    """

    tools: list[ToolSpec]
    terminal_tool: TerminalToolSpec | None = None
    supports_score_group: bool | None = None
    message_block_types: list[str] | None = None

    @model_serializer(mode="wrap")
    def _leave_out_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = handler(self)
        return {name: value for name, value in fields.items() if name == "tools" or name in self.model_fields_set}


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


# --- Conversations ----------------------------------------------------------------------------------------------------


class ReasoningBlock(_Strict):
    """What the assistant thought; ``signature`` is its provider's, passed through."""

    text: str
    signature: str | None = None
    detail: JSONObject | None = None
    type: Literal["reasoning"] = "reasoning"


class ToolCallBlock(_Strict):
    """A tool that the assistant called."""

    id: str
    name: str
    input: JSONObject
    detail: JSONObject | None = None
    type: Literal["tool_call"] = "tool_call"


class ToolResultBlock(_Strict):
    """What a tool returned, in the user's turn that follows the call."""

    tool_call_id: str
    blocks: Blocks
    is_error: bool = False
    detail: JSONObject | None = None
    type: Literal["tool_result"] = "tool_result"


MessageBlock = TextBlock | ImageBlock | ReasoningBlock | ToolCallBlock | ToolResultBlock

_BLOCKS_OF_ROLE = {
    "system": {"text", "image"},
    "user": {"text", "image", "tool_result"},
    "assistant": {"text", "image", "reasoning", "tool_call"},
}


class Message(_Strict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    blocks: Sequence[Annotated[MessageBlock, Field(discriminator="type")]]
    detail: JSONObject | None = None

    @model_validator(mode="after")
    def _blocks_are_the_roles(self) -> Message:
        for block in self.blocks:
            if block.type not in _BLOCKS_OF_ROLE[self.role]:
                raise ValueError(f"a {block.type} block can't be in a turn of the {self.role}")
        return self


class GroupCandidate(_Strict):
    """One of the rollouts that are scored together: what was said in it, and data of the trainer's own."""

    messages: list[Message]
    metadata: JSONObject | None = None


class GroupScore(_Strict):
    """One candidate's score, relative to the others."""

    reward: Annotated[float, Field(allow_inf_nan=False)]
    metadata: JSONObject | None = None


class ScoreGroup(_Strict):
    """The body of ``POST /{env}/score_group``; ``task_id`` is as in ``ToolCall``."""

    candidates: list[GroupCandidate]
    task_id: str | None = None


class ScoreGroupOutput(_Strict):
    """The data of the ``end`` event of ``POST /{env}/score_group``: one score for each candidate, in their order."""

    scores: list[GroupScore]


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
