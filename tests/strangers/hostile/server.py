"""A server of somebody's, on the standard library: honest until it is told otherwise, by a task, a tool or a split's name.

What it does from its start on is in a file of the data folder, so that a test can change it between two containers.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import misdeeds
from wire import Connection

HOW = Path("/orwd_data/how.json")
SPLITS = ("train", *misdeeds.ANSWERS)
TOOLS = [
    {"name": name, "description": f"The tool {name}.", "input_schema": {"type": "object", "properties": {}}}
    for name in ("arm", "count", "misbehave", "say", "secrets", "shell", "sleep", "state")
]


class Episode:
    """One session. ``calls`` counts what was run, whoever asked for it and whether or not it was answered."""

    def __init__(self, task: dict, secrets: dict) -> None:
        self.task = task
        self.secrets = secrets
        self.calls = 0
        self.prompts = 0
        self.asked_too_early = 0
        self.ready_at = time.monotonic() + task.get("setup_s", 0)

    def still_starting(self) -> bool:
        """Tell whether a request is to be put off, as openreward's server does."""
        self.asked_too_early += 1
        return self.asked_too_early <= self.task.get("put_off", 0)


class Server:
    def __init__(self) -> None:
        self.how = json.loads(HOW.read_text()) if HOW.exists() else {}
        self.episodes: dict[str, Episode] = {}
        self.results: dict[str, str | None] = {}
        """None while a call runs."""

        address = self.how.get("listen", "127.0.0.1")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.listener = socket.create_server((address, 8080), family=family, backlog=64)

    def serve(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:  # it was closed, by a misdeed
                time.sleep(3600)
            threading.Thread(target=self.converse, args=[sock], daemon=True).start()

    def converse(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, misdeeds.HangUp):
            connection = Connection(sock)
            while connection.read():
                self.answer(connection)

    def answer(self, it: Connection) -> None:
        start = self.how.get("start")
        if start == "only_health" and it.path != "/health":
            return it.json(404, {"detail": "Not Found"})
        if start in misdeeds.ANSWERS:
            return misdeeds.ANSWERS[start](it, it.body)
        match it.path.strip("/").split("/"):
            case ["health"]:
                it.json(200, {"status": "ok"})
            case ["list_environments"]:
                it.json(200, ["hostile"])
            case ["create_session"]:
                self.create_session(it)
            case ["create"]:
                self.create(it)
            case ["ping"]:
                it.json(200, {"status": "ok"}) if self.episode(it) else None
            case ["delete" | "delete_session" as what]:
                if what == "delete":
                    self.episodes.pop(it.sid, None)
                it.json(200, {"sid": it.sid})
            case [_, what]:
                self.environment(it, what)
            case _:
                it.json(404, {"detail": "Not Found"})

    def create_session(self, it: Connection) -> None:
        if self.how.get("create_session") == "json":
            it.json(200, {"sid": "0b1c"})
        else:
            it.events(("task_id", "0b1c"), ("end", ""))

    def create(self, it: Connection) -> None:
        body, secrets = it.body, {}
        if header := it.headers.get("x-secrets"):
            secrets = {name: each["value"] for name, each in json.loads(base64.b64decode(header)).items()}
        match self.how.get("secrets"):
            case "header":
                if "secrets" in body:
                    return it.json(422, {"detail": [{"loc": ["body", "secrets"], "msg": "Extra inputs"}]})
            case "body":
                secrets = body.get("secrets") or {}
            case _:
                secrets = {**(body.get("secrets") or {}), **secrets}
        if not it.sid:
            return it.json(400, {"detail": "X-Session-ID header is required"})
        if it.sid in self.episodes:
            return it.json(400, {"detail": "Session already exists"})
        task = body["task_spec"] if "task_spec" in body else {"n": body["index"]}
        if what := task.get("create"):
            return misdeeds.ANSWERS[what](it, task)
        self.episodes[it.sid] = Episode(task, secrets)
        it.json(200, {"sid": it.sid})

    def episode(self, it: Connection) -> Episode | None:
        episode = self.episodes.get(it.sid)
        if episode is None:
            it.json(404, {"detail": "Active environment not found"})
        return episode

    def environment(self, it: Connection, what: str) -> None:
        split = it.body.get("split")
        if what in ("tasks", "num_tasks", "task", "task_range") and split in misdeeds.ANSWERS:
            return misdeeds.ANSWERS[split](it, it.body)
        tasks = [{"n": n} for n in range(3)]
        match what:
            case "tools":
                it.json(200, {"tools": TOOLS})
            case "splits":
                it.json(200, [{"name": name, "type": "train"} for name in SPLITS])
            case "tasks":
                it.json(200, {"tasks": tasks, "env_name": "hostile"})
            case "num_tasks":
                it.json(200, {"num_tasks": len(tasks)})
            case "task":
                it.json(200, {"task": tasks[it.body["index"]], "env_name": "hostile"})
            case "task_range":
                it.json(200, {"tasks": tasks[it.body.get("start") : it.body.get("stop")], "env_name": "hostile"})
            case "prompt" | "task_tools" | "call":
                if episode := self.episode(it):
                    self.in_session(it, what, episode)
            case _:
                it.json(404, {"detail": "Not Found"})

    def in_session(self, it: Connection, what: str, episode: Episode) -> None:
        if episode.still_starting():
            headers = "Retry-After: 1\r\nX-Backend-State: starting\r\n"
            return it.json(503, {"detail": "Environment still starting."}, headers)
        time.sleep(max(0, episode.ready_at - time.monotonic()))
        if words := episode.task.get("setup_raises"):
            return it.json(500, {"detail": words})
        if misdeed := episode.task.get(what):
            return misdeeds.ANSWERS[misdeed](it, episode.task)
        if what == "call":
            self.call(it, episode)
        elif what == "prompt":
            episode.prompts += 1
            it.json(200, [{"type": "text", "text": f"Prompt {episode.prompts}.", "detail": None}])
        else:
            it.json(200, {"tools": TOOLS})

    def call(self, it: Connection, episode: Episode) -> None:
        known = it.body.get("task_id")
        if known in self.results:
            while self.results[known] is None:
                time.sleep(0.02)
            return it.events(("task_id", known), ("end", self.results[known]))
        if known is not None:
            return it.events(("task_id", known), ("error", "unknown task_id"))
        task_id = os.urandom(16).hex()
        given = it.body["input"]
        episode.calls += 1
        match it.body["name"]:
            case "misbehave":
                return misdeeds.CALLS[given["what"]](self, it, given, task_id)
            case "arm":  # what it is to do wrong from now on
                episode.task.update(given)
                text = "armed"
            case "count":
                text = str(episode.calls)
            case "say":
                text = given["text"] * given.get("times", 1)
            case "secrets":
                text = json.dumps(episode.secrets, sort_keys=True)
            case "state":
                text = json.dumps({"prompts": episode.prompts, "calls": episode.calls, "sessions": len(self.episodes)})
            case "shell":
                done = subprocess.run(["bash", "-c", given["command"]], stdout=-1, stderr=-2, timeout=30)
                text = done.stdout.decode(errors="replace")
            case "sleep":
                return self.sleep(it, episode, task_id)
            case name:
                refusal = json.dumps({"ok": False, "error": f"'{name}' is not a valid tool"})
                return it.events(("task_id", task_id), ("end", refusal))
        self.results[task_id] = misdeeds.result(text)
        it.events(("task_id", task_id), ("end", self.results[task_id]))

    def sleep(self, it: Connection, episode: Episode, task_id: str) -> None:
        self.results[task_id] = None
        it.begin_events()
        it.event("task_id", task_id)
        time.sleep(it.body["input"]["seconds"])
        self.results[task_id] = misdeeds.result(str(episode.calls))
        it.finish(misdeeds.event("end", self.results[task_id]))


if __name__ == "__main__":
    how = json.loads(HOW.read_text()) if HOW.exists() else {}
    match how.get("start"):
        case "never_listens":
            time.sleep(3600)
        case "exits":
            sys.exit("this server has nothing to say")
        case "forks_and_exits" if os.fork():
            sys.exit(0)
    Server().serve()
