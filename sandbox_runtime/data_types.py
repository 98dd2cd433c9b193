"""The data types of ORS, as its documents give them ("Data Types"), with the newer public SDK's fields where the two differ.

Pure, no I/O. The host has them from ``messages``, which is all that it needs to know of this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic_core import CoreSchema

JSONObject = Mapping[str, Any]


class Strict(BaseModel):
    """A model that takes no field but its own."""

    # Validators are made when they are first needed: most of these never are in a runtime, whose start it would double.
    model_config = ConfigDict(extra="forbid", defer_build=True)


# --- Blocks -----------------------------------------------------------------------------------------------------------


class TextBlock(Strict):
    """Text content; ``detail`` is optional metadata about it."""

    text: str
    detail: JSONObject | None = None
    type: Literal["text"] = "text"


class ImageBlock(Strict):
    """An image: ``data`` is base64, ``mimeType`` for example ``image/png``."""

    data: str
    mimeType: str
    detail: JSONObject | None = None
    type: Literal["image"] = "image"


Block = TextBlock | ImageBlock


class _ReadAsList:
    """Any sequence is taken, and read as a list: pydantic reads and writes other sequences with steps in Python."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(list[get_args(source)[0]])  # type: ignore[misc]


Blocks = Annotated[Sequence[Annotated[Block, Field(discriminator="type")]], _ReadAsList]


# --- Tools ------------------------------------------------------------------------------------------------------------


class ToolSpec(Strict):
    """One tool; ``input_schema`` is its JSON Schema, or None if it takes no parameter (never left out on the wire)."""

    name: str
    description: str
    input_schema: JSONObject | None


class TerminalToolSpec(Strict):
    """The tool that ends an episode and that no model sees: the harness gives it the model's last message, as ``arg``.

    ``arg`` is None for a tool that takes no parameter and looks at the environment only.
    """

    name: str
    arg: str | None = None
    description: str = ""


class ListToolsOutput(Strict):
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


class ToolOutput(Strict):
    """What a tool returns. A reward is a finite number or None: a lost reward must not look like none."""

    blocks: Annotated[Blocks, Field(min_length=1)]
    metadata: JSONObject | None = None
    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    finished: bool = False


class RunToolSuccess(Strict):
    """The tool ran; only this carries a reward."""

    ok: Literal[True] = True
    output: ToolOutput


RunToolErrorReason = Literal["not_found", "name_collision", "input_validation", "episode_finished"]


class RunToolError(Strict):
    """The tool was not run, ``reason`` says why. (A tool that raised is not this: its stream ends with ``error``.)"""

    ok: Literal[False] = False
    error: str
    reason: RunToolErrorReason | None = None


RunToolOutput = Annotated[RunToolSuccess | RunToolError, Field(discriminator="ok")]
"""The data of the ``end`` event of ``POST /{env}/call``."""


# --- Tasks and splits -------------------------------------------------------------------------------------------------

SplitType = Literal["train", "validation", "test"]


class Split(Strict):
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


def complete_models() -> None:
    """Make the validators of what authors construct, before threads of theirs can ask for them at once."""
    for model in (TextBlock, ImageBlock, ToolOutput, ToolSpec, ListToolsOutput, Split):
        model.model_rebuild()
