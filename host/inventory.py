"""All containers that hosts made on this engine, and which session each is for; with or without those hosts.

A container's labels say whose it is, the directory that it has mounted (or else a label) where that host's state is, and the
state which session it is for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from host import docker_client
from host.cgroups import of_stats
from host.engine import LABEL_IMAGE, LABEL_ROLE, LABEL_SANDBOX, LABEL_SERVER, RUNTIME_DIR, Role
from host.errors import StartupError
from host.kinds import LABEL_STATE
from host.placement import Placement
from host.state_view import Life, StateView

_THREADS = 16
_CPU_WINDOW_S = 0.5
"""Over which the use of processors is measured."""

_SHORTEST_ID = 8


@dataclass(frozen=True)
class Entry:
    """One container. Times are in seconds; ``idle_s`` is None where no session is."""

    name: str
    id: str
    sandbox: str
    kind: Literal["session", "warm", "catalog"]
    session: str | None
    environment: str | None
    image: str
    state: str
    """The engine's word: created, running, exited …"""
    age_s: float
    idle_s: float | None
    host: StateView
    server_id: str


@dataclass(frozen=True)
class Use:
    """What a container uses just now: of memory without what the kernel could drop, of processors 1.0 for a whole one."""

    memory_bytes: int
    memory_limit_bytes: int
    cpus: float
    processes: int | None


class Inventory:
    """The engine, asked what there is. Opened with ``with Inventory.open()``."""

    def __init__(self, client: docker_client.APIClient) -> None:
        self.client = client

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Inventory]:
        """Connect to the engine.

        Raises:
            docker_client.EngineUnavailable: none answers.
            StartupError: within the block: the engine refused, or stopped answering.
        """
        client = docker_client.connect(max_pool_size=_THREADS)
        try:
            yield cls(client)
        except docker_client.ERRORS as exc:
            raise StartupError(f"the Docker engine: {docker_client.explain(exc)}") from exc
        finally:
            client.close()

    def entries(self, server_id: str | None = None) -> list[Entry]:
        """Return one host's containers, or all hosts'; sessions first, the oldest last."""
        label = LABEL_SERVER if server_id is None else f"{LABEL_SERVER}={server_id}"
        views: dict[Path, StateView] = {}
        placement = docker_client.placement_of(self.client)
        found = [item for item in self.client.containers(all=True, filters={"label": label}) if item["Names"]]
        entries = [_entry(item, views, placement) for item in found]
        return sorted(entries, key=lambda entry: (entry.server_id, entry.kind != "session", entry.kind, entry.age_s))

    def use(self, entries: Sequence[Entry]) -> Mapping[str, Use]:
        """Measure what containers use; return by name. Those that don't run, or are gone meanwhile, are left out."""
        running = [entry.name for entry in entries if entry.state == "running"]
        with ThreadPoolExecutor(_THREADS) as threads:
            before = list(threads.map(self._sample, running))
            if running:
                time.sleep(_CPU_WINDOW_S)
            after = list(threads.map(self._sample, running))
        return {
            name: use
            for name, first, second in zip(running, before, after, strict=True)
            if first is not None and second is not None and (use := _use(first, second)) is not None
        }

    def inspect(self, entry: Entry) -> dict[str, Any]:
        """Return the engine's own description of a container.

        Raises:
            StartupError: it is gone.
        """
        try:
            data: dict[str, Any] = self.client.inspect_container(entry.id)
        except docker_client.NotFound:
            raise StartupError(f"the container {entry.name} is gone") from None
        return data

    def log(self, entry: Entry, *, follow: bool, tail: int | None) -> Iterator[tuple[str, str]]:
        """Yield (time, text) of each line that a container wrote, as long as it is there; with ``follow`` until it ends."""
        try:
            stream = self.client.logs(
                entry.id, stream=True, follow=follow, timestamps=True, tail="all" if tail is None else tail
            )
            for line in _lines(stream):
                at, _, text = line.partition(" ")
                yield at, text
        except docker_client.APIError as exc:
            if exc.status_code not in (404, 409):  # gone, going
                raise
            raise StartupError(f"the container {entry.name} is gone") from None

    def remove(self, entry: Entry) -> None:
        """Kill and remove a container; fine if it is gone."""
        try:
            self.client.remove_container(entry.id, force=True, v=True)
        except docker_client.NotFound:
            return
        except docker_client.APIError as exc:
            if exc.status_code != 409:  # its removal is under way
                raise

    def _sample(self, name: str) -> dict[str, Any] | None:
        try:
            stats: dict[str, Any] = self.client.stats(name, stream=False, one_shot=True)
        except docker_client.ERRORS:  # it ends just now; what the engine says to that differs
            return None
        return stats


def find(entries: Sequence[Entry], word: str) -> Entry:
    """Return the container that a session's id, or the beginning of one that is like no other, names; or a sandbox's.

    Raises:
        StartupError: there is none, or more than one.
    """
    exact = [entry for entry in entries if word in (entry.session, entry.sandbox, entry.name)]
    begun = [entry for entry in entries if (entry.session or "").startswith(word) or entry.sandbox.startswith(word)]
    found = exact or begun
    if len(found) == 1:
        return found[0]
    if found:
        raise StartupError(f"{word!r} begins the ids of {len(found)} sessions: give more of the one that you mean")
    raise StartupError(
        f"there is no session {word!r}: it has ended (its host's log says why), or is another host's (ors-host ps --all-hosts)"
    )


def as_data(entry: Entry, use: Use | None) -> dict[str, Any]:
    """Return what is known of a container, as JSON has it; times in seconds."""
    return {
        "session": entry.session,
        "kind": entry.kind,
        "environment": entry.environment,
        "image": entry.image,
        "state": entry.state,
        "age_s": round(entry.age_s, 1),
        "idle_s": None if entry.idle_s is None else round(entry.idle_s, 1),
        "memory_bytes": use.memory_bytes if use else None,
        "memory_limit_bytes": use.memory_limit_bytes if use else None,
        "cpus": round(use.cpus, 3) if use else None,
        "processes": use.processes if use else None,
        "sandbox": entry.sandbox,
        "container": entry.name,
        "host": {
            "server": entry.server_id,
            "state_dir": str(entry.host.path),
            "life": entry.host.life.name.lower(),
            "pid": entry.host.pid,
        },
    }


def duration(seconds: float | None) -> str:
    """Return a time in its two largest units: ``3m 20s``."""
    if seconds is None:
        return ""
    for length, unit, smaller_length, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= length:
            return f"{int(seconds // length)}{unit} {int(seconds % length // smaller_length)}{smaller}"
    return f"{int(seconds)}s"


def short_ids(entries: Sequence[Entry]) -> Mapping[str, str]:
    """Return for each session's id a beginning of it that no other of these has."""
    ids = sorted({entry.session for entry in entries if entry.session is not None})
    shared = [0] * (len(ids) + 1)
    for place, (one, next_one) in enumerate(zip(ids, ids[1:], strict=False), start=1):
        shared[place] = next(
            (n for n, (a, b) in enumerate(zip(one, next_one, strict=False)) if a != b), min(len(one), len(next_one))
        )
    return {sid: sid[: max(_SHORTEST_ID, shared[place] + 1, shared[place + 1] + 1)] for place, sid in enumerate(ids)}


def _entry(item: Mapping[str, Any], views: dict[Path, StateView], placement: Placement) -> Entry:
    labels = item["Labels"]
    sandbox = labels.get(LABEL_SANDBOX, "")
    view = _view(item, views, placement)
    assignment = view.assignment(sandbox) if view.server_id == labels[LABEL_SERVER] else None
    touched = view.last_touched(sandbox) if assignment else None
    now = time.time()
    kind: Literal["session", "warm", "catalog"] = "catalog"
    if labels.get(LABEL_ROLE) == Role.SESSION:
        kind = "session" if assignment else "warm"
    return Entry(
        name=item["Names"][0].lstrip("/"),
        id=item["Id"],
        sandbox=sandbox,
        kind=kind,
        session=assignment.session if assignment else None,
        environment=assignment.environment if assignment else None,
        image=labels.get(LABEL_IMAGE, item["Image"]),  # the latter is the id, which may have other names by now
        state=item["State"],
        age_s=max(0.0, now - (assignment.created_at if assignment else item["Created"])),
        idle_s=max(0.0, now - touched) if touched is not None else None,
        host=view,
        server_id=labels[LABEL_SERVER],
    )


def _view(item: Mapping[str, Any], views: dict[Path, StateView], placement: Placement) -> StateView:
    for mount in item.get("Mounts") or ():
        if mount.get("Destination") == RUNTIME_DIR:
            path = placement.here(Path(mount["Source"]).parent.parent)
            if path not in views:
                views[path] = StateView.of(path)
            return views[path]
    if (state := item["Labels"].get(LABEL_STATE)) is not None:
        return views.setdefault(Path(state), StateView.of(Path(state)))
    return StateView(Path(), "", Life.UNKNOWN, problem="the container has no state directory")


def _use(before: Mapping[str, Any], after: Mapping[str, Any]) -> Use | None:
    first, last = of_stats(before), of_stats(after)
    if first is None or last is None:  # it ended in between
        return None
    elapsed_s = _seconds(after["read"]) - _seconds(before["read"])
    return Use(
        memory_bytes=last.memory_bytes,
        memory_limit_bytes=after["memory_stats"]["limit"],
        cpus=max(0.0, (last.cpu_s - first.cpu_s) / elapsed_s) if elapsed_s > 0 else 0.0,
        processes=(after.get("pids_stats") or {}).get("current"),
    )


def _seconds(timestamp: str) -> float:
    whole, _, fraction = timestamp.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


def _lines(stream: Iterator[bytes]) -> Iterator[str]:
    rest = b""
    for piece in stream:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")
