"""What keeps a host from starting, in one sentence that names the image; and catalog containers that die."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from host.engine import EngineError, Image, Role
from host.errors import StartupError
from sandbox_runtime.messages import Fault
from tests.host.fakes import NO_ANSWER, TAG, FakeEngine, FakeRuntime, Gate, Script, raising
from tests.host.served import Serve, Server

OTHER = "other-env:1"


async def refusal(serve: Serve, tags: tuple[str, ...] = (TAG,), **limits: float) -> str:
    """Start, which fails; return the sentence."""
    with pytest.raises(StartupError) as caught:
        await serve(tags, **limits)
    return str(caught.value)


async def test_image_that_is_missing(serve: Serve) -> None:
    words = await refusal(serve, (TAG, "nosuch:1"))
    assert words == (
        "image 'nosuch:1' is not on this engine; "
        "build it (ors-host build DIR -t nosuch:1) or pull it (docker pull nosuch:1)"
    )


async def test_image_with_a_server_where_none_can_be_reached(serve: Serve, engine: FakeEngine) -> None:
    engine.add_image("python:3", ours=False)
    engine.far = "the Docker engine is on the moon"
    words = await refusal(serve, ("python:3",))
    assert words.startswith("image 'python:3' has an ORS server of its own")
    assert "can't be done here: the Docker engine is on the moon" in words
    assert engine.created == 0


async def test_image_with_a_port_that_is_none(serve: Serve, engine: FakeEngine) -> None:
    engine.add_image("python:3", ours=False)
    engine.images["python:3"] = Image("python:3", "sha256:x", {"ors-host.port": "http"})
    words = await refusal(serve, ("python:3",))
    assert words == "image 'python:3': the label ors-host.port says 'http', which is no port"


async def test_image_name_that_the_engine_refuses(serve: Serve, engine: FakeEngine) -> None:
    async def refuse(tag: str) -> None:
        raise EngineError("invalid reference format")

    engine.hooks["image"] = refuse
    words = await refusal(serve, ("UPPER::",))
    assert "'UPPER::'" in words and "invalid reference format" in words


async def test_images_are_looked_up_before_anything_is_started(serve: Serve, engine: FakeEngine) -> None:
    await refusal(serve, (TAG, "nosuch:1"))
    assert engine.created == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"list_tools": {"tools": []}},
            "environment 'BashEnv' in image 'fake-env:1' has no tool; it needs at least one",
        ),
        ({"list_splits": []}, "environment 'BashEnv' in image 'fake-env:1' has no split; it needs at least one"),
        ({"list_tools": None}, "image 'fake-env:1' doesn't answer: the answer to list_tools is not valid"),
        ({"list_tools": {"tools": [{"name": "x"}]}}, "tools.0.description: Field required"),
        ({"list_splits": ["train"]}, "the answer to list_splits is not valid"),
        ({"list_tools": raising(Fault.ENVIRONMENT_RAISED, "ValueError: no")}, "doesn't answer: ValueError: no"),
        ({"list_tools": NO_ANSWER}, "image 'fake-env:1' doesn't answer: list_tools took longer than 0.3 s"),
    ],
)
async def test_environment_that_cannot_be_served(
    serve: Serve, engine: FakeEngine, changes: dict[str, Any], words: str
) -> None:
    engine.script.handlers.update(changes)
    assert words in await refusal(serve, discovery_timeout_s=0.3)
    assert engine.containers == {}


async def test_image_without_an_environment(serve: Serve, engine: FakeEngine) -> None:
    engine.script.environments = []
    assert await refusal(serve) == "image 'fake-env:1' has no environment"


async def test_two_environments_of_one_name(serve: Serve, engine: FakeEngine) -> None:
    engine.add_image(OTHER, Script(environments=["BASHENV"]))
    assert await refusal(serve, (TAG, OTHER)) == (
        "two environments are named 'bashenv': one in image 'fake-env:1' and one in image 'other-env:1'"
    )
    assert engine.containers == {}


async def test_two_environments_of_one_name_in_one_image(serve: Serve, engine: FakeEngine) -> None:
    engine.script.environments = ["Env", "ENV"]
    assert "two environments are named 'env'" in await refusal(serve)


async def test_an_image_named_twice_is_one(serve: Serve, engine: FakeEngine) -> None:
    server = await serve((TAG, TAG))
    assert server.catalog.names == ["bashenv"]
    assert len(engine.of(Role.CATALOG)) == 1


@pytest.mark.parametrize("hello", [{"token": "wrong"}, {"protocol": 99}])
async def test_runtime_that_is_not_ours(serve: Serve, engine: FakeEngine, hello: dict[str, Any]) -> None:
    engine.script.hello = hello
    assert "image 'fake-env:1' doesn't answer: protocol_violation: " in await refusal(serve)


async def test_container_that_dies_at_once(serve: Serve, engine: FakeEngine) -> None:
    engine.script.handlers["list_tools"] = Gate()
    starting = asyncio.create_task(refusal(serve))
    await engine.wait_created(1)
    (container,) = engine.of(Role.CATALOG)
    await container.runtime.wait_received("list_tools")
    await container.die(78, log="Traceback\nModuleNotFoundError: No module named 'numpy'")
    words = await starting
    assert "image 'fake-env:1' doesn't answer: " in words
    assert "exit code 78" in words and "No module named 'numpy'" in words


# --- Afterwards -------------------------------------------------------------------------------------------------------


async def test_catalog_container_that_died_is_replaced_at_the_next_question(server: Server, engine: FakeEngine) -> None:
    (first,) = engine.of(Role.CATALOG)
    await first.die()
    answers = await asyncio.gather(*(server.post("/num_tasks", json={"split": "train"}) for _ in range(4)))
    assert answers == 4 * [(200, {"num_tasks": 3})]
    (second,) = engine.of(Role.CATALOG)
    assert second is not first
    assert engine.created == 2


async def test_catalog_container_that_cannot_be_replaced_yet(server: Server, engine: FakeEngine) -> None:
    (first,) = engine.of(Role.CATALOG)
    await first.die()
    image = engine.images.pop(TAG)
    status, body = await server.post("/num_tasks", json={"split": "train"})
    assert (status, body["reason"]) == (503, "image_not_found")
    assert (await server.get("/tools"))[0] == 200  # what is known needs no container
    engine.images[TAG] = image
    assert (await server.post("/num_tasks", json={"split": "train"}))[0] == 200


async def test_catalog_container_that_dies_in_mid_question(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["list_tasks"] = Gate()
    asking = asyncio.create_task(server.post("/tasks", json={"split": "train"}))
    (container,) = engine.of(Role.CATALOG)
    await container.runtime.wait_received("list_tasks")
    await container.die(out_of_memory=True)
    status, body = await asking
    assert (status, body["reason"]) == (503, "out_of_memory")
    engine.script.handlers["list_tasks"] = []
    assert (await server.post("/tasks", json={"split": "train"}))[0] == 200


async def test_catalog_container_that_breaks_the_rules(server: Server, engine: FakeEngine) -> None:
    def misbehave(runtime: FakeRuntime, params: dict[str, Any]) -> None:
        runtime.send_raw(b"\xff\xff\xff\xff")

    engine.script.handlers["num_tasks"] = misbehave
    status, body = await server.post("/num_tasks", json={"split": "train"})
    assert (status, body["reason"]) == (503, "protocol_violation")
    engine.script.handlers["num_tasks"] = 5
    assert await server.post("/num_tasks", json={"split": "train"}) == (200, {"num_tasks": 5})


async def test_sessions_live_on_when_the_catalog_dies(server: Server, engine: FakeEngine) -> None:
    await server.create()
    await engine.of(Role.CATALOG)[0].die()
    assert (await server.call())[-1][0] == "end"
    assert (await server.post("/create", "s2", json={"split": "train", "index": 0}))[0] == 200
