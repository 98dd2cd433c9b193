"""Every limit, time and path of the host, with its unit and its reason.

A setting is given by a flag of ``ors-host serve`` (``--max-sessions``), else by an environment variable
(``ORS_HOST_MAX_SESSIONS``), else by a file (``max_sessions``), else it has the default below: ``config.py`` brings them
together, and the command line is made from this model (``options.py``). What one image has otherwise than the others is an
``ImageSettings``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from host.egress_policy import EgressPolicy
from host.isolation import Profile
from host.kinds import Kind
from sandbox_runtime.frames import DEFAULT_MAX_FRAME_BYTES

ENV_PREFIX = "ORS_HOST_"

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


def default_state_dir() -> Path:
    """Return where the host's identity and sockets live: short, because unix socket paths end at 107 bytes."""
    if os.geteuid() == 0:
        return Path("/var/lib/ors-host")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "ors-host"


VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class ImageSettings(BaseModel):
    """What one image has otherwise than the others: a section ``[image."TAG"]`` of the file. None is as for all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warm: Annotated[int, Field(ge=0)] | None = None
    warm_max: Count | None = None
    isolation: Profile | None = None
    network: Literal["none", "internet"] | None = None
    kind: Kind | None = None
    server_port: Annotated[int, Field(gt=0, le=65535)] | None = None
    allow_host: tuple[str, ...] | None = None
    memory: ByteSize | None = None
    cpus: Annotated[float, Field(gt=0)] | None = None
    pids: Count | None = None
    tmp_size: ByteSize | None = None
    workspace_size: ByteSize | None = None
    disk: ByteSize | None = None
    inodes: Count | None = None
    data: str | None = None
    """A folder, as ``--data TAG=DIR``."""
    environment: Mapping[VariableName, str] = Field(default_factory=dict)
    """Variables of the containers. They are container metadata, for all to see who may ask the engine: no place for secrets."""
    secrets: Mapping[VariableName, Path] = Field(default_factory=dict)
    """Files whose content each session's environment gets as secrets, under these names; a client's own counts more."""

    @field_validator("allow_host")
    @classmethod
    def _check_names(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if value is None else EgressPolicy.allow(value).allowed or ()

    @field_validator("environment")
    @classmethod
    def _check_variables(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in value.items():
            if name == "PYTHONHASHSEED" or name.startswith("ORS_"):
                raise ValueError(f"{name} is the host's own; choose another name")
            if "\0" in text:
                raise ValueError(f"the value of {name} has a NUL character in it")
        return value

    def as_settings(self) -> dict[str, Any]:
        """Return the fields of ``Settings`` that differ for this image."""
        own = {"data", "environment", "secrets"}
        changed = {name: value for name, value in self if value is not None and name not in own}
        if "network" in changed:
            changed.setdefault("allow_host", ())  # "none" is none, whatever list holds for the others
        return changed


class Settings(BaseSettings):
    """The settings of one host; frozen once read."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    images: Annotated[Mapping[str, ImageSettings], NoDecode] = Field(
        default_factory=dict, description='Per image, by its tag: sections [image."TAG"] of the file.'
    )

    def for_image(self, tag: str) -> Settings:
        """Return the settings as they are for one image's containers."""
        section = self.images.get(tag)
        return self if section is None else self.model_copy(update=section.as_settings())

    def environment_of(self, tag: str) -> Mapping[str, str]:
        """Return the variables that an image's containers have besides the host's own."""
        return self.images[tag].environment if tag in self.images else {}

    @property
    def data_folders(self) -> tuple[str, ...]:
        """``data``, and what the images' sections have for images of which it says nothing."""
        named = {value.partition("=")[0] for value in self.data}
        sections = ((tag, self.images[tag]) for tag in self.image if tag in self.images and tag not in named)
        return (*self.data, *(f"{tag}={section.data}" for tag, section in sections if section.data is not None))

    # What is served, and where
    image: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Environment image to serve; repeatable. The first image's first environment is the default."
    )
    data: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Folder that environments read at /orwd_data, read-only: DIR for all images, TAG=DIR for one; repeatable.",
    )
    kind: Kind | None = Field(
        None,
        description="What images hold: runtime (ours) or server (an ORS server of their own); by default their label says.",
    )
    server_port: Annotated[int, Field(gt=0, le=65535)] | None = Field(
        None, description="Port of the images' own servers; by default their label ors-host.port, else 8080."
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    state_dir: Path = Field(
        default_factory=default_state_dir,
        description="Directory for the host's identity and its sockets; one host each. Keep the path short.",
    )

    @field_validator("image", "allow_host", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """In the environment variable, the values are separated by commas or spaces."""
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("data", mode="before")
    @classmethod
    def _split_data(cls, value: object) -> object:
        """In the environment variable, folders are separated by commas."""
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value

    @field_validator("allow_host")
    @classmethod
    def _check_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return EgressPolicy.allow(value).allowed or ()

    @property
    def egress(self) -> EgressPolicy | None:
        """What containers may reach; None is nothing."""
        if self.allow_host:
            return EgressPolicy(self.allow_host)
        return EgressPolicy(None) if self.network == "internet" else None

    # More than one machine
    engine: Literal["docker", "ray"] = Field(
        "docker", description="Where containers run: docker, on this machine; ray, on the nodes of a Ray cluster."
    )
    ray_address: str = Field(
        "auto", description="Ray: address of the cluster's head; auto is the cluster that this machine is a node of."
    )
    node_port: int = Field(
        0, ge=0, le=65535, description="Ray: port of the nodes' hosts, which fronts connect to; 0 takes a free one."
    )
    replace_agents: bool = Field(
        False, description="Ray: give nodes these settings although they run with others; sessions go on."
    )
    node_api: bool = False
    """Given by a node's agent alone: answer the front's questions (``node_api.py``)."""

    # Who may ask
    api_key: SecretStr | None = Field(
        None,
        description="Key that clients must send (X-API-Key). Rather a file or the variable: others see command lines.",
    )
    api_key_file: Path | None = Field(None, description="File that holds the key of --api-key.")
    agent_key: SecretStr | None = Field(
        None, description="Second key, good only for prompt, tools, calls and pings of sessions it is told of."
    )
    agent_key_file: Path | None = Field(None, description="File that holds the key of --agent-key.")
    allow_unauthenticated: bool = Field(
        False, description="Listen on an address that other machines reach although there is no key."
    )

    # How many
    max_sessions: Count = Field(64, description="Most sessions at once, those being created included.")
    queue_size: int = Field(256, ge=0, description="Creations that may wait for a free place; more are refused.")
    queue_timeout_s: Seconds = Field(60, description="Longest wait for a free place, in seconds; then 503.")
    warm: int = Field(
        1, ge=0, description="Containers of each image that wait, started, for a session; 0 starts none beforehand."
    )
    warm_max: Count = Field(8, description="Most that wait when sessions come many at a time; at least --warm.")
    start_concurrency: Count = Field(8, description="Containers started at the same time.")
    max_calls: Count = Field(64, description="Tool calls in flight in one session.")
    max_connections: Count = Field(4096, description="Connections of clients; more are closed at once.")

    # How far containers are shut in
    isolation: Profile = Field(
        Profile.STANDARD,
        description="Profile of the containers: standard, strict (read-only root, fewer system calls) or gvisor.",
    )

    network: Literal["none", "internet"] = Field(
        "none",
        description="What containers can reach: none, or internet (any public name; ports 80 and 443, by a proxy).",
    )
    allow_host: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Host name that containers can reach, all others not; *.NAME for any below it; repeatable."
    )

    # What one container may use
    memory: ByteSize = Field(ByteSize(2 * 1024**3), description="Memory of one container (no swap), e.g. 2GiB.")
    cpus: Annotated[float, Field(gt=0)] = Field(1.0, description="CPUs of one container.")
    pids: Count = Field(256, description="Processes and threads in one container.")
    tmp_size: ByteSize = Field(ByteSize(256 * 1024**2), description="Size of /tmp in a container (in memory).")

    workspace_size: ByteSize = Field(
        ByteSize(512 * 1024**2), description="strict: size of /workspace, and of /home/agent (in memory)."
    )
    disk: ByteSize = Field(
        ByteSize(2 * 1024**3),
        description="What a container may write to the disk; one that writes more is ended (disk_full).",
    )
    inodes: Count = Field(250_000, description="Files and directories that a container may make.")

    # How long
    start_timeout_s: Seconds = Field(60, description="From creating a container to its runtime's hello, in seconds.")
    create_timeout_s: Seconds = Field(120, description="The environment's constructor, in seconds.")
    setup_timeout_s: Seconds = Field(600, description="The environment's setup(), in seconds.")
    call_timeout_s: Seconds = Field(3600, description="One tool call, in seconds.")
    cancel_grace_s: Seconds = Field(5, description="For a timed-out request to end; then its container is removed.")
    prompt_wait_s: Seconds = Field(240, description="How long GET /prompt waits for setup(); then 503 'starting'.")
    discovery_timeout_s: Seconds = Field(120, description="One question about tools, splits or tasks, in seconds.")
    teardown_timeout_s: Seconds = Field(10, description="The environment's teardown(), in seconds.")
    idle_timeout_s: Seconds = Field(
        900, description="A session without a request for this long ends (ORS: 15 minutes)."
    )
    max_age_s: Seconds = Field(86400, description="The longest life of a session, in seconds.")
    reconnect_window_s: Seconds = Field(300, description="How long a runtime waits for a host that went away.")
    body_timeout_s: Seconds = Field(60, description="For the body of a request to arrive, in seconds.")
    result_linger_s: Seconds = Field(60, description="How long a call's result is kept for a client that reconnects.")
    on_exit: Literal["remove", "keep"] = Field(
        "remove",
        description="What a stop does with sessions: remove them, or keep them for the next host to go on with.",
    )
    shutdown_grace_s: Seconds = Field(30, description="For sessions to end in order when the host is told to stop.")

    # How large
    max_body: ByteSize = Field(ByteSize(16 * 1024**2), description="Largest body of a request.")
    max_frame: ByteSize = Field(
        ByteSize(DEFAULT_MAX_FRAME_BYTES), description="Largest message to or from a container; bounds a tool's result."
    )
    max_kept_results: ByteSize = Field(
        ByteSize(512 * 1024**2), description="Results kept for reconnection, of all sessions; the oldest go first."
    )

    # What is kept of episodes
    record: Literal["off", "memory", "directory"] = Field(
        "off",
        description="Keep prompts, inputs and outputs: off, in memory for the dashboard, or also as files. Secrets are masked.",
    )
    record_dir: Path | None = Field(None, description="Where the files are; by default transcripts in --state-dir.")
    record_session: ByteSize = Field(ByteSize(16 * 1024**2), description="Most that is kept of one session.")
    record_memory: ByteSize = Field(
        ByteSize(256 * 1024**2), description="Most that is kept in memory, of all sessions; the oldest goes first."
    )
    record_disk: ByteSize = Field(ByteSize(10 * 1024**3), description="Most that all files take; the oldest go first.")

    log_keep: Literal["on", "off"] = Field(
        "on", description="Keep the end of what a session's container wrote after it is gone, for the command logs."
    )
    log_keep_bytes: ByteSize = Field(
        ByteSize(64 * 1024), ge=1024, description="Most that is kept of one container's output."
    )
    log_keep_total: ByteSize = Field(
        ByteSize(64 * 1024**2), description="Most that is kept of all containers' output; the oldest goes first."
    )
    log_keep_age_s: Seconds = Field(86400, description="How long a container's output is kept, in seconds.")

    log_format: Literal["human", "json"] = Field("human", description="How log lines look.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is logged.")


OPTIONS = {name: field for name, field in Settings.model_fields.items() if name not in ("images", "node_api")}
"""What can be given by a flag and a variable: all but the images' sections, and what an agent says."""

SECRET = frozenset({"api_key", "agent_key"})
"""Shown to nobody."""

SECTIONS = {
    "image": "What is served, and where",
    "engine": "More than one machine",
    "api_key": "Who may ask",
    "max_sessions": "How many",
    "isolation": "How far containers are shut in",
    "memory": "What one container may use",
    "start_timeout_s": "How long",
    "max_body": "How large",
    "record": "What is kept of episodes",
    "log_format": "Logging",
}
"""The first option of each part of the help → its title."""
