"""The agent: the user whose processes the model's tool calls are, and how a process becomes one of its.

In a container that is the user ``agent``. A command line for it is built so that nothing the agent controls takes part before
the identity is given up: the programs that do it are found on a fixed path, and the agent's variables are set after them.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .egress import proxy_environ

AGENT_USER = "agent"
WORKSPACE = "/workspace"

UNSAFE_SAME_USER = "ORS_RUNTIME_UNSAFE_SAME_USER"
"""Set to 1 to run the agent's commands as the current user: for an author's own tests, outside a container."""

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LAUNCH_ENVIRON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


class AgentUnavailable(RuntimeError):
    """There is no agent to run commands as."""


@dataclass(frozen=True)
class Agent:
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

    def launch(
        self, argv: Sequence[str], cwd: str, extra_environ: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the variables to start ``argv`` with, as the agent and in ``cwd``.

        The order matters, because the runtime has neither PTRACE nor DAC capabilities: ``oom_score_adj`` can be raised only
        before the uid changes, and a private directory of the agent's be entered only after.
        """
        variables = [f"{name}={value}" for name, value in self.environ(extra_environ).items()]
        clean = ["env", "--ignore-environment", f"--chdir={cwd}", "--", *variables, *argv]
        if self.same_user:
            return clean, _LAUNCH_ENVIRON
        drop = [
            "setpriv",
            f"--reuid={self.uid}",
            f"--regid={self.gid}",
            "--clear-groups",
            "--no-new-privs",
            "--pdeathsig=KILL",
            "--",
        ]
        # The agent's processes are the first to go when memory is short, and the last to run when processors are: a fork
        # storm of equals would leave the runtime a hundredth of a processor to end it with.
        return ["nice", "-n", "19", "choom", "-n", "1000", "--", *drop, *clean], _LAUNCH_ENVIRON


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
