"""Questions about an environment's class: its tools, splits and tasks. No episode is needed to answer them."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from .faults import RequestFault
from .messages import Fault, Split
from .served import ServedClass

LIST_TASKS_NOT_SUPPORTED = (
    "list_tasks is not supported for this environment. Use the index-based API (num_tasks + get_task) instead."
)
"""Clients look for "not supported" and "index" in it."""

_splits: WeakKeyDictionary[type, list[Split]] = WeakKeyDictionary()


async def list_splits(env: ServedClass) -> list[Split]:
    """Return the splits of ``env``; the class is asked once."""
    if env.cls not in _splits:
        _splits[env.cls] = await env.list_splits()
    return _splits[env.cls]


async def list_tasks(env: ServedClass, split: str) -> list[Any]:
    """Return all tasks of ``split``."""
    await _check_split(env, split)
    try:
        return await env.list_tasks(split)
    except NotImplementedError as exc:
        raise RequestFault(Fault.NOT_SUPPORTED, LIST_TASKS_NOT_SUPPORTED) from exc


async def num_tasks(env: ServedClass, split: str) -> int:
    """Return how many tasks ``split`` has."""
    await _check_split(env, split)
    return await env.num_tasks(split)


async def get_task(env: ServedClass, split: str, index: int) -> Any:
    """Return the task at ``index``; -1 is the last."""
    await _check_split(env, split)
    try:
        return await env.get_task(split, index)
    except IndexError as exc:
        raise RequestFault(Fault.INVALID_INDEX, "Invalid index") from exc


async def get_task_range(env: ServedClass, split: str, start: int | None, stop: int | None) -> list[Any]:
    """Return the tasks from ``start`` to ``stop``, as in a slice."""
    await _check_split(env, split)
    try:
        return await env.get_task_range(split, start, stop)
    except IndexError as exc:
        raise RequestFault(Fault.INVALID_INDEX, "Invalid index range") from exc


async def _check_split(env: ServedClass, split: str) -> None:
    if all(known.name != split for known in await list_splits(env)):
        raise RequestFault(Fault.INVALID_SPLIT, "Invalid split")
