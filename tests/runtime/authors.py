"""Environments as authors write them: a file of source text, loaded as in a container, and asked through an adapter."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandbox_runtime.adapter import Adapter
from sandbox_runtime.faults import RequestFault
from sandbox_runtime.loader import load
from sandbox_runtime.messages import Fault
from sandbox_runtime.scope import CallScope, current_scope


class Author:
    """Writes files into a folder that can be imported from, for one SDK: ``SDK`` in a source is its package."""

    def __init__(self, folder: Path, sdk: str) -> None:
        self.folder = folder
        self.sdk = sdk

    def write(self, source: str, name: str = "env.py") -> Path:
        """Write a file."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source.replace("SDK", self.sdk))
        return path

    async def adapter(self, source: str) -> Adapter:
        """Return the answers of the environments in a file."""
        self.write(source)
        return Adapter(await asyncio.to_thread(load, ["env"]))  # it runs a loop of its own

    async def created(self, source: str, *, task: dict[str, Any] | None = None, **params: Any) -> Adapter:
        """Return the answers of an episode of the first environment in a file."""
        adapter = await self.adapter(source)
        await ask(adapter, "create", env=adapter.names[0], task_spec=task or {}, **params)
        return adapter


async def ask(adapter: Adapter, method: str, **params: Any) -> Any:
    """Ask as a request of the host does."""
    current_scope.set(CallScope())
    return await adapter.answer(method, params)


async def call(adapter: Adapter, name: str, **tool_input: Any) -> Any:
    """Call a tool."""
    return await ask(adapter, "call", call_id="c", name=name, input=tool_input)


async def text_of(adapter: Adapter, name: str, **tool_input: Any) -> str:
    """Call a tool that succeeds, and return its first block's text."""
    result = await call(adapter, name, **tool_input)
    assert result.ok, result
    return str(result.output.blocks[0].text)


async def fault_of(adapter: Adapter, method: str, **params: Any) -> tuple[Fault, str]:
    """Ask what can't be answered."""
    with pytest.raises(RequestFault) as caught:
        await ask(adapter, method, **params)
    return caught.value.fault, str(caught.value)
