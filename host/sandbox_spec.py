"""What a sandbox's container is made from: the image's rules, and what every container of this host is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from host.data import DATA_DIR
from host.doorstep import shared_groups
from host.engine import EGRESS_DIR, LABEL_IMAGE, LABEL_ROLE, LABEL_SANDBOX, LABEL_SERVER, ContainerSpec, Image, Role
from host.kinds import LABEL_KIND, LABEL_PORT, LABEL_STATE, Kind
from host.sandbox_host import OUTLET_NAME, SandboxHost

HASH_SEED = "0"
"""One for all: an environment that shuffles by ``hash()`` must do so alike in the catalog and in every session."""


def container_spec(
    host: SandboxHost, image: Image, name: str, sandbox_id: str, *, role: Role, port: int | None
) -> ContainerSpec:
    """Return what a new sandbox's container is made from.

    ``port``: where the server in it listens; None if a runtime of ours is in it.
    """
    rules = host.rules(image.tag)
    directory = host.state.sandbox_dir(sandbox_id)
    ours = port is None
    kind = Kind.RUNTIME if ours else Kind.SERVER
    return ContainerSpec(
        name=name,
        image=image,
        socket_dir=directory if ours else None,
        labels={
            LABEL_SERVER: host.state.server_id,
            LABEL_SANDBOX: sandbox_id,
            LABEL_ROLE: role,
            LABEL_IMAGE: image.tag,
            LABEL_KIND: kind,
            **({} if ours else {LABEL_PORT: str(port), LABEL_STATE: str(host.state.path)}),
        },
        environment={
            **rules.environment,
            "PYTHONHASHSEED": HASH_SEED,
            **({"ORS_RUNTIME_RECONNECT_S": f"{host.settings.reconnect_window_s:g}"} if ours else {}),
        },
        mounts=_mounts(host, image, directory),
        limits=replace(rules.limits, quota_bytes=rules.usage.bytes_ if host.has_quota else None),
        confinement=rules.confinements[kind],
        extra_groups=shared_groups() if ours else (),
    )


def _mounts(host: SandboxHost, image: Image, directory: Path) -> dict[str, Path]:
    mounts = {DATA_DIR: host.data[image.tag]} if image.tag in host.data else {}
    if host.egress is not None and host.rules(image.tag).egress is not None:
        mounts[EGRESS_DIR] = directory / OUTLET_NAME
    return mounts
