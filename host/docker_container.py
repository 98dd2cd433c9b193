"""A container of ours, as Docker is told to make it: what its spec says, and what is the same for all of them."""

from __future__ import annotations

from host import docker_client
from host.engine import RUNTIME_DIR, ContainerSpec
from host.placement import Placement

_LOG_LIMITS = {"max-size": "1m", "max-file": "2"}
_OPEN_FILES = 4096
_CPU_SHARES = 256
"""A quarter of what others get by default: where processors are short, containers wait for the host and the engine."""


def create(client: docker_client.APIClient, spec: ContainerSpec, placement: Placement) -> str:
    """Create a container and return its id. Blocks.

    Raises:
        docker_client.ERRORS: Docker refused, or didn't answer.
    """
    host_config = client.create_host_config(
        network_mode="none",
        cap_drop=["ALL"],
        cap_add=list(spec.confinement.capabilities),
        security_opt=list(spec.confinement.security_options),
        read_only=spec.confinement.read_only_root,
        runtime=spec.confinement.oci_runtime,
        init=True,
        restart_policy={"Name": "no"},
        mem_limit=spec.limits.memory_bytes,
        memswap_limit=spec.limits.memory_bytes,
        nano_cpus=int(spec.limits.cpus * 1e9),
        cpu_shares=_CPU_SHARES,
        pids_limit=spec.confinement.pids,
        tmpfs=dict(spec.confinement.tmpfs),
        sysctls=dict(spec.confinement.sysctls),
        storage_opt={"size": str(spec.limits.quota_bytes)} if spec.limits.quota_bytes else None,
        ulimits=[
            docker_client.Ulimit(name="core", soft=0, hard=0),
            docker_client.Ulimit(name="nofile", soft=_OPEN_FILES, hard=_OPEN_FILES),
        ],
        log_config=docker_client.LogConfig(type="json-file", config=_LOG_LIMITS),
        mounts=[
            docker_client.Mount(place, str(placement.on_engine(directory) or directory), type="bind", read_only=True)
            for place, directory in {RUNTIME_DIR: spec.socket_dir, **spec.mounts}.items()
            if directory is not None
        ],
        group_add=[str(gid) for gid in spec.extra_groups],
    )
    made = client.create_container(
        spec.image.id,
        name=spec.name,
        hostname="sandbox",
        labels=dict(spec.labels),
        environment=dict(spec.environment),
        host_config=host_config,
        user=spec.confinement.user,
    )
    return str(made["Id"])
