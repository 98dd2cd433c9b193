"""Environments written for PyPI ``openreward``: conversations, groups, a toolset per session, a terminal tool besides."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from . import results
from .faults import RequestFault, call_author, describe_exception, exception_text, log_exception
from .messages import Fault, ListToolsOutput, Message, RunToolError, ScoreGroupOutput
from .ors_sdk import OrsClass, OrsEnvironment
from .output import shorten
from .served import MAX_NAME_CHARS, BoundTool, ServedEnvironment, construct


class OpenRewardClass(OrsClass):
    """A subclass of the SDK's ``Environment``."""

    @property
    def scores_groups(self) -> bool:
        """True if it can score rollouts of one task against each other."""
        supports = getattr(self.cls, "_supports_score_group", None)
        return supports is not None and bool(supports())

    async def check(self) -> None:
        await super().check()
        surfaces = [name for name in ("get_prompt", "get_messages") if hasattr(self.base, name)]
        if all(getattr(self.cls, name) is getattr(self.base, name) for name in surfaces):
            raise ValueError(f"it has no prompt: define {' or '.join(surfaces)}")

    async def list_tasks(self, split: str) -> list[Any]:
        # Not kept: the SDK keeps a list of its own for its other methods, and one may be large.
        found = await call_author(self.cls.list_tasks, split, passing=(NotImplementedError,))
        return results.tasks(found, f"{self.cls.__name__}.list_tasks")

    def _overrides(self, method: str) -> bool:
        return True  # its own defaults are as good as ours

    async def create(
        self, task_spec: Mapping[str, Any], secrets: Mapping[str, str], toolset_name: str | None
    ) -> ServedEnvironment:
        toolset = None if toolset_name is None else _builtin_toolset(toolset_name)
        env = await call_author(construct, self.cls, dict(task_spec), dict(secrets))
        served = OpenRewardEnvironment(self, env)
        if toolset is not None:
            await served.add_toolset(toolset)
        return served


class OpenRewardEnvironment(OrsEnvironment):
    """An instance of such a class."""

    _served: OpenRewardClass
    _session_toolset: Any = None

    async def add_toolset(self, toolset: type[Any]) -> None:
        """Give the session a toolset, whose tools come before the environment's own.

        Raises:
            RequestFault: ``invalid_toolset``: it can't be used with this environment.
        """
        try:
            self._session_toolset = await call_author(toolset, self._env, passing=(Exception,))
        except Exception as exc:
            log_exception(exc)
            raise RequestFault(
                Fault.INVALID_TOOLSET, f"the toolset can't be used here: {describe_exception(exc)}"
            ) from exc

    async def messages(self) -> list[Message]:
        if not hasattr(self._served.base, "get_messages"):
            return await super().messages()
        return results.messages(await call_author(self._env.get_messages), self._source("get_messages"))

    async def task_tools(self) -> ListToolsOutput:
        session = sys.modules.get("openreward.environments.session")
        if session is None:
            return await super().task_tools()
        listed = await call_author(session.list_session_tools, self._env, self._session_toolset)
        return results.tools(listed, self._source("list_task_tools"), self.types)

    async def tool(self, name: str) -> BoundTool | RunToolError:
        if self._session_toolset is not None:
            found = await self._look_up(self._session_toolset, name)
            if found is not None:
                return found
        return await super().tool(name)

    async def score_group(self, candidates: Sequence[Mapping[str, Any]]) -> ScoreGroupOutput:
        if not self._served.scores_groups:
            return await super().score_group(candidates)
        model = sys.modules[self._served.base.__module__].GroupCandidate
        group = [model.model_validate(candidate) for candidate in candidates]
        found = await call_author(self._env.score_group, group, describe=exception_text)
        return ScoreGroupOutput(scores=results.group_scores(found, "score_group", len(group)))


def _builtin_toolset(name: str) -> type[Any]:
    known: Mapping[str, type[Any]] = getattr(importlib.import_module("openreward.toolsets"), "BUILTIN_TOOLSETS", {})
    if name not in known:
        raise RequestFault(
            Fault.INVALID_TOOLSET,
            f"no toolset {shorten(name, MAX_NAME_CHARS)!r}; the installed openreward has {', '.join(sorted(known)) or 'none'}",
        )
    return known[name]
