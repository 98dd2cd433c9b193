"""What holds for the containers of one image: the settings of all, and what the image's section has otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pydantic import ByteSize

from host.egress_policy import EgressPolicy
from host.engine import Limits
from host.errors import StartupError
from host.files import Usage
from host.isolation import Confinement, Profile, Sizes, confine
from host.kinds import Kind
from host.settings import Settings

_MAX_SECRET_BYTES = 64 * 1024


@dataclass(frozen=True)
class Rules:
    """What one image's containers may use and reach, and what their environments are given."""

    profile: Profile
    memory: ByteSize
    limits: Limits
    confinements: Mapping[Kind, Confinement]
    """By what the image holds; ``confinement`` is that of images of ours."""
    usage: Usage
    """What they may write."""
    egress: EgressPolicy | None
    """What they may reach; None is nothing."""
    warm: int
    warm_max: int
    kind: Kind | None
    """What the image holds, where that is not told by its label."""
    server_port: int | None
    environment: Mapping[str, str] = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, settings: Settings, tag: str, *, remapped: bool) -> Self:
        """Return what holds for an image.

        Args:
            remapped: whether the engine remaps user namespaces.

        Raises:
            StartupError: a secret's file can't be read.
        """
        own = settings.for_image(tag)
        section = settings.images.get(tag)
        sizes = Sizes(own.tmp_size, own.workspace_size, inodes=own.inodes, pids=own.pids, memory_bytes=own.memory)
        return cls(
            profile=own.isolation,
            memory=own.memory,
            limits=Limits(own.memory, own.cpus),
            confinements={kind: confine(own.isolation, sizes, kind=kind, remapped=remapped) for kind in Kind},
            usage=Usage(own.disk, own.inodes),
            egress=own.egress,
            warm=own.warm,
            warm_max=own.warm_max,
            kind=own.kind,
            server_port=own.server_port,
            environment=settings.environment_of(tag),
            secrets={} if section is None else {name: _read(name, path) for name, path in section.secrets.items()},
        )

    @property
    def confinement(self) -> Confinement:
        """How the image's containers are shut in: as ``kind`` says, or as images of ours."""
        return self.confinements[self.kind or Kind.RUNTIME]

    def with_secrets(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """Return what a session's environment gets, where a client gave these: its own count more, unless they are empty.

        One of the public clients sends names with nothing behind them.
        """
        return {**self.secrets, **{name: value for name, value in given.items() if value or name not in self.secrets}}


def _read(name: str, path: Path) -> str:
    try:
        content = path.expanduser().read_bytes()
        text = content.decode()
    except OSError as exc:
        raise StartupError(f"the secret {name} can't be read from {path}: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise StartupError(f"the secret {name} in {path} is not text in UTF-8") from None
    if len(content) > _MAX_SECRET_BYTES:
        raise StartupError(f"the secret {name} in {path} is longer than {_MAX_SECRET_BYTES} bytes")
    return text.removesuffix("\n").removesuffix("\r")
