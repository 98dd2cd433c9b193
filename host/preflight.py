"""What is looked at before a host serves: that the engine finds its directories, what holds the disk, what memory can do."""

from __future__ import annotations

import contextlib

import structlog
from pydantic import ByteSize

from host.engine import LABEL_SERVER, EngineError
from host.isolation import missing_memory
from host.sandbox_host import SandboxHost

log = structlog.get_logger()


def check_places(host: SandboxHost) -> None:
    """Refuse directories that the engine can't find.

    Raises:
        StartupError: this is a container, and one is not mounted into it.
    """
    host.engine.placement.check(host.state.path, "the state directory", "--state-dir")
    for folder in host.data.values():
        host.engine.placement.check(folder, "the data folder", "--data")


async def limit_disk(host: SandboxHost) -> None:
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


def warn_of_files_in_memory(host: SandboxHost) -> None:
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
