"""The agent's identity, and the variables that its commands get."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from sandbox_runtime import agent
from sandbox_runtime.agent import UNSAFE_SAME_USER, Agent, AgentUnavailable, current_agent

AGENT = Agent("agent", 10000, 10001, "/home/agent", "/workspace", same_user=False)


def test_its_variables_are_nothing_of_the_runtimes_but_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/opt/tool/bin:/usr/bin")
    monkeypatch.setenv("SECRET", "s")
    assert AGENT.environ({"EXTRA": "1", "HOME": "/elsewhere"}) == {
        "PATH": "/opt/tool/bin:/usr/bin",
        "HOME": "/elsewhere",
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "EXTRA": "1",
    }


@pytest.mark.parametrize("name", ["", "A=B", "="])
def test_what_is_no_variables_name(name: str) -> None:
    with pytest.raises(ValueError, match="environment variable"):
        AGENT.environ({name: "x"})


def test_same_user_mode_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(UNSAFE_SAME_USER, "1")
    monkeypatch.setattr(agent, "WORKSPACE", str(tmp_path / "missing"))
    monkeypatch.chdir(tmp_path)
    me = current_agent()
    assert (me.uid, me.same_user, me.workspace) == (os.getuid(), True, str(tmp_path))
    monkeypatch.setattr(agent, "WORKSPACE", str(tmp_path))
    assert current_agent().workspace == str(tmp_path)


def test_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UNSAFE_SAME_USER, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(AgentUnavailable, match=f"only root .* set {UNSAFE_SAME_USER}=1"):
        current_agent()


def test_no_such_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UNSAFE_SAME_USER, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(agent, "AGENT_USER", "no-such-user")
    with pytest.raises(AgentUnavailable, match="no user 'no-such-user'"):
        current_agent()


def test_the_user_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UNSAFE_SAME_USER, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(agent, "AGENT_USER", "nobody")
    nobody = pwd.getpwnam("nobody")
    assert current_agent() == Agent(
        "nobody", nobody.pw_uid, nobody.pw_gid, nobody.pw_dir, "/workspace", same_user=False
    )
