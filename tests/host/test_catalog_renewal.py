"""An image built anew under its tag: taken over whole or not at all, and nothing that is under way is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from host import catalog as catalog_module
from host import pool as pool_module
from host.engine import EngineError, Role
from tests.host.fakes import TAG, FakeEngine, Gate, Script
from tests.host.served import Serve, Server, until

OTHER = "other-env:1"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that a test needn't wait for."""
    monkeypatch.setattr(catalog_module, "_LOOK_S", 0.02)
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.02)


def build_anew(engine: FakeEngine, tag: str = TAG) -> Script:
    """Build an image again under its tag; return what its containers do."""
    engine.images[tag] = replace(engine.images[tag], id=engine.images[tag].id + "+")
    engine.scripts[tag] = Script()
    return engine.scripts[tag]


def of_image(engine: FakeEngine, role: Role, image_id: str) -> int:
    return sum(container.spec.image.id == image_id for container in engine.of(role))


async def test_the_new_image_is_served_and_the_old_one_drained(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(warm=2, warm_max=2)
    await until(lambda: server.pool.waiting == 2)
    old = await server.create("old")
    old_id = old.spec.image.id
    script = build_anew(engine)
    script.environments = ["NewEnv"]
    script.handlers["list_splits"] = [{"name": "hard", "type": "train"}]
    new_id = engine.images[TAG].id
    await until(lambda: server.catalog.names == ["newenv"])
    await until(lambda: of_image(engine, Role.SESSION, new_id) == 2 and server.pool.waiting == 2)
    await until(lambda: of_image(engine, Role.SESSION, old_id) == 1 and of_image(engine, Role.CATALOG, old_id) == 0)
    assert await server.get("/splits") == (200, [{"name": "hard", "type": "train"}])
    assert (await server.create("new")).spec.image.id == new_id
    assert (await server.call("old"))[-1][0] == "end"
    assert (await server.get("/prompt", "old"))[0] == 200


async def test_questions_under_way_are_answered_by_the_old_one(serve: Serve, engine: FakeEngine) -> None:
    server = await serve()
    engine.script.handlers["list_tasks"] = gate = Gate([{"id": "old"}])
    (old,) = engine.of(Role.CATALOG)
    asking = asyncio.create_task(server.post("/tasks", json={"split": "train"}))
    await old.runtime.wait_received("list_tasks")
    build_anew(engine)
    await until(lambda: server.catalog.images[0].id == engine.images[TAG].id)
    gate.opened.set()
    status, body = await asking
    assert (status, body["tasks"]) == (200, [{"id": "old"}])
    await until(lambda: old not in engine.of(Role.CATALOG))


@pytest.mark.parametrize("wrong", ["no tool", "a name that is taken", "a server out of reach", "does not start"])
async def test_one_that_cannot_be_served_is_not_taken_over(serve: Serve, engine: FakeEngine, wrong: str) -> None:
    engine.add_image(OTHER).environments = ["OtherEnv"]
    server = await serve((TAG, OTHER))
    script = build_anew(engine)
    match wrong:
        case "no tool":
            script.handlers["list_tools"] = {"tools": []}
        case "a name that is taken":
            script.environments = ["OtherEnv"]
        case "a server out of reach":
            engine.far = "the engine is elsewhere"
            engine.images[TAG] = replace(engine.images[TAG], labels={})
        case _:
            script.hello = {"token": "wrong"}
    await until(lambda: engine.images[TAG] in server.catalog._put_off)
    assert server.catalog.names == ["bashenv", "otherenv"]
    engine.scripts[TAG] = Script()
    assert (await server.create()).spec.image.id == f"sha256:{TAG}"
    assert len(engine.of(Role.CATALOG)) == 2


async def test_it_is_tried_again(serve: Serve, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "_AGAIN_S", 0.05)
    server = await serve()
    script = build_anew(engine)
    script.handlers["list_tools"] = {"tools": []}
    await until(lambda: engine.images[TAG] in server.catalog._put_off)
    script.handlers["list_tools"] = Script().handlers["list_tools"]
    await until(lambda: server.catalog.images == [engine.images[TAG]])


@pytest.mark.parametrize("gone", [True, False])
async def test_without_the_tag_or_the_engine_it_serves_on(serve: Serve, engine: FakeEngine, gone: bool) -> None:
    async def refuse(tag: str) -> None:
        looks.append(tag)
        if not gone:
            raise EngineError("busy")

    server: Server = await serve()
    looks: list[str] = []
    if gone:
        del engine.images[TAG]
    engine.hooks["image"] = refuse
    await until(lambda: len(looks) > 2)
    assert server.catalog.names == ["bashenv"]
    assert (await server.post("/tasks", json={"split": "train"}))[0] == 200
