"""Writing an environment for ors-host, and running it inside a container.

What an author needs is exported here; ``sandbox_runtime.shell`` runs commands as the agent. The modules, from the bottom:

* ``frames``, ``data_types``, ``messages``: the bytes and words that host and runtime exchange (the host uses these as well).
* ``calling``, ``tools``, ``environment``: the authoring API.
* ``agent``, ``processes``, ``capture``, ``scope``, ``command``, ``shell``: the agent's identity, its processes, its commands;
  ``spawner``, ``spawning``: what starts them, and keeps them the first to go when memory is short.
* ``grading``: looking at the agent's work without its having a hand in that; the pattern to follow is at its head.
* ``output``, ``faults``, ``results``: from what an author's code returns or raises to what may be sent.
* ``served``, ``ors_sdk``, ``openreward_sdk``, ``dialects``: an author's class, whichever SDK it is written for.
* ``discovery``, ``gate``, ``episode``, ``adapter``: from requests to answers.
* ``scripts``, ``loader``: from what a command line names to classes.
* ``answering``, ``jobs``, ``link``, ``worker``, ``hardening``, ``__main__``: the process in the container.

Rules: pydantic and the standard library only; never an import from ``host``; standard output belongs to the author's code.
"""

from .data_types import (
    Blocks,
    CreateSession,
    GetTask,
    GetTaskRange,
    ImageBlock,
    JSONObject,
    ListTasks,
    ListToolsOutput,
    NumTasks,
    RunToolError,
    RunToolOutput,
    RunToolSuccess,
    Split,
    TextBlock,
    ToolCall,
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
