"""How much of processors and memory each container uses, looked at every few seconds: cheap enough for hundreds.

The numbers are read from the kernel's files where the containers run on this machine: three small files a container, in a
thread. Where they don't, or can't be seen from here (a host in a container of its own), the engine is asked, a few containers
at a time and less often. Containers that are no containers (``ors-host dev``), or that an OCI runtime keeps out of cgroups, are
not measured.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import anyio
import anyio.to_thread
import structlog

from host.cgroups import Cgroups, Sample, of_stats
from host.engine import LABEL_IMAGE, ContainerRef, Engine, EngineError

log = structlog.get_logger()

_LOOK_S = 5.0
_REST_S = 30.0
"""Between looks when nobody has asked for a while, and between questions to the engine, which cost it much more."""

_ASKED_S = 150.0
"""Whoever has asked in this time is still there: Prometheus comes once a minute at the least."""

_ROUND_TIMEOUT_S = 10.0
_QUESTIONS = 4
"""To the engine at a time, of its threads for everything."""


@dataclass(frozen=True)
class Usage:
    """What one container uses. ``cpu``: processors, 1.0 is a whole one, 0 until it was looked at twice."""

    cpu: float
    memory_bytes: int
    image: str


class UsageWatch:
    """Looks at the containers of one host while ``run`` runs. ``names`` returns those that there are."""

    def __init__(
        self,
        engine: Engine,
        server_id: str,
        names: Callable[[], Collection[str]],
        *,
        cgroups: Cgroups | None = None,
    ) -> None:
        self._engine = engine
        self._server_id = server_id
        self._names = names
        self._cgroups = cgroups or Cgroups()
        self._thread = anyio.CapacityLimiter(1)
        self._known: dict[str, ContainerRef] = {}
        self._samples: dict[str, Sample] = {}
        self._usage: dict[str, Usage] = {}
        self._cpu_s: defaultdict[str, float] = defaultdict(float)
        self._asks_engine: bool | None = None
        self._rounds = 0
        self._asked_at = -_ASKED_S

    def snapshot(self) -> Mapping[str, Usage]:
        """Return what each container used when it was last looked at, by its name; those just started are not there yet."""
        self._asked_at = time.monotonic()
        return self._usage

    def cpu_seconds(self) -> Mapping[str, float]:
        """Return the processor time that containers have used since this host started, by image."""
        self._asked_at = time.monotonic()
        return dict(self._cpu_s)

    def by_image(self, look: Callable[[Usage], float], combine: Callable[[list[float]], float]) -> dict[str, float]:
        """Return one number for each image, combined from its containers'."""
        values: defaultdict[str, list[float]] = defaultdict(list)
        for usage in self.snapshot().values():
            values[usage.image].append(look(usage))
        return {image: combine(found) for image, found in values.items()}

    async def run(self) -> None:
        """Look until cancelled."""
        while self._engine.confines:
            try:
                with anyio.fail_after(_ROUND_TIMEOUT_S):
                    await self.look()
            except (EngineError, TimeoutError) as exc:
                log.debug("usage_not_measured", error=str(exc) or type(exc).__name__)
            asked = time.monotonic() - self._asked_at < _ASKED_S
            await anyio.sleep(_LOOK_S if asked and not self._asks_engine else _REST_S)

    async def look(self) -> None:
        """Look at every container once.

        Raises:
            EngineError: the engine doesn't say which there are.
        """
        names = set(self._names())
        if not names <= self._known.keys():
            listed = await self._engine.list_ours(self._server_id)
            self._known = {container.name: container for container in listed if container.running}
        known = {name: container for name, container in self._known.items() if name in names}
        if self._asks_engine is None and known:
            await self._choose(random.choice(tuple(known.values())))
        samples = await self._ask_engine(known) if self._asks_engine else await self._read(known)
        self._take(samples)

    async def _choose(self, container: ContainerRef) -> None:
        """Find out whether containers can be looked at from here, by one of them; if it ends just now, another will tell."""
        if self._cgroups.read(container.id) is not None:
            self._asks_engine = False
            return
        pids = await self._engine.processes(container.name)
        if self._cgroups.learn(container.id, pids) and self._cgroups.read(container.id) is not None:
            self._asks_engine = False
        elif of_stats(await self._engine.stats(container.name) or {}) is not None:
            self._asks_engine = True
            log.info("usage_from_engine", reason="the containers' cgroups can't be seen from here", every_s=_REST_S)

    async def _read(self, containers: Mapping[str, ContainerRef]) -> dict[str, Sample]:
        def read() -> dict[str, Sample]:
            found = ((name, self._cgroups.read(container.id)) for name, container in containers.items())
            return {name: sample for name, sample in found if sample is not None}

        return await anyio.to_thread.run_sync(read, limiter=self._thread, abandon_on_cancel=True)

    async def _ask_engine(self, containers: Mapping[str, ContainerRef]) -> dict[str, Sample]:
        samples: dict[str, Sample] = {}
        questions = anyio.CapacityLimiter(_QUESTIONS)

        async def ask(name: str) -> None:
            async with questions:
                try:
                    stats = await self._engine.stats(name)
                except EngineError:  # what it says of one that ends just now differs
                    return
            if stats is not None and (sample := of_stats(stats)) is not None:
                samples[name] = sample

        async with anyio.create_task_group() as tasks:
            for name in containers:
                tasks.start_soon(ask, name)
        return samples

    def _take(self, samples: dict[str, Sample]) -> None:
        usage = {}
        for name, sample in samples.items():
            image = self._known[name].labels.get(LABEL_IMAGE, "")
            before = self._samples.get(name)
            if before is None:
                # All that a new one has used is new; of one that was there before this host, nobody knows how much is.
                self._cpu_s[image] += sample.cpu_s if self._rounds else 0.0
                usage[name] = Usage(0.0, sample.memory_bytes, image)
                continue
            used_s = max(0.0, sample.cpu_s - before.cpu_s)
            self._cpu_s[image] += used_s
            elapsed_s = sample.at - before.at
            usage[name] = Usage(used_s / elapsed_s if elapsed_s > 0 else 0.0, sample.memory_bytes, image)
        self._samples, self._usage = samples, usage
        self._rounds += 1
