"""Writing an environment for ors-host, and running it inside a container.

What an author needs is exported here; ``sandbox_runtime.shell`` runs commands as the agent. The modules, from the bottom:

* ``frames``, ``data_types``, ``conversations``, ``greeting``, ``messages``, ``bodies``: the bytes and words that host and
  runtime exchange, and what clients say (the host uses these as well).
* ``calling``, ``tools``, ``environment``: the authoring API.
* ``agent``, ``processes``, ``capture``, ``scope``, ``command``, ``shell``: the agent's identity, its processes, its commands;
  ``spawner``, ``spawning``: what starts them, and keeps them the first to go when memory is short.
* ``grading``: looking at the agent's work without its having a hand in that; the pattern to follow is at its head.
* ``output``, ``faults``, ``results``: from what an author's code returns or raises to what may be sent.
* ``served``, ``ors_sdk``, ``openreward_sdk``, ``dialects``: an author's class, whichever SDK it is written for.
* ``discovery``, ``gate``, ``episode``, ``adapter``: from requests to answers.
* ``scripts``, ``loader``: from what a command line names to classes.
* ``answering``, ``jobs``, ``link``, ``worker``; ``deferred``, ``snippets``, ``hardening``, ``settling``, ``process``,
  ``__main__``: the process in the container.

Rules: pydantic and the standard library only; never an import from ``host``; standard output belongs to the author's code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bodies import CreateSession, GetTask, GetTaskRange, ListTasks, NumTasks, ToolCall
    from .data_types import (
        Blocks,
        ImageBlock,
        JSONObject,
        ListToolsOutput,
        RunToolError,
        RunToolOutput,
        RunToolSuccess,
        Split,
        TextBlock,
        ToolOutput,
        ToolSpec,
    )
    from .environment import Environment
    from .tools import Toolset, tool

__version__ = "0.1.0"

__all__ = [
    "Blocks",
    "CreateSession",
    "Environment",
    "GetTask",
    "GetTaskRange",
    "ImageBlock",
    "JSONObject",
    "ListTasks",
    "ListToolsOutput",
    "NumTasks",
    "RunToolError",
    "RunToolOutput",
    "RunToolSuccess",
    "Split",
    "TextBlock",
    "ToolCall",
    "ToolOutput",
    "ToolSpec",
    "Toolset",
    "__version__",
    "tool",
]

_BODIES = frozenset({"CreateSession", "GetTask", "GetTaskRange", "ListTasks", "NumTasks", "ToolCall"})
_MODULES = {"Environment": "environment", "Toolset": "tools", "tool": "tools"} | dict.fromkeys(_BODIES, "bodies")


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: a host uses the messages alone, a runtime chooses what comes first."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES.get(name, 'data_types')}", __name__), name)
