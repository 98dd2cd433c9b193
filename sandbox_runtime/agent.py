"""The agent: the user whose processes the model's tool calls are. In a container that is the user ``agent``."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from typing import NamedTuple

from .egress import proxy_environ

AGENT_USER = "agent"
WORKSPACE = os.environ.get("ORS_RUNTIME_WORKSPACE", "/workspace")
"""Only ``ors-host dev``, which has no container, means another place."""

UNSAFE_SAME_USER = "ORS_RUNTIME_UNSAFE_SAME_USER"
"""Set to 1 to run the agent's commands as the current user: for an author's own tests, outside a container."""

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class AgentUnavailable(RuntimeError):
    """There is no agent to run commands as."""


class Agent(NamedTuple):
    """An identity. ``same_user`` means that it is the runtime's own: no isolation at all."""

    name: str
    uid: int
    gid: int
    home: str
    workspace: str
    same_user: bool

    def environ(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that a command gets: nothing of the runtime's but its PATH, then ``extra``.

        Raises:
            ValueError: a name in ``extra`` is not one.
        """
        for name in extra:
            if not name or "=" in name:
                raise ValueError(f"{name!r} can't be the name of an environment variable")
        return {
            "PATH": os.environ.get("PATH", _SYSTEM_PATH),
            "HOME": self.home,
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **proxy_environ(),
            **extra,
        }


def current_agent() -> Agent:
    """Return the agent of this container.

    Raises:
        AgentUnavailable: this is no container of ours, and same-user mode is not asked for.
    """
    if os.environ.get(UNSAFE_SAME_USER) == "1":
        me = pwd.getpwuid(os.getuid())
        workspace = WORKSPACE if os.path.isdir(WORKSPACE) else os.getcwd()
        return Agent(me.pw_name, me.pw_uid, me.pw_gid, me.pw_dir, workspace, same_user=True)
    hint = f"outside a container, set {UNSAFE_SAME_USER}=1 to run the agent's commands as yourself"
    if os.getuid() != 0:
        raise AgentUnavailable(f"only root can run commands as the agent; {hint}")
    try:
        user = pwd.getpwnam(AGENT_USER)
    except KeyError:
        raise AgentUnavailable(f"there is no user {AGENT_USER!r}; {hint}") from None
    return Agent(user.pw_name, user.pw_uid, user.pw_gid, user.pw_dir, WORKSPACE, same_user=False)
