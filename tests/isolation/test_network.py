"""The way out as code in a container sees it: programs that know proxies work, and nothing else leads anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from host.docker_engine import DockerEngine
from host.egress import Egress
from host.egress_policy import EgressPolicy
from host.engine import Role
from host.isolation import Profile
from host.sandbox import Sandbox
from host.sandbox_host import SandboxHost
from host.settings import Settings
from host.state import StateDir
from sandbox_runtime.messages import Method
from tests.isolation.internet import EVIL, GOOD, Internet, running_internet

PROFILES = [Profile.STANDARD, Profile.STRICT, Profile.GVISOR]


class Box:
    """A sandbox with an environment, and the shell of its agent."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._ids = itertools.count()
        self.environ: dict[str, str] = {}

    async def bash(self, command: str) -> str:
        variables = "".join(f"export {name}={value}; " for name, value in self.environ.items())
        params = {"name": "bash", "input": {"command": variables + command}, "call_id": f"call-{next(self._ids)}"}
        answer = await self._sandbox.request(Method.CALL, params, timeout_s=60)
        return str(answer["output"]["blocks"][0]["text"])


@asynccontextmanager
async def running_boxes(
    image: str, profile: Profile, egress: Egress | None, count: int, policy: EgressPolicy | None = None
) -> AsyncIterator[list[Box]]:
    network = "none" if policy is None else "internet"
    settings = Settings(
        image=(image,), isolation=profile, network=network, allow_host=(policy and policy.allowed) or ()
    )
    with (
        tempfile.TemporaryDirectory(prefix="ors-", dir="/tmp") as directory,
        contextlib.closing(StateDir.open(Path(directory))) as state,
    ):
        async with DockerEngine.open() as engine, contextlib.AsyncExitStack() as stack:
            host = SandboxHost(engine, state, settings, egress=egress)
            found = await engine.image(image)
            boxes = []
            for _ in range(count):
                sandbox = await stack.enter_async_context(Sandbox.open(host, found, role=Role.SESSION))
                params: dict[str, Any] = {"env": "Probe", "task_spec": {}, "secrets": {}, "toolset_name": None}
                await sandbox.request(Method.CREATE, params, timeout_s=60)
                await sandbox.request(Method.SETUP, {}, timeout_s=60)
                boxes.append(Box(sandbox))
            yield boxes


ATTEMPTS = {
    "by address": "curl -sS -m 5 https://1.1.1.1/",
    "without the proxy, by address": "curl -sS -m 5 --noproxy '*' http://1.1.1.1/",
    "without the proxy, by name": f"curl -sS -m 5 --noproxy '*' https://{GOOD}/",
    "another name": f"curl -sS -m 5 https://{EVIL}/",
    "another name, in plain": f"curl -sS -m 5 -f http://{EVIL}/",
    "another name at a good address": f"curl -sS -m 5 --connect-to {EVIL}:443:{GOOD}:443 https://{EVIL}/",
    "another port": f"curl -sS -m 5 https://{GOOD}:8443/",
    "DNS over HTTPS": "curl -sS -m 5 https://cloudflare-dns.com/dns-query?name=a.example",
    "DNS": "python3 -c 'import socket; print(socket.gethostbyname(\"good.example.com\"))'",
    "DNS by UDP": 'python3 -c \'import socket; socket.socket(2, 2).sendto(b"x", ("1.1.1.1", 53))\'',
    "IPv6": "curl -sS -m 5 --noproxy '*' 'http://[2606:4700:4700::1111]/'",
    "IPv6, by the proxy": "curl -sS -m 5 'https://[2606:4700:4700::1111]/'",
    "metadata": "curl -sS -m 5 -f http://169.254.169.254/latest/meta-data/",
    "the host's port": "curl -sS -m 5 -f http://localhost:HOST_PORT/",
    "the host's port, by the proxy": "curl -sS -m 5 -f --noproxy '' http://127.0.0.1:HOST_PORT/",
    "the host by Docker's name": "curl -sS -m 5 -f http://host.docker.internal:HOST_PORT/",
    "another protocol in a tunnel": f"curl -sS -m 5 --proxytunnel http://{GOOD}:443/",
    "a socket put in place of the proxy's": "ln -sf /tmp/x /run/ors-net/proxy.sock",
    "a second directory entry": "touch /run/ors-net/x",
}
"""Command lines that must not work."""


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_list_holds(tools_image: str, profile: Profile, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if profile is Profile.GVISOR:
        request.getfixturevalue("gvisor")
    async with (
        running_internet(tmp_path) as internet,
        Egress.open(internet.network, max_sandboxes=2) as egress,
        running_boxes(tools_image, profile, egress, 1, EgressPolicy.allow((GOOD,))) as (box,),
    ):
        await _trust(box, internet)
        assert f"this is {GOOD}" in await box.bash(f"curl -sS https://{GOOD}/ 2>&1")
        assert f"this is {GOOD}" in await box.bash(f"curl -sS http://{GOOD}/ 2>&1")
        urllib = "import ssl, urllib.request as u; print(u.urlopen('URL').read())".replace("URL", f"https://{GOOD}/")
        assert f"this is {GOOD}" in await box.bash(f'python3 -c "{urllib}" 2>&1')
        by_the_socket = f"--unix-socket /run/ors-net/proxy.sock http://{EVIL}/"
        assert "not on the list" in await box.bash(
            f"curl -sS --noproxy '*' --request-target http://{EVIL}/ {by_the_socket} 2>&1"
        )

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.append(True)
            writer.close()

        reached: list[bool] = []
        async with await asyncio.start_server(greet, "0.0.0.0", 0) as server:
            port = server.sockets[0].getsockname()[1]
            for name, command in ATTEMPTS.items():
                output = await box.bash(
                    f"{command.replace('HOST_PORT', str(port))} >out 2>err && echo worked; cat out err"
                )
                assert "worked" not in output and "this is" not in output, (name, output)
        assert reached == []
        assert internet.evil.heard == []
        assert internet.network.looked_up.count(GOOD) == len(internet.network.looked_up)
        assert internet.network.dialled == [("1.1.1.1", 443), ("1.1.1.1", 80), ("1.1.1.1", 443)] + [
            ("1.1.1.1", 443)
        ] * (len(internet.network.dialled) - 3)


async def test_the_attempts_work_where_nothing_forbids_them(tools_image: str, tmp_path: Path) -> None:
    """Without a list, the other name can be reached: so it is the list that keeps from it, and not a slip of the test."""
    async with (
        running_internet(tmp_path) as internet,
        Egress.open(internet.network, max_sandboxes=4) as egress,
        running_boxes(tools_image, Profile.STANDARD, egress, 2, EgressPolicy(None)) as boxes,
    ):
        box, neighbour = boxes
        await _trust(box, internet)
        assert f"this is {EVIL}" in await box.bash(ATTEMPTS["another name"])
        assert f"this is {EVIL}" in await box.bash(ATTEMPTS["another name, in plain"])
        # The pipe to the proxy is nobody's to end, and each container has its own.
        end = "for p in /proc/[0-9]*; do grep -qa egress[.]py $p/cmdline && kill -9 ${p#/proc/}; done 2>&1"
        assert "Operation not permitted" in await box.bash(end)
        assert f"this is {EVIL}" in await box.bash("kill -9 -1; true") + await box.bash(ATTEMPTS["another name"])
        await box.bash("nohup python3 -m http.server 8000 >/dev/null 2>&1 & sleep 0.1; hostname -i")
        assert "worked" not in await neighbour.bash(
            "curl -sS -m 5 -f --noproxy '*' http://sandbox:8000/ && echo worked"
        )


async def test_without_a_network_there_is_no_proxy(tools_image: str) -> None:
    async with running_boxes(tools_image, Profile.STANDARD, None, 1) as (box,):
        assert await box.bash("env | grep -ic proxy; ls /run/ors-net 2>&1; ls /sys/class/net") == (
            "0\nls: cannot access '/run/ors-net': No such file or directory\nlo\n"
        )
        assert "worked" not in await box.bash("curl -sS -m 5 http://1.1.1.1/ && echo worked")


async def _trust(box: Box, internet: Internet) -> None:
    """Have the agent's programs trust the internet's certificates."""
    pem = internet.ca_pem.read_text()
    await box.bash(f"cat > /tmp/ca.pem <<'PEM'\n{pem}\nPEM")
    for name in ("CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        box.environ[name] = "/tmp/ca.pem"
