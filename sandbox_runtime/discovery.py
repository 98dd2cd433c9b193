"""Questions about an environment's class: its tools, splits and tasks. No episode is needed to answer them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from . import results
from .environment import Environment, cached_tasks
from .faults import RequestFault, call_author
from .messages import Fault, ListToolsOutput, Split

LIST_TASKS_NOT_SUPPORTED = (
    "list_tasks is not supported for this environment. Use the index-based API (num_tasks + get_task) instead."
)
"""Clients look for "not supported" and "index" in it."""

_splits: WeakKeyDictionary[type[Environment], list[Split]] = WeakKeyDictionary()

EnvironmentClass = type[Environment]


async def list_tools(env: EnvironmentClass) -> ListToolsOutput:
    """Return the tools that every task of ``env`` has."""
    return results.tools(await call_author(env.list_tools), f"{env.__name__}.list_tools")


async def list_splits(env: EnvironmentClass) -> list[Split]:
    """Return the splits of ``env``; the class is asked once."""
    if env not in _splits:
        _splits[env] = results.splits(await call_author(env.list_splits), f"{env.__name__}.list_splits")
    return _splits[env]


async def list_tasks(env: EnvironmentClass, split: str) -> list[Mapping[str, Any]]:
    """Return all tasks of ``split``."""
    await _check_split(env, split)
    try:
        found = await call_author(cached_tasks, env, split, passing=(NotImplementedError,))
    except NotImplementedError as exc:
        raise RequestFault(Fault.NOT_SUPPORTED, LIST_TASKS_NOT_SUPPORTED) from exc
    return results.tasks(found, f"{env.__name__}.list_tasks")


async def num_tasks(env: EnvironmentClass, split: str) -> int:
    """Return how many tasks ``split`` has."""
    await _check_split(env, split)
    return results.count(await call_author(env.num_tasks, split), f"{env.__name__}.num_tasks")


async def get_task(env: EnvironmentClass, split: str, index: int) -> Mapping[str, Any]:
    """Return the task at ``index``; -1 is the last."""
    await _check_split(env, split)
    try:
        found = await call_author(env.get_task, split, index, passing=(IndexError,))
    except IndexError as exc:
        raise RequestFault(Fault.INVALID_INDEX, "Invalid index") from exc
    return results.task(found, f"{env.__name__}.get_task")


async def get_task_range(
    env: EnvironmentClass, split: str, start: int | None, stop: int | None
) -> list[Mapping[str, Any]]:
    """Return the tasks from ``start`` to ``stop``, as in a slice."""
    await _check_split(env, split)
    try:
        found = await call_author(env.get_task_range, split, start, stop, passing=(IndexError,))
    except IndexError as exc:
        raise RequestFault(Fault.INVALID_INDEX, "Invalid index range") from exc
    return results.tasks(found, f"{env.__name__}.get_task_range")


async def _check_split(env: EnvironmentClass, split: str) -> None:
    if all(known.name != split for known in await list_splits(env)):
        raise RequestFault(Fault.INVALID_SPLIT, "Invalid split")
