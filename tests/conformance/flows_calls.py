"""Episodes: prompts, tools of a task, tool calls good and bad, reconnection, and each environment's shape."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from .flows import ONE, flow
from .flows_discovery import BAD_JSON
from .talk import Talk, secrets_header

Part = Callable[[Talk], Awaitable[None]]
IN_ONE_SESSION: list[Part] = []


def part(function: Part) -> Part:
    """Put a function among those that share one session, since a container takes longer than all of them."""
    IN_ONE_SESSION.append(function)
    return function


@flow()
async def one_long_session(talk: Talk) -> None:
    await talk.create("workshop", {"n": 1})
    for function in IN_ONE_SESSION:
        talk.topic = function.__name__.replace("_", " ")
        await function(talk)
    await talk.delete()


@part
async def prompt_and_tools(talk: Talk) -> None:
    await talk.get("/workshop/prompt", sid="sid")
    await talk.get("/WORKSHOP/prompt", sid="sid")
    await talk.get("/workshop/task_tools", sid="sid")
    await talk.post("/ping", sid="sid")
    await talk.call("workshop", "count")
    await talk.call("WorkShop", "count")
    await talk.call("arithmetic", "count")  # another environment's path, this session
    await talk.call("workshop", "rich")
    await talk.call("workshop", "slow", {"seconds": 0})
    await talk.call("workshop", "echo", {"text": "line\r\nbreaks\u2028 and\ttabs \u0000 and 👩\u200d🚀"})
    # Neither runs a tool.
    await talk.call("workshop", "no_such_tool")
    await talk.call("workshop", "get_prompt")
    await talk.call("workshop", "echo")
    await talk.call("workshop", "echo", {"text": 7})
    await talk.call("workshop", "echo", {"text": "x", "times": "many"})
    await talk.call("workshop", "count", {"not": "wanted"})
    await talk.call("workshop", "slow", {"seconds": -1})
    await talk.call("workshop", "count")


@part
async def long_results(talk: Talk) -> None:
    for text, times in (("x", 4000), ("x", 4096), ("x", 20_000), ("\n", 3000), ("é", 9000), ("👩\u200d🚀", 4000)):
        await talk.call("workshop", "echo", {"text": text, "times": times})
    await talk.call("workshop", "echo", {"text": " ", "times": 10_000})
    await talk.call("workshop", "echo", {"text": "\u00a0\u2003", "times": 5000})
    await talk.call("workshop", "echo", {"text": "0123456789abcdef", "times": 2**16})


@part
async def tools_that_fail(talk: Talk) -> None:
    for what in ("nothing", "raise", "key", "empty", "not_an_output", "nan", "infinite", "no_blocks"):
        await talk.call("workshop", "fail", {"what": what})
    await talk.call("workshop", "fail", {"what": "cancelled"}, limit_s=3)
    await talk.call("workshop", "count")


@part
async def bad_input_to_calls(talk: Talk) -> None:
    bodies: tuple[dict[str, Any], ...] = (
        {"name": "count"},
        {"input": {}},
        {"name": 7, "input": {}},
        {"name": None, "input": {}},
        {"name": "count", "input": None},
        {"name": "count", "input": "a string"},
        {"name": "count", "input": [1]},
        {"name": "count", "input": {}, "extra": 1},
        {"name": "count", "input": {}, "task_id": 7},
    )
    for body in bodies:
        await talk.post("/workshop/call", body, sid="sid")
    for raw in BAD_JSON:
        await talk.send("POST", "/workshop/call", raw=raw, sid="sid")
    await talk.call("workshop", "count", sid=None)
    await talk.call("workshop", "count", task_id=None)


@part
async def calls_at_once(talk: Talk) -> None:
    async def overlap() -> None:
        await talk.call("workshop", "overlap", {"seconds": 0.3})

    await asyncio.gather(overlap(), overlap())


@part
async def the_end_of_an_episode(talk: Talk) -> None:
    await talk.call("workshop", "finish")
    await talk.call("workshop", "finish")
    await talk.call("workshop", "no_such_tool")
    await talk.get("/workshop/prompt", sid="sid")


@flow()
async def reconnection(talk: Talk) -> None:
    await talk.create("workshop")
    await talk.create("workshop", sid="other")
    async with talk.calling("workshop", "slow", {"seconds": 1.5}) as stream:
        call_id = stream.call_id
        talk.remember("call", call_id)
        await talk.call("workshop", "count", task_id=call_id)  # waits for the first, whatever it asks for
        await stream.finish()
    await talk.call("workshop", "slow", {"seconds": 1.5}, task_id=call_id)
    await talk.call("workshop", "count", task_id=call_id, sid="other")
    await talk.call("workshop", "count", task_id=call_id[:-1] + ("0" if call_id[-1] != "0" else "1"))
    await talk.call("workshop", "count", task_id="call_0123456789abcdef0123456789abcdef")
    await talk.call("workshop", "echo", {"text": "traced"}, task_id="trace-123")
    await talk.call("workshop", "echo", {"text": "not asked for"}, task_id="trace-123")
    async with talk.calling("workshop", "slow", {"seconds": 1}) as stream:
        abandoned = stream.call_id
        talk.remember("abandoned", abandoned)
        stream.cut()
    await talk.call("workshop", "count", task_id=abandoned)
    await talk.call("workshop", "count")
    await talk.delete()
    await talk.delete("other")


@flow()
async def deleted_during_a_call(talk: Talk) -> None:
    await talk.create("workshop", {"prompt": "raise"})
    await talk.get("/workshop/prompt", sid="sid")
    async with talk.calling("workshop", "slow", {"seconds": 2}) as stream:
        await talk.delete()
        await stream.finish(10)
    await talk.post("/ping", sid="sid")


# --- Each environment, in its own words ---------------------------------------------------------------------------


async def opening(talk: Talk, name: str, task: dict[str, object], **fields: Any) -> None:
    """What every client begins with."""
    await talk.create(name, task, **fields)
    await talk.get(f"/{name}/prompt", sid="sid")
    await talk.get(f"/{name}/task_tools", sid="sid")


@flow()
async def arithmetic(talk: Talk) -> None:
    await opening(talk, "arithmetic", {"a": 20, "b": 22})
    await talk.get("/arithmetic/messages", sid="sid")
    candidates = [{"messages": [{"role": "assistant", "blocks": [{"type": "text", "text": "42"}]}]}]
    await talk.post("/arithmetic/score_group", {"candidates": candidates}, sid="sid")
    await talk.call("arithmetic", "hint")
    await talk.call("arithmetic", "submit", {"answer": 42, "sure": True})
    await talk.call("arithmetic", "submit", {"answer": "42"})
    await talk.delete()


@flow(dialects=ONE)
async def grid_world(talk: Talk) -> None:
    await opening(talk, "gridworld", {"start": [0, 0], "goal": [1, 1]})
    for step in ("look", "west", "south", "jump", "east"):
        await talk.call("gridworld", step)
    await talk.delete()


@flow(dialects=ONE)
async def endless(talk: Talk) -> None:
    await talk.post("/create", {"env_name": "endless", "split": "train", "index": 999_999}, sid="sid")
    await talk.get("/endless/prompt", sid="sid")
    for number in (1, 1008, (999_999 * 7919) % 1009):
        await talk.call("endless", "guess", {"number": number})
    await talk.delete()


@flow(patient=True, dialects=ONE)
async def thesaurus(talk: Talk) -> None:
    await opening(talk, "thesaurus", {"word": "big"})
    await talk.call("thesaurus", "synonym", {"word": "tiny"})
    await talk.call("thesaurus", "synonym", {"word": "large"})
    await talk.delete()


@flow()
async def colour_chart(talk: Talk) -> None:
    await opening(talk, "colourchart", {"colour": "green"})
    await talk.call("colourchart", "zoom")
    await talk.call("colourchart", "zoom", {"factor": 4})
    await talk.call("colourchart", "zoom", {"factor": 17})
    await talk.call("colourchart", "name_it", {"colour": "purple"})
    await talk.call("colourchart", "name_it", {"colour": "green"})
    await talk.delete()


@flow()
async def notebook(talk: Talk) -> None:
    await opening(talk, "notebook", {"lines": 2})
    await talk.call("notebook", "read_all")
    await talk.call("notebook", "write_line", {"text": "one"})
    await talk.call("notebook", "write_line", {"text": ""})
    await talk.call("notebook", "write_line", {"text": "two"})
    await talk.call("notebook", "read_all")
    await talk.call("notebook", "hand_in")
    await talk.delete()


@flow()
async def quests(talk: Talk) -> None:
    await opening(talk, "quests", {"tool": "sing"})
    for name in ("rest", "dance", "sing"):
        await talk.call("quests", name)
    await talk.delete()


@flow(dialects=ONE)
async def shuffled(talk: Talk) -> None:
    await opening(talk, "shuffled", {"id": "q1", "options": ["?"]})
    await talk.call("shuffled", "choose", {"letter": "E"})
    await talk.call("shuffled", "choose", {"letter": "A"})
    await talk.delete()


@flow(server="tutor", dialects=("openreward",))
async def tutor(talk: Talk) -> None:
    await talk.get("/tutor/tools")
    await talk.get("/desk/tools")
    await opening(talk, "tutor", {"topic": "tides", "word": "moon"})
    await talk.get("/tutor/messages", sid="sid")
    await talk.get("/tutor/messages")
    await talk.get("/tutor/messages", sid="nobody")

    async def look_up(query: str) -> None:
        await talk.call("tutor", "look_up", {"query": query})

    await asyncio.gather(look_up("a"), look_up("b"))
    async with talk.calling("tutor", "look_up", {"query": "c"}) as stream:
        await talk.call("tutor", "give_up")
        await stream.finish()
    await talk.call("tutor", "explain", {"message": "The moon does it."})
    await talk.delete()


@flow(server="tutor", dialects=("openreward",))
async def scores_of_a_group(talk: Talk) -> None:
    await talk.create("tutor", {"topic": "rain", "word": "cloud"})

    def said(text: str, **fields: object) -> dict[str, object]:
        return {"messages": [{"role": "assistant", "blocks": [{"type": "text", "text": text}]}], **fields}

    path = "/tutor/score_group"
    await talk.post(path, {"candidates": [said("ab"), said("abcd", metadata={"n": 1}), said("")]}, sid="sid")
    reasoning = {"type": "reasoning", "text": "hm", "signature": "s"}
    rich = {"messages": [{"role": "assistant", "blocks": [reasoning, {"type": "text", "text": "yes"}]}]}
    await talk.post(path, {"candidates": [rich]}, sid="sid")
    await talk.post(path, {"candidates": []}, sid="sid")  # raises
    await talk.post(path, {"candidates": [said("a")], "task_id": "call_0123456789abcdef0123456789abcdef"}, sid="sid")
    bodies: tuple[dict[str, Any], ...] = (
        {},
        {"candidates": "none"},
        {"candidates": [{}]},
        {"candidates": [{"messages": [{"role": "tool", "blocks": []}]}]},
        {"candidates": [{"messages": [{"role": "user", "blocks": [reasoning]}]}]},
        {"candidates": [{"messages": [{"role": "user", "blocks": [{"type": "video"}]}]}]},
        {"candidates": [said("a")], "extra": 1},
    )
    for body in bodies:
        await talk.post(path, body, sid="sid")
    await talk.post(path, {"candidates": [said("a")]})
    await talk.post(path, {"candidates": [said("a")]}, sid="nobody")
    await talk.call("tutor", "explain", {"message": "A cloud."})
    await talk.delete()


@flow(server="tutor", dialects=("openreward",))
async def a_toolset_for_the_session(talk: Talk) -> None:
    await talk.create("desk", {"n": 1}, toolset_name="claude-code")
    await talk.get("/desk/task_tools", sid="sid")
    await talk.call("desk", "bash", {"command": "ls"})
    await talk.call("desk", "bash", {"command": 7})
    await talk.call("desk", "submit")
    await talk.delete()
    await talk.create("tutor", {"topic": "rain", "word": "cloud"}, toolset_name="claude-code", sid="refused")
    await talk.post("/desk/score_group", {"candidates": []}, sid="refused")


@flow()
async def secrets_header_and_body_clash(talk: Talk) -> None:
    header = secrets_header({"OPENAI_API_KEY": "from the header"})
    body = {"OPENAI_API_KEY": "from the body", "database_password": "p"}
    await talk.create("vault", {"door": "north"}, secrets=body, headers={"X_Secrets": header})
    await talk.get("/vault/prompt", sid="sid")
    await talk.call("vault", "open_door")
    await talk.delete()
