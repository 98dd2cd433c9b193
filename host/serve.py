"""The life of the server: open in order, serve, close in reverse. Every lifetime is a block in this file."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, closing

import anyio
import structlog
from anyio.abc import TaskGroup

from host import tracing
from host.app import make_app
from host.auth import Keys, check_exposure
from host.capacity import Capacity
from host.catalog import Catalog
from host.dashboard import Dashboard
from host.docker_engine import DockerEngine
from host.egress import Egress
from host.engine import Engine, EngineError
from host.errors import Failure, Reason
from host.gauges import show_gauges
from host.history import History
from host.isolation import check_runtimes
from host.listening import answering_that_it_starts, bind, listening, url_of
from host.memory import give_back_memory, keep_no_memory
from host.notify import notify
from host.overview import Overview
from host.patience import Patience
from host.pool import Pool
from host.preflight import check_places, limit_disk, warn_of_files_in_memory
from host.recording import Recorder
from host.recovery import recover
from host.sandbox_host import SandboxHost
from host.sessions import Sessions
from host.settings import Settings
from host.state import StateDir
from host.stopping import until_told
from host.timelines import Timelines

log = structlog.get_logger()

_SWEEP_S = 2.0
"""While something is left over that should be gone; else once in five times."""

_LAST_EFFORT_S = 3.0
"""What of the grace period is kept for removing containers whose sessions did not end in order."""

_PING_ENGINE_S = 5.0

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
    opened = open_engine or DockerEngine.open
    await until_told(lambda stop, patience: _serve(settings, stop, patience, opened), stop)


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
                check_places(host)
                await limit_disk(host)
                warn_of_files_in_memory(host)
            log.info("starting_catalog", images=settings.image)
            async with AsyncExitStack() as starting:
                await starting.enter_async_context(
                    answering_that_it_starts(sock, max_connections=settings.max_connections)
                )
                with closing(host), recorder.running():
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
    show_gauges(host, capacity, pool, sessions)
    history = History(timelines.tally, lambda: (len(sessions), capacity.waiting))
    overview = Overview(host, pool, sessions, history, recorder, started_at=time.time())
    app = make_app(
        catalog,
        sessions,
        max_body_bytes=settings.max_body,
        body_timeout_s=settings.body_timeout_s,
        keys=keys,
        dashboard=Dashboard(overview),
        node_api=settings.node_api,
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
