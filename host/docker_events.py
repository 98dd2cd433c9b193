"""What Docker tells of our containers while they live: its event stream, read by a thread of its own.

Whoever watches a container is called back in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from host import docker_client
from host.engine import LABEL_SERVER

log = structlog.get_logger()

_RETRY_S = 1.0
"""Until a stream that broke is opened again."""

_FILTERS = {"type": ["container"], "event": ["kill", "die", "destroy"], "label": [LABEL_SERVER]}


@dataclass
class Fate:
    """What was told of one container so far."""

    on_death: Callable[[], None]
    died: asyncio.Event = field(default_factory=asyncio.Event)
    removed: asyncio.Event = field(default_factory=asyncio.Event)
    signals: set[int] = field(default_factory=set)
    """What somebody had the engine send."""


class DockerEvents:
    """The event stream, from ``start()`` to ``stop()``, and whom it concerns."""

    def __init__(self, client: docker_client.APIClient) -> None:
        self._client = client
        self._fates: dict[str, Fate] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._run, name="engine-events", daemon=True)

    def start(self) -> None:
        """Read from now on, for the event loop that this is called in."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Hang up, and wait a little for the thread."""
        self._stopped.set()
        if self._stream is not None:
            with contextlib.suppress(Exception):  # it may have ended by itself just now
                self._stream.close()
        self._thread.join(timeout=2)

    def watch(self, name: str, on_death: Callable[[], None]) -> None:
        """Take note of what is told of a container, and call ``on_death`` when it is that it died."""
        self._fates[name] = Fate(on_death)

    def unwatch(self, name: str) -> None:
        """Forget a container."""
        self._fates.pop(name, None)

    def fate(self, name: str) -> Fate | None:
        """Return what was told of a container; None if nobody watches it."""
        return self._fates.get(name)

    def _run(self) -> None:
        assert self._loop is not None
        since = int(time.time())
        while not self._stopped.is_set():
            try:
                self._stream = self._client.events(since=since, decode=True, filters=_FILTERS)
                if self._stopped.is_set():  # before there was a stream to close
                    self._stream.close()
                    return
                for event in self._stream:
                    # A stream that is opened again starts here: nothing that died meanwhile is missed.
                    since = int(event["time"])
                    self._loop.call_soon_threadsafe(self._told, event["Action"], event["Actor"]["Attributes"])
            except Exception as exc:  # whatever broke the stream, the answer is to open it again
                if not self._stopped.is_set():
                    log.warning("engine_events_lost", error=str(exc))
            self._stopped.wait(_RETRY_S)

    def _told(self, action: str, attributes: Mapping[str, str]) -> None:
        fate = self._fates.get(attributes["name"])
        if fate is None:
            return
        match action:
            case "kill":
                # An image's labels stand over the engine's own attributes: this may be anything.
                if (signal := attributes.get("signal", "")).isdecimal():
                    fate.signals.add(int(signal[:3]))
            case "destroy":
                fate.removed.set()
            case "die":
                fate.died.set()
                fate.on_death()
