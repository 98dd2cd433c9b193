"""Loading the example environments, each from its folder, as a container does but side by side."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from sandbox_runtime import TextBlock, ToolOutput

EXAMPLES = Path(__file__).parents[2] / "examples"


@cache
def load_example(folder: str) -> ModuleType:
    """Return the module ``env.py`` of an example, under a name of its own; its sibling modules are its own too."""
    directory = EXAMPLES / folder
    spec = importlib.util.spec_from_file_location(f"example_{folder}", directory / "env.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(directory))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(directory))
        for sibling in directory.glob("*.py"):
            sys.modules.pop(sibling.stem, None)
    return module


def text_of(output: ToolOutput) -> str:
    """Return the text of all text blocks."""
    return "\n".join(block.text for block in output.blocks if isinstance(block, TextBlock))


@pytest.fixture
def same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's commands run as the current user."""
    monkeypatch.setenv("ORS_RUNTIME_UNSAFE_SAME_USER", "1")
