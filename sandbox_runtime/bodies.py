"""What clients send to ORS endpoints. For hosts, and for whoever writes a client; a runtime never sees them.

Pure, no I/O.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from .conversations import GroupCandidate
from .data_types import Strict


class ListTasks(Strict):
    """The body of ``POST /{env}/tasks``."""

    split: str


class NumTasks(Strict):
    """The body of ``POST /{env}/num_tasks``."""

    split: str


class GetTask(Strict):
    """The body of ``POST /{env}/task``."""

    split: str
    index: int


class GetTaskRange(Strict):
    """The body of ``POST /{env}/task_range``: ``start`` inclusive, ``stop`` exclusive, negative and None as in a slice."""

    split: str
    start: int | None = None
    stop: int | None = None


class CreateSession(Strict):
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


class ToolCall(Strict):
    """The body of ``POST /{env}/call``; ``task_id`` reconnects to a call, or names a new one."""

    name: str
    input: dict[str, Any]
    task_id: str | None = None


class ScoreGroup(Strict):
    """The body of ``POST /{env}/score_group``; ``task_id`` is as in ``ToolCall``."""

    candidates: list[GroupCandidate]
    task_id: str | None = None
