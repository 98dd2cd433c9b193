"""Requests that need no session: the server, its environments, their tools, splits and tasks, and bad input to each."""

from __future__ import annotations

from typing import Any

from .flows import flow
from .talk import Talk

ENVIRONMENTS = (
    "arithmetic",
    "gridworld",
    "endless",
    "thesaurus",
    "colourchart",
    "notebook",
    "quests",
    "shuffled",
    "vault",
    "workshop",
)

BAD_JSON = (b"", b"null", b"[]", b'"train"', b"3", b"{", b'{"split": "train"', b'{"split": NaN}', b"\xff\xfe")
"""Bodies that are no JSON object, whatever the endpoint."""


@flow()
async def the_server(talk: Talk) -> None:
    await talk.get("/health")
    await talk.get("/list_environments")
    await talk.get("/version")
    await talk.post("/health")
    await talk.send("HEAD", "/health")
    await talk.get("/create")
    await talk.send("PUT", "/arithmetic/tasks", json={"split": "train"})
    await talk.send("DELETE", "/arithmetic/tools")
    await talk.get("/arithmetic/tasks")
    await talk.get("/v1/environments/anyone/arithmetic/required-secrets")
    await talk.get("/v1/environments//arithmetic/required-secrets")
    await talk.get("/docs")


@flow()
async def tools_of_each_environment(talk: Talk) -> None:
    for name in ENVIRONMENTS:
        await talk.get(f"/{name}/tools")
    await talk.get("/GridWorld/tools")
    await talk.get("/gridworld/tools", sid="nobody")
    await talk.get("/gridworld/tools?unknown=1")


@flow()
async def splits_of_each_environment(talk: Talk) -> None:
    for name in ENVIRONMENTS:
        await talk.get(f"/{name}/splits")


@flow()
async def tasks_of_each_environment(talk: Talk) -> None:
    for name in ENVIRONMENTS:
        await talk.post(f"/{name}/tasks", {"split": "train"})
        await talk.post(f"/{name}/tasks", {"split": "test"})
        await talk.post(f"/{name}/num_tasks", {"split": "test"})
    await talk.post("/Arithmetic/tasks", {"split": "hard"})
    await talk.post("/colourchart/tasks", {"split": "validation"})


@flow()
async def one_task(talk: Talk) -> None:
    for index in (0, 4, -1, -5, 5, -6, 10**12):
        await talk.post("/arithmetic/task", {"split": "train", "index": index})
    for index in (0, 999_999, 1_000_000, -1):
        await talk.post("/endless/task", {"split": "train", "index": index})
    await talk.post("/SHUFFLED/task", {"split": "test", "index": 1})
    await talk.post("/arithmetic/get_task", {"split": "train", "index": 0})


@flow()
async def a_range_of_tasks(talk: Talk) -> None:
    for bounds in (
        {},
        {"start": 1, "stop": 3},
        {"start": -2},
        {"stop": -1},
        {"start": None, "stop": None},
        {"start": 3, "stop": 1},
        {"start": -100, "stop": 100},
        {"start": 5},
    ):
        await talk.post("/arithmetic/task_range", {"split": "train", **bounds})
    await talk.post("/endless/task_range", {"split": "test", "start": 999_998, "stop": None})
    await talk.post("/endless/task_range", {"split": "test", "start": -3, "stop": -1})
    await talk.post("/arithmetic/get_task_range", {"split": "train", "start": 4})


@flow()
async def bad_input_to_discovery(talk: Talk) -> None:
    for endpoint, good in (
        ("tasks", {}),
        ("num_tasks", {}),
        ("task", {"index": 0}),
        ("task_range", {"start": 0, "stop": 1}),
    ):
        path = f"/arithmetic/{endpoint}"
        await talk.post(path, {"split": "no such split", **good})
        await talk.post(path, {"split": "", **good})
        await talk.post(path, good)
        await talk.post(path, {"split": 3, **good})
        await talk.post(path, {"split": None, **good})
        await talk.post(path, {"split": "train", **good, "extra": 1})
        await talk.post(path)
    for raw in BAD_JSON:
        await talk.send("POST", "/arithmetic/tasks", raw=raw)
    await talk.send("POST", "/arithmetic/tasks", raw=b'{"split": "%s"}' % (b"x" * 17 * 2**20))
    await talk.post("/arithmetic/task", {"split": "train"})
    no_index: tuple[Any, ...] = ("0", "zero", 1.0, 1.5, None, [], True)
    for wrong in no_index:
        await talk.post("/arithmetic/task", {"split": "train", "index": wrong})
        await talk.post("/arithmetic/task_range", {"split": "train", "start": wrong})
    await talk.send("POST", "/arithmetic/tasks", raw=b'{"split": "train"}', headers={"Content-Type": "text/plain"})
    await talk.send("POST", "/arithmetic/num_tasks", raw=b'{"split": "train", "split": "test"}')


@flow()
async def bare_paths(talk: Talk) -> None:
    for follow in (False, True):
        await talk.send("GET", "/tools", follow=follow)
        await talk.send("GET", "/splits?x=1", follow=follow)
        await talk.send("POST", "/tasks", json={"split": "test"}, follow=follow)
        await talk.send("POST", "/num_tasks", json={"split": "test"}, follow=follow)
        await talk.send("POST", "/task", json={"split": "test", "index": 1}, follow=follow)
        await talk.send("POST", "/task_range", json={"split": "test"}, follow=follow)
        await talk.send("GET", "/prompt", sid="nobody", follow=follow)
        await talk.send("POST", "/call", json={"name": "hint", "input": {}}, sid="nobody", follow=follow)
    await talk.get("/no-such-environment/tools?x=1&y=%20")
    await talk.send("GET", "/no-such-environment/tools", follow=True)
    await talk.get("/arithmetic/no-such-endpoint")
    await talk.get("/")
    await talk.get("/arithmetic")
    for header in ("workshop", "Acme/Workshop", "acme/no-such-environment"):
        await talk.send("GET", "/tools", headers={"X-Deployment": header}, follow=True)
    await talk.get("/arithmetic/tools", X_Deployment="Acme/Workshop")
