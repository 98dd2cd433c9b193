"""Which channel a sandbox has, by what its image holds; and how a server in it is reached: from inside its network."""

from __future__ import annotations

from host.channel import Channel, ChannelBroken
from host.engine import EngineError
from host.netns import Namespace, NoEntry
from host.runtime_channel import RuntimeChannel
from host.sandbox_host import SandboxHost
from host.server_channel import ServerChannel


def channel_of(host: SandboxHost, name: str, sandbox_id: str, port: int | None) -> Channel:
    """Return the channel to what will be in a container, or is in one that an earlier host made; ``listen`` comes next.

    ``port``: where the server in it listens; None if a runtime of ours is in it.
    """
    directory = host.state.sandbox_dir(sandbox_id)
    if port is not None:
        return ServerChannel(
            directory,
            enter=lambda: _enter(host, name),
            port=port,
            note=host.state.server_note(sandbox_id),
            max_frame_bytes=host.settings.max_frame,
            intake=host.intake,
        )
    remapped = host.engine.remapped_root
    return RuntimeChannel(
        directory,
        token=host.state.token(sandbox_id),
        runtime_uid=remapped[0] if remapped else 0,
        max_frame_bytes=host.settings.max_frame,
        intake=host.intake,
    )


async def _enter(host: SandboxHost, name: str) -> Namespace:
    """Take hold of a running container's network.

    Raises:
        ChannelBroken: it doesn't run.
        NoEntry: it can't be had from here.
    """
    try:
        if (process := await host.engine.init_process(name)) is None:
            raise ChannelBroken("the container died")
        container_id, pid = process
        namespace = await host.namespaces.enter(pid, container_id)
        try:
            if await host.engine.init_process(name) != process:  # so it may not have been its network that was opened
                raise ChannelBroken("the container died")
        except BaseException:
            namespace.close()
            raise
        return namespace
    except EngineError as exc:
        raise NoEntry(f"the engine doesn't say which process it is ({exc})") from exc
