"""What the metrics look at whenever somebody asks: sessions, places, containers and what they use, just now."""

from __future__ import annotations

from host.capacity import Capacity
from host.pool import Pool
from host.sandbox_host import SandboxHost
from host.sessions import Sessions


def show_gauges(host: SandboxHost, capacity: Capacity, pool: Pool, sessions: Sessions) -> None:
    """Let the metrics look at what there is."""
    show = host.metrics.show
    show("ors_host_sessions", "Sessions there are.", sessions.count_by_state, "state")
    show("ors_host_sessions_limit", "Sessions there may be (--max-sessions).", lambda: capacity.limit)
    show("ors_host_places_free", "Places for containers that nothing has.", lambda: capacity.free)
    show("ors_host_queue", "Creations that wait for a place.", lambda: capacity.waiting)
    show("ors_host_warm_containers", "Containers that wait for a session.", pool.waiting_by_image, "image")
    show(
        "ors_host_leftover_containers",
        "Containers that could not be removed yet, or may yet appear.",
        lambda: host.leftovers,
    )
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
