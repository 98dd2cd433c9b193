"""The environment against the host, in how it begins: a container whose runtime never says hello as it should."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic import ByteSize

from host import docker_client
from host.docker_engine import DockerEngine
from host.engine import Role
from host.errors import SandboxFailed
from host.isolation import Profile
from host.logs import printable
from host.sandbox import Sandbox
from host.sandbox_host import SandboxHost
from host.settings import Settings
from host.state import StateDir
from tests.attacks.board import ENVIRONMENT, attack

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLOS = {
    "F01": ("wrong_token", "speak without the token", "protocol_violation"),
    "F02": ("never", "occupy a place without a word", "start_timeout"),
    "F03": ("twice", "be two runtimes in one", "protocol_violation"),
    "F04": ("answer_first", "answer before it was let in", "protocol_violation"),
    "F05": ("huge", "have room made for a hello of 4 GiB", "protocol_violation"),
    "F06": ("rubbish", "speak another protocol", "protocol_violation"),
    "F07": ("half", "leave its hello unfinished", "start_timeout"),
    "F08": ("million_names", "have a million environments", "protocol_violation"),
    "F09": ("escapes", "have environments whose names are paths and terminal commands", "protocol_violation"),
    "F10": ("escapes_in_log", "command the operator's terminal through its log", "start_failed"),
}


@asynccontextmanager
async def _sandboxes(image: str, profile: str, start_timeout_s: float) -> AsyncIterator[SandboxHost]:
    settings = Settings(
        image=(image,), start_timeout_s=start_timeout_s, isolation=Profile(profile), memory=ByteSize(2**28)
    )
    with (
        tempfile.TemporaryDirectory(prefix="ors-", dir="/tmp") as directory,
        closing(StateDir.open(Path(directory))) as state,
    ):
        async with DockerEngine.open() as engine:
            host = SandboxHost(engine, state, settings)
            yield host
            assert await engine.list_ours(state.server_id) == []
            assert state.sandbox_ids() == set()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes(hostile_image: str, hostile_profile: str) -> AsyncIterator[SandboxHost]:
    """What makes containers."""
    async with _sandboxes(hostile_image, hostile_profile, 40) as sandboxes:
        yield sandboxes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient(hostile_image: str, hostile_profile: str) -> AsyncIterator[SandboxHost]:
    """The same, but doesn't wait long for a hello."""
    async with _sandboxes(hostile_image, hostile_profile, 3) as sandboxes:
        yield sandboxes


def saying(hostile_image: str, *command: str) -> str:
    """Return the hostile image with another command."""
    tag = f"ors-host-test-hostile:{command[0].replace('_', '-')}"
    dockerfile = f"FROM {hostile_image}\nCMD {json.dumps(command)}\n"
    with closing(docker_client.connect()) as engine:
        for line in engine.build(fileobj=io.BytesIO(dockerfile.encode()), tag=tag, rm=True, decode=True):
            assert "error" not in line, line
    return tag


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        pytest.param(f"hello_{hello}", reason, marks=attack(id, ENVIRONMENT, what), id=id)
        for id, (hello, what, reason) in HELLOS.items()
    ],
)
async def test_hello(
    sandboxes: SandboxHost, impatient: SandboxHost, hostile_image: str, hello: str, reason: str
) -> None:
    if reason == "start_timeout":
        sandboxes = impatient
    tag = await asyncio.to_thread(saying, hostile_image, hello)
    image = await sandboxes.engine.image(tag)
    if hello == "hello_twice":  # the first is a good one
        async with Sandbox.open(sandboxes, image, role=Role.SESSION) as sandbox:
            failure = await asyncio.wait_for(sandbox.wait_failed(), 10)
    else:
        with pytest.raises(SandboxFailed) as caught:
            async with Sandbox.open(sandboxes, image, role=Role.SESSION):
                pass
        failure = caught.value.failure
    assert failure.reason == reason, failure
    assert len(failure.message) < 10_000
    assert "\x1b" not in printable(failure.message) and "\x9b" not in printable(failure.message)


@attack("F11", ENVIRONMENT, "speak as another session, with that one's token")
async def test_a_borrowed_token(sandboxes: SandboxHost, hostile_image: str) -> None:
    honest = await sandboxes.engine.image(hostile_image)
    async with Sandbox.open(sandboxes, honest, role=Role.SESSION) as sandbox:
        (directory,) = (sandboxes.state.path / "s").iterdir()
        token = (directory / "token").read_text()
        tag = await asyncio.to_thread(saying, hostile_image, "hello_borrowed_token", token)
        with pytest.raises(SandboxFailed) as caught:
            async with Sandbox.open(sandboxes, await sandboxes.engine.image(tag), role=Role.SESSION):
                pass
        assert caught.value.failure.reason == "protocol_violation"
        assert not sandbox.failed
