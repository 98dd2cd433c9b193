"""``Environment``: the class that an author writes, with the defaults of everything an author need not write."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from .calling import call
from .messages import Blocks, JSONObject, ListToolsOutput, Split
from .tools import tool_methods


class Environment(ABC):
    """A task, some tools and a reward. One instance serves one episode.

    ``list_splits``, ``list_tasks`` and ``get_prompt`` must be written; methods decorated with ``tool`` are the tools. Each
    method may be sync (it then runs in a thread) or async (it then runs on the event loop, which it must not block).
    """

    toolsets: ClassVar[Sequence[type]] = ()
    """``Toolset`` classes whose tools the environment has too; each is constructed with the environment on first use."""

    task_spec: JSONObject
    secrets: dict[str, str]

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        self.task_spec = {} if task_spec is None else task_spec
        self.secrets = {} if secrets is None else secrets

    # --- Tasks: asked of the class, without an episode ---

    @classmethod
    @abstractmethod
    def list_splits(cls) -> Sequence[Split | str] | Awaitable[Sequence[Split | str]]:
        """Return the splits, by name or as ``Split``; asked once per process."""

    @classmethod
    @abstractmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject] | Awaitable[Sequence[JSONObject]]:
        """Return the tasks of ``split``, always in the same order; asked once per process and split.

        Raises:
            NotImplementedError: there are too many to list; ``num_tasks`` and ``get_task`` are then overridden.
        """

    @classmethod
    def num_tasks(cls, split: str) -> int | Awaitable[int]:
        """Return how many tasks ``split`` has. Override where that can be known without listing them."""

        async def count() -> int:
            return len(await cached_tasks(cls, split))

        return count()

    @classmethod
    def get_task(cls, split: str, index: int) -> JSONObject | Awaitable[JSONObject]:
        """Return one task; a negative ``index`` counts from the end. Override to make a task only when it is asked for.

        Raises:
            IndexError: there is no such task.
        """

        async def pick() -> JSONObject:
            return (await cached_tasks(cls, split))[index]

        return pick()

    @classmethod
    def get_task_range(
        cls, split: str, start: int | None = None, stop: int | None = None
    ) -> Sequence[JSONObject] | Awaitable[Sequence[JSONObject]]:
        """Return the tasks from ``start`` (inclusive) to ``stop`` (exclusive).

        Both may be None, negative or too large, as in a slice.
        """

        async def pick() -> Sequence[JSONObject]:
            try:
                tasks = await cached_tasks(cls, split)
            except NotImplementedError:
                indices = slice(start, stop).indices(await call(cls.num_tasks, split))
                return [await call(cls.get_task, split, index) for index in range(*indices)]
            return tasks[start:stop]

        return pick()

    # --- Tools ---

    @classmethod
    def list_tools(cls) -> ListToolsOutput | Awaitable[ListToolsOutput]:
        """Return the tools that every task has: those decorated with ``shared=True``, the environment's and its toolsets'."""
        return ListToolsOutput(tools=[m.spec for m in tool_methods(cls).values() if m.options.shared])

    def list_task_tools(self) -> ListToolsOutput | Awaitable[ListToolsOutput]:
        """Return the tools that this task has besides; by default all those decorated with ``shared=False``.

        Override to choose among them, or to describe a tool differently for this task.
        """
        return ListToolsOutput(tools=[m.spec for m in tool_methods(type(self)).values() if not m.options.shared])

    # --- The episode, in order ---

    def setup(self) -> None | Awaitable[None]:
        """Prepare the episode; the prompt and the tools wait for it."""
        return None

    @abstractmethod
    def get_prompt(self) -> Blocks | Awaitable[Blocks]:
        """Return the prompt, a list of blocks; called each time a client asks for it."""

    def teardown(self) -> None | Awaitable[None]:
        """Give back what ``setup`` took; called once at the end, also when ``setup`` raised."""
        return None


_tasks: WeakKeyDictionary[type, dict[str, Sequence[JSONObject]]] = WeakKeyDictionary()
_tasks_locks: WeakKeyDictionary[type, dict[str, asyncio.Lock]] = WeakKeyDictionary()


async def cached_tasks(cls: type[Any], split: str) -> Sequence[JSONObject]:
    """Return ``cls.list_tasks(split)``, asked only once: it may be long, and building it slow.

    Raises:
        BaseException: what ``list_tasks`` raises; it is asked again the next time.
    """
    known = _tasks.setdefault(cls, {})
    lock = _tasks_locks.setdefault(cls, {}).setdefault(split, asyncio.Lock())
    async with lock:
        if split not in known:
            tasks: Any = await call(cls.list_tasks, split)
            if not isinstance(tasks, Sequence) or isinstance(tasks, str | bytes):
                raise TypeError(f"{cls.__name__}.list_tasks returned {type(tasks).__name__}; expected a list of tasks")
            known[split] = tasks
        return known[split]
