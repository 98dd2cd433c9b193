"""The data types of ORS for conversations, and for rollouts that are scored together. Few environments have them.

Pure, no I/O. To be had from ``messages``, as all data types are, and imported only by whom asks for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from .data_types import Blocks, ImageBlock, JSONObject, Strict, TextBlock


class ReasoningBlock(Strict):
    """What the assistant thought; ``signature`` is its provider's, passed through."""

    text: str
    signature: str | None = None
    detail: JSONObject | None = None
    type: Literal["reasoning"] = "reasoning"


class ToolCallBlock(Strict):
    """A tool that the assistant called."""

    id: str
    name: str
    input: JSONObject
    detail: JSONObject | None = None
    type: Literal["tool_call"] = "tool_call"


class ToolResultBlock(Strict):
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


class Message(Strict):
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


class GroupCandidate(Strict):
    """One of the rollouts that are scored together: what was said in it, and data of the trainer's own."""

    messages: list[Message]
    metadata: JSONObject | None = None


class GroupScore(Strict):
    """One candidate's score, relative to the others."""

    reward: Annotated[float, Field(allow_inf_nan=False)]
    metadata: JSONObject | None = None


class ScoreGroupOutput(Strict):
    """The data of the ``end`` event of ``POST /{env}/score_group``: one score for each candidate, in their order."""

    scores: list[GroupScore]
