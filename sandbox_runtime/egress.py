"""The container's end of the way out: a port on loopback whose connections are passed to the host's proxy.

The container has no network; where the host lets it out, ``/run/ors-net`` holds a socket on which an HTTP proxy listens.
Programs know proxies by an address, so one is made for them. It is only a pipe: every rule is applied by the host.

Run as a program this file is that pipe, in a process of its own: what the agent sends through it takes none of the runtime's
time, and as a user of its own it can't be ended by the agent. Standard library only, and nothing of the package.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys

PROXY_SOCKET = "/run/ors-net/proxy.sock"
PORT = 3128

_USER = 65534  # nobody
_CHUNK_BYTES = 32 * 1024
_BACKLOG = 64


def proxy_environ() -> dict[str, str]:
    """Return the variables that tell programs of the proxy; none if there is no way out."""
    if not os.path.exists(PROXY_SOCKET):
        return {}
    url, exempt = f"http://127.0.0.1:{PORT}", "localhost,127.0.0.1,::1"
    environ = {"http_proxy": url, "https_proxy": url, "no_proxy": exempt}
    return environ | {name.upper(): value for name, value in environ.items()}


def start() -> None:
    """Start the pipe, if there is a way out. Its port is open when this returns.

    Raises:
        OSError: it can't be started.
    """
    if not os.path.exists(PROXY_SOCKET):
        return
    with socket.create_server(("127.0.0.1", PORT), backlog=_BACKLOG) as listener:
        fd = listener.fileno()
        subprocess.Popen(
            [
                *("choom", "-n", "500", "--"),
                *(
                    "setpriv",
                    f"--reuid={_USER}",
                    f"--regid={_USER}",
                    "--clear-groups",
                    "--no-new-privs",
                    "--pdeathsig=KILL",
                ),
                *("--", sys.executable, "-I", "-S", __file__, str(fd)),
            ],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            pass_fds=(fd,),
            start_new_session=True,
        )


async def _serve(listener: socket.socket) -> None:
    server = await asyncio.start_server(_pass, sock=listener, limit=_CHUNK_BYTES)
    await server.serve_forever()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        try:
            host_reader, host_writer = await asyncio.open_unix_connection(PROXY_SOCKET, limit=_CHUNK_BYTES)
            try:
                await asyncio.gather(_copy(reader, host_writer), _copy(host_reader, writer))
            finally:
                host_writer.close()
        finally:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


if __name__ == "__main__":
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1]))))
