"""The life of the server: open in order, serve, close in reverse. Every lifetime is a block in this file."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, closing

import anyio
import structlog
from anyio.abc import TaskGroup
from pydantic import ByteSize

from host import tracing
from host.app import make_app
from host.auth import Keys, check_exposure
from host.capacity import Capacity
from host.catalog import Catalog
from host.dashboard import Dashboard
from host.egress import Egress
from host.engine import LABEL_SERVER, Engine, EngineError
from host.errors import Failure, Reason, StartupError
from host.history import History
from host.isolation import check_runtimes, missing_memory
from host.listening import answering_that_it_starts, bind, listening, url_of
from host.logs import heed_loop
from host.memory import give_back_memory, keep_no_memory
from host.notify import notify
from host.overview import Overview
from host.patience import Patience
from host.pool import Pool
from host.recording import Recorder
from host.recovery import recover
from host.sandbox import SandboxHost
from host.sessions import Sessions
from host.settings import Settings
from host.state import StateDir
from host.timelines import Timelines

log = structlog.get_logger()

_SWEEP_S = 2.0
"""While something is left over that should be gone; else once in five times."""

_LAST_EFFORT_S = 3.0
"""What of the grace period is kept for removing containers whose sessions did not end in order."""

_AT_ONCE_S = 1.0
_PING_ENGINE_S = 5.0
_SAME_WORD_S = 1.0
"""Signals closer together than this are one: `timeout` and terminals send theirs to the process and to its group."""

_SHUTDOWN = Failure(Reason.HOST_SHUTDOWN, "the server is shutting down")


async def serve(
    settings: Settings,
    *,
    stop: anyio.Event | None = None,
    open_engine: Callable[[], AbstractAsyncContextManager[Engine]] | None = None,
) -> None:
    """Serve until ``stop`` is set or the process is told to (SIGTERM, SIGINT); a second signal cuts the ending short.

    Raises:
        StartupError: it can't start; the sentence says why and what to do.
    """
    heed_loop(asyncio.get_running_loop())
    stop = stop or anyio.Event()
    try:
        async with anyio.create_task_group() as tasks:
            patience = Patience()
            tasks.start_soon(_stop_on_signal, stop, tasks.cancel_scope, patience)
            await _serve(settings, stop, patience, open_engine or Engine.open)
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if (error := _only(group)) is not None:
            raise error from None
        raise


async def _serve(
    settings: Settings,
    stop: anyio.Event,
    patience: Patience,
    open_engine: Callable[[], AbstractAsyncContextManager[Engine]],
) -> None:
    keep_no_memory()
    keys = Keys.of(settings)
    with closing(StateDir.open(settings.state_dir)) as state, closing(bind(settings)) as sock, ExitStack() as stack:
        keys = keys.with_operator(state.operator_key)
        check_exposure(keys, settings, sock.getsockname()[0])
        stack.enter_context(tracing.running(state.server_id))
        recorder = Recorder(settings)
        async with open_engine() as engine, _egress(settings) as egress:
            for tag in settings.image:
                check_runtimes(settings.for_image(tag).isolation, engine.oci_runtimes)
            host = SandboxHost(engine, state, settings, egress=egress, patience=patience)
            if engine.confines:
                _check_places(host)
                await _limit_disk(host)
                _warn_of_files_in_memory(host)
            log.info("starting_catalog", images=settings.image)
            async with AsyncExitStack() as starting:
                await starting.enter_async_context(
                    answering_that_it_starts(sock, max_connections=settings.max_connections)
                )
                with closing(host.intake), recorder.running():
                    async with Catalog.open(host, settings.image) as catalog, anyio.create_task_group() as tasks:
                        tasks.start_soon(host.disk.run)
                        tasks.start_soon(host.usage.run)
                        tasks.start_soon(_ask_engine, engine)
                        await _run(settings, keys, host, catalog, recorder, tasks, sock, starting, stop)
                        tasks.cancel_scope.cancel()
    log.info("stopped")


async def _run(
    settings: Settings,
    keys: Keys,
    host: SandboxHost,
    catalog: Catalog,
    recorder: Recorder,
    tasks: TaskGroup,
    sock: socket.socket,
    starting: AsyncExitStack,
    stop: anyio.Event,
) -> None:
    capacity = Capacity(
        settings.max_sessions,
        queue_size=settings.queue_size,
        queue_timeout_s=settings.queue_timeout_s,
        leftovers=lambda: host.leftovers,
    )
    pool = Pool(host, capacity, lambda: catalog.images, clock=time.monotonic)
    timelines = Timelines(recorder)
    sessions = Sessions(host=host, pool=pool, tasks=tasks, clock=time.monotonic, timelines=timelines)
    _show(host, capacity, pool, sessions)
    history = History(timelines.tally, lambda: (len(sessions), capacity.waiting))
    overview = Overview(host, pool, sessions, history, recorder, started_at=time.time())
    app = make_app(
        catalog,
        sessions,
        max_body_bytes=settings.max_body,
        body_timeout_s=settings.body_timeout_s,
        keys=keys,
        dashboard=Dashboard(overview),
    )
    # Only now, when nothing can keep this host from serving any more: a host that can't start leaves sessions as they are.
    await recover(host, sessions)
    host.engine.on_request = host.metrics.engine_asked
    tasks.start_soon(_sweep, host, capacity)
    tasks.start_soon(pool.run)
    tasks.start_soon(catalog.follow)
    tasks.start_soon(history.run)
    await starting.aclose()
    async with listening(app, sock, max_connections=settings.max_connections):
        url = url_of(sock)
        host.state.announce(url)
        log.info(
            "serving",
            url=url,
            environments=catalog.names,
            server=host.state.server_id,
            key_needed=keys.needed,
        )
        notify("READY=1")
        await stop.wait()
        notify("STOPPING=1")
        pool.close()
        log.info("stopping", sessions=len(sessions), on_exit=settings.on_exit, grace_s=settings.shutdown_grace_s)
        grace_s = settings.shutdown_grace_s
        with anyio.move_on_after(max(grace_s - _LAST_EFFORT_S, grace_s / 2)) as grace:
            if settings.on_exit == "keep":
                await sessions.leave_all_to_next(_SHUTDOWN)
            else:
                await sessions.close_all(_SHUTDOWN)
            await pool.wait_closed()
        if grace.cancelled_caught:
            log.warning("shutdown_grace_over", sessions=len(sessions))
            host.patience.end(min(_LAST_EFFORT_S, grace_s / 2))


def _show(host: SandboxHost, capacity: Capacity, pool: Pool, sessions: Sessions) -> None:
    """Let the metrics look at what there is."""
    show = host.metrics.show
    show("ors_host_sessions", "Sessions there are.", sessions.count_by_state, "state")
    show("ors_host_sessions_limit", "Sessions there may be (--max-sessions).", lambda: capacity.limit)
    show("ors_host_places_free", "Places for containers that nothing has.", lambda: capacity.free)
    show("ors_host_queue", "Creations that wait for a place.", lambda: capacity.waiting)
    show("ors_host_warm_containers", "Containers that wait for a session.", pool.waiting_by_image, "image")
    show("ors_host_leftover_containers", "Containers that could not be removed yet.", lambda: host.leftovers)
    show("ors_host_kept_result_bytes", "Results kept for clients that reconnect.", lambda: sessions.kept_bytes)
    show("ors_host_engine_up", "1 if the container engine answers.", lambda: host.engine.problem is None)
    usage = host.usage
    memory, cpus = (lambda used: used.memory_bytes), (lambda used: used.cpu)
    for name, help_text, look in (
        ("ors_host_containers_memory_bytes", "Memory of an image's containers.", lambda: usage.by_image(memory, sum)),
        ("ors_host_container_memory_max_bytes", "Memory of the largest of them.", lambda: usage.by_image(memory, max)),
        ("ors_host_containers_cpus", "Processors that an image's containers use.", lambda: usage.by_image(cpus, sum)),
        ("ors_host_container_cpus_max", "Processors that the busiest of them uses.", lambda: usage.by_image(cpus, max)),
    ):
        show(name, help_text, look, "image")
    show(
        "ors_host_containers_cpu_seconds",
        "Processor time that an image's containers have used.",
        usage.cpu_seconds,
        "image",
        counter=True,
    )


def _only(group: BaseExceptionGroup[BaseException]) -> StartupError | None:
    """Return the start-up error that is all there is in the task groups' wrapping, if so."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, StartupError) else None


@asynccontextmanager
async def _egress(settings: Settings) -> AsyncIterator[Egress | None]:
    """The way out of the containers, if any image's have one."""
    policies = {tag: settings.for_image(tag).egress for tag in settings.image}
    for tag, policy in policies.items():
        if policy is not None:
            allowed = "any name on the internet" if policy.allowed is None else policy.allowed
            log.info("egress", image=tag, allowed=allowed)
    if not any(policies.values()):
        yield None
        return
    # An image's catalog container may be replaced, or a new image's started, while its predecessor is still being removed.
    async with Egress.open(max_sandboxes=settings.max_sessions + 3 * len(settings.image)) as egress:
        yield egress


def _check_places(host: SandboxHost) -> None:
    """Refuse directories that the engine can't find.

    Raises:
        StartupError: this is a container, and one is not mounted into it.
    """
    host.engine.placement.check(host.state.path, "the state directory", "--state-dir")
    for folder in host.data.values():
        host.engine.placement.check(folder, "the data folder", "--data")


async def _limit_disk(host: SandboxHost) -> None:
    """Use the storage driver's quota where it has one, and say what holds."""
    settings = host.settings
    held_by = (
        "measuring the containers' files" if host.disk.measures_files else "asking the engine (inodes: not counted)"
    )
    with contextlib.suppress(EngineError):  # a missing image, say: the catalog has the words for it
        if await host.engine.has_quota(settings.image[0], {LABEL_SERVER: host.state.server_id}):
            host.has_quota = True
            held_by = f"the storage driver's quota (inodes: {held_by})"
    for tag in settings.image:
        own = settings.for_image(tag)
        log.info("disk_limit", image=tag, disk=own.disk.human_readable(), inodes=own.inodes, held_by=held_by)


def _warn_of_files_in_memory(host: SandboxHost) -> None:
    """Say so where files alone could leave too little memory for anything else."""
    for tag in host.settings.image:
        rules = host.rules(tag)
        if missing := missing_memory(rules.confinement, rules.memory):
            log.warning(
                "files_can_use_up_memory",
                image=tag,
                consequence="an agent can end its own session as out_of_memory with files in memory alone",
                memory=rules.memory.human_readable(),
                enough=ByteSize(rules.memory + missing).human_readable(),
                advice="a larger --memory, or a smaller --tmp-size, --workspace-size or --inodes",
            )


async def _sweep(host: SandboxHost, capacity: Capacity) -> None:
    for turn in itertools.count():
        await anyio.sleep(_SWEEP_S)
        if turn % 5 == 0:
            give_back_memory()
            host.kept_logs.prune()
        if not host.leftovers and turn % 5:
            continue
        try:
            if removed := await host.sweep():
                log.warning("leftovers_removed", containers=removed)
        except EngineError as exc:
            log.warning("leftovers_not_removed", error=str(exc))
        capacity.recount()


async def _ask_engine(engine: Engine) -> None:
    """Keep what ``/ready`` says of the engine true."""
    while True:
        await engine.ping()
        await anyio.sleep(_PING_ENGINE_S)


async def _stop_on_signal(stop: anyio.Event, everything: anyio.CancelScope, patience: Patience) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        told_at = -_SAME_WORD_S
        async for number in signals:
            now = anyio.current_time()
            if not stop.is_set():
                told_at = now
                stop.set()
            elif now - told_at >= _SAME_WORD_S:
                log.warning("stopping_at_once", signal=number.name)
                patience.end(_AT_ONCE_S)
                everything.cancel()
