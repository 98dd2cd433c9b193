"""Sessions: how they are made and end, what can't be made, and requests about sessions that are not there."""

from __future__ import annotations

import asyncio

from .flows import ONE, flow
from .flows_discovery import BAD_JSON
from .talk import Talk, secrets_header

TASK = {"a": 2, "b": 3}
KEYS = {"OPENAI_API_KEY": "sk-1", "database_password": "pässword"}


@flow()
async def a_session_that_is_not_there(talk: Talk) -> None:
    await talk.post("/create_session", Accept="text/event-stream")
    await talk.post("/create_session", Accept="application/json")
    for sid in (None, "nobody"):
        await talk.post("/ping", sid=sid)
        await talk.get("/arithmetic/prompt", sid=sid)
        await talk.get("/arithmetic/task_tools", sid=sid)
        await talk.call("arithmetic", "hint", sid=sid)
        await talk.post("/delete", sid=sid)
        await talk.post("/delete_session", sid=sid)
    await talk.get("/arithmetic/prompt", X_Session_ID="  ")
    await talk.post("/ping", X_Session_ID="no one of that name")


@flow()
async def creations_that_can_not_be(talk: Talk) -> None:
    await talk.post("/create", {"task_spec": TASK})
    for body in (
        {},
        {"env_name": "arithmetic"},
        {"split": "train"},
        {"index": 0},
        {"task_spec": TASK, "split": "train", "index": 0},
        {"task_spec": TASK, "split": "train"},
        {"task_spec": "a string"},
        {"task_spec": [1]},
        {"split": "train", "index": "first"},
        {"split": 7, "index": 0},
        {"env_name": 7, "task_spec": TASK},
        {"task_spec": TASK, "extra": 1},
        {"env_name": "no such environment", "task_spec": TASK},
        {"split": "no such split", "index": 0},
        {"split": "train", "index": 5},
        {"env_name": "endless", "split": "train", "index": -1},
        {"task_spec": TASK, "secrets": "a string"},
        {"task_spec": TASK, "secrets": {"KEY": 7}},
    ):
        await talk.post("/create", body, sid="refused")
    for raw in BAD_JSON:
        await talk.send("POST", "/create", raw=raw, sid="refused")
    await talk.post("/ping", sid="refused")


@flow(dialects=("openreward",))
async def a_secrets_header_that_is_none(talk: Talk) -> None:
    for number, header in enumerate(("%%%", "bm90IGpzb24=", "W10=", secrets_header({})[:5])):
        await talk.post("/create", {"task_spec": TASK}, sid=f"refused-{number}", X_Secrets=header)


@flow()
async def a_toolset_that_is_not_there(talk: Talk) -> None:
    await talk.post("/create", {"task_spec": TASK, "toolset_name": "no-such-toolset"}, sid="refused")
    await talk.post("/ping", sid="refused")


@flow()
async def one_session_after_another_under_the_same_id(talk: Talk) -> None:
    await talk.post("/create", {"split": "train", "index": 1}, sid="sid")
    await talk.post("/create", {"split": "train", "index": 2}, sid="sid")
    await talk.get("/arithmetic/prompt", sid="sid")
    await talk.post("/ping", sid="sid")
    await talk.delete()
    await talk.delete()
    await talk.post("/ping", sid="sid")
    await talk.get("/arithmetic/prompt", sid="sid")
    await talk.get("/arithmetic/task_tools", sid="sid")
    await talk.call("arithmetic", "hint")
    await talk.post("/create", {"env_name": "ARITHMETIC", "split": "hard", "index": -1}, sid="sid")
    await talk.get("/arithmetic/prompt", sid="sid")
    await talk.post("/delete_session", sid="sid")
    await talk.post("/ping", sid="sid")
    await talk.delete()


@flow(patient=True)
async def two_creations_at_once(talk: Talk) -> None:
    body = {"env_name": "thesaurus", "task_spec": {"word": "big"}}  # takes a while
    await talk.together(talk.send("POST", "/create", json=body, sid="sid", record=False) for _ in range(3))
    await talk.delete()


@flow(dialects=ONE)
async def an_id_of_the_clients_own(talk: Talk) -> None:
    talk.remember("odd", "x/y:z~" + talk.sid("unique"))
    await talk.post("/create", {"task_spec": TASK}, sid="odd")
    await talk.call("arithmetic", "submit", {"answer": 5}, sid="odd")
    await talk.delete("odd")
    await talk.post("/create", {"task_spec": TASK}, X_Session_ID="two words " + talk.sid("unique"))
    await talk.post("/delete", X_Session_ID="two words " + talk.sid("unique"))


@flow()
async def a_constructor_that_raises(talk: Talk) -> None:
    await talk.create("vault", {"door": "north"})
    await talk.get("/vault/prompt", sid="sid")
    await talk.post("/ping", sid="sid")
    await talk.delete()


@flow()
async def a_setup_that_raises(talk: Talk) -> None:
    await talk.create("workshop", {"setup": "raise"})
    await talk.get("/workshop/prompt", sid="sid")
    await talk.call("workshop", "count")
    await talk.get("/workshop/prompt", sid="sid")
    await talk.post("/ping", sid="sid")
    await talk.delete()


@flow(patient=True)
async def a_setup_that_takes_long(talk: Talk) -> None:
    await talk.create("workshop", {"setup_s": 28})
    await asyncio.gather(
        talk.get("/workshop/prompt", sid="sid"),
        talk.call("workshop", "count"),
        talk.get("/workshop/task_tools", sid="sid"),
    )
    await talk.delete()


@flow(dialects=ONE)
async def deleted_during_setup(talk: Talk) -> None:
    await talk.create("workshop", {"setup_s": 50})
    await talk.post("/ping", sid="sid")
    await talk.delete()
    await talk.post("/ping", sid="sid")
