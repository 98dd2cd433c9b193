"""The egress proxy on its socket: what is let through, and every way round the list that is not. No containers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from host import egress
from host.egress import SOCKET_NAME, Egress
from host.egress_policy import EgressPolicy, InvalidName, is_outside, normalized
from host.network import Network, _is_ours
from host.tls_name import NotTLS, ServerNameReader
from tests.isolation.internet import EVIL, GOOD, Internet, running_internet


@dataclass
class Proxy:
    """A proxy and the internet behind it."""

    path: Path
    internet: Internet

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self.path))

    async def ask(self, text: str | bytes) -> str:
        """Send something, and return all that comes back until the proxy hangs up."""
        reader, writer = await self.open()
        writer.write(text.encode() if isinstance(text, str) else text)
        answer = (await reader.read()).decode()
        writer.close()
        return answer

    async def tunnel(self, name: str, *, sni: str | None = None, port: int = 443, tls: bool = True) -> str:
        """Return what a server behind a tunnel says; ``sni``: the name that the server is asked for, if another."""
        reader, writer = await self.open()
        try:
            writer.write(f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if " 200 " not in head:
                return head + (await reader.read()).decode()
            if tls:
                context = ssl.create_default_context(cafile=str(self.internet.ca_pem))
                context.check_hostname = False
                await writer.start_tls(context, server_hostname=sni or name)
            writer.write(f"GET / HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            return (await reader.read()).decode()
        except (ConnectionError, ssl.SSLError):
            return "hung up on"
        finally:
            writer.close()


@pytest.fixture
async def proxies(tmp_path: Path) -> AsyncIterator[Callable[[EgressPolicy], Awaitable[Proxy]]]:
    """Start proxies. Each lives in a task of its own, as its lifetime is a block and a fixture's two halves are no block."""
    done = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def run(directory: Path, policy: EgressPolicy, started: asyncio.Future[Proxy]) -> None:
        async with (
            running_internet(directory) as internet,
            Egress.open(internet.network, max_sandboxes=4) as opened,
        ):
            outlet = opened.outlet(directory / "net", policy)
            started.set_result(Proxy(directory / "net" / SOCKET_NAME, internet))
            await done.wait()
            await outlet.aclose()

    async def start(policy: EgressPolicy) -> Proxy:
        started: asyncio.Future[Proxy] = asyncio.get_running_loop().create_future()
        directory = tmp_path / str(len(tasks))
        directory.mkdir()
        tasks.append(asyncio.create_task(run(directory, policy, started)))
        return await started

    yield start
    done.set()
    await asyncio.gather(*tasks)


@pytest.fixture
async def listed(proxies: Callable[[EgressPolicy], Awaitable[Proxy]]) -> Proxy:
    """A proxy with a list: ``good.example.com`` and all below ``wild.example``."""
    return await proxies(EgressPolicy.allow((GOOD, "*.wild.example")))


@pytest.fixture
async def unlisted(proxies: Callable[[EgressPolicy], Awaitable[Proxy]]) -> Proxy:
    """A proxy to anything on the internet."""
    return await proxies(EgressPolicy(None))


# --- What goes through ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [GOOD, "GOOD.example.COM", GOOD + "."])
async def test_what_is_on_the_list_can_be_reached(listed: Proxy, name: str) -> None:
    assert (await listed.tunnel(name)).endswith(f"this is {GOOD}")
    assert (await listed.ask(f"GET http://{name}/a?b HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(f"this is {GOOD}")
    assert listed.internet.network.dialled == [("1.1.1.1", 443), ("1.1.1.1", 80)]


async def test_without_a_list_any_name_can(unlisted: Proxy) -> None:
    for name in (GOOD, EVIL):
        assert (await unlisted.tunnel(name)).endswith(f"this is {name}")


async def test_names_below_a_wildcard(listed: Proxy) -> None:
    network = listed.internet.network
    for name in ("a.wild.example", "b.a.wild.example"):
        network.names[name] = [["1.1.1.1"]]
        assert (await listed.tunnel(name)).endswith(f"this is {GOOD}")
    network.names["wild.example"] = network.names["notwild.example"] = [["1.1.1.1"]]
    for name in ("wild.example", "notwild.example", "wild.example.evil.example.org"):
        assert " 403 " in await listed.tunnel(name)


async def test_a_body_goes_through_and_the_request_is_written_anew(listed: Proxy) -> None:
    text = (
        f"POST http://{GOOD}/x HTTP/1.1\r\nHost: {EVIL}\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\nX-Kept: 2\r\n"
        "Proxy-Authorization: secret\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody"
    )
    answer = await listed.ask(text)
    assert answer.endswith(f"this is {GOOD}")
    head, body = listed.internet.good.heard[:2]
    assert head.startswith(b"POST /x HTTP/1.1\r\nHost: good.example.com\r\n")
    assert head.lower().count(b"host:") == 1 and b"x-kept: 2" in head.lower() and body == b"body"
    for gone in (b"x-mine", b"proxy-authorization", b"keep-alive", b"expect"):
        assert gone not in head.lower()


# --- What does not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "1.1.1.1",
        "127.0.0.1",
        "169.254.169.254",
        "[::1]",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "localhost",
        "metadata",
    ]
    + ["good.example.com\x00.evil", "good.example.com@evil.example.org", "good.example.com%00", "gооd.example.com", ""],
)
async def test_only_names_can_be_reached(unlisted: Proxy, name: str) -> None:
    for text in (f"CONNECT {name}:443 HTTP/1.1\r\nHost: x\r\n\r\n", f"GET http://{name}/ HTTP/1.1\r\nHost: x\r\n\r\n"):
        assert (await unlisted.ask(text)).startswith(("HTTP/1.1 403 ", "HTTP/1.1 400 ")), text
    assert unlisted.internet.network.looked_up == []


async def test_what_is_not_on_the_list_is_not_even_looked_up(listed: Proxy) -> None:
    assert "403 Forbidden" in await listed.tunnel(EVIL)
    answer = await listed.ask(f"GET http://{EVIL}/ HTTP/1.1\r\nHost: {GOOD}\r\n\r\n")
    assert answer.endswith(f"ors-host: {EVIL} is not on the list of hosts that may be reached from here\n")
    assert listed.internet.network.looked_up == []  # so that no name can carry data out


@pytest.mark.parametrize("port", [22, 25, 53, 80, 853, 8443, 0, 65536])
async def test_tunnels_lead_to_one_port(unlisted: Proxy, port: int) -> None:
    assert "only port 443" in await unlisted.tunnel(GOOD, port=port)
    assert "only port 80" in await unlisted.ask(f"GET http://{GOOD}:{port + 1}/ HTTP/1.1\r\nHost: x\r\n\r\n")


async def test_a_tunnel_to_one_name_cannot_ask_for_another(listed: Proxy, unlisted: Proxy) -> None:
    assert (await unlisted.tunnel(GOOD, sni=EVIL)).endswith(f"this is {GOOD}")  # so it is the list that forbids it
    assert await listed.tunnel(GOOD, sni=EVIL) == "hung up on"
    assert listed.internet.good.heard == []


async def test_a_tunnel_under_a_list_is_tls(listed: Proxy) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", b"\x16\x03\x01" + b"\xff" * 60_000, b"\0"):
        reader, writer = await listed.open()
        writer.write(f"CONNECT {GOOD}:443 HTTP/1.1\r\nHost: {GOOD}\r\n\r\n".encode() + data)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
    assert not any(listed.internet.good.heard)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.17.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.100.100.200",
        "0.0.0.0",
        "168.63.129.16",
    ]
    + [
        "192.0.0.192",
        "::1",
        "::",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "::7f00:1",
    ]
    + ["224.0.0.1", "ff02::1", "255.255.255.255", "fe80::1%eth0"],
)
async def test_a_name_that_leads_inside_leads_nowhere(listed: Proxy, address: str) -> None:
    listed.internet.network.names[GOOD] = [[address]]
    assert "has no address on the internet" in await listed.tunnel(GOOD)
    assert listed.internet.network.dialled == []


async def test_rebinding(listed: Proxy) -> None:
    """The name means the inside from its second lookup on: there is none, for one connection."""
    listed.internet.network.names[GOOD] = [["10.0.0.1", "1.1.1.1"], ["127.0.0.1"]]
    assert (await listed.tunnel(GOOD)).endswith(f"this is {GOOD}")
    assert listed.internet.network.dialled == [("1.1.1.1", 443)]
    assert "has no address on the internet" in await listed.tunnel(GOOD)


async def test_a_second_request_on_the_connection_goes_nowhere(listed: Proxy) -> None:
    """Neither pipelined nor smuggled in a body of two lengths."""
    listed.internet.good.listen_on_s = 0.1
    second = f"GET http://{EVIL}/ HTTP/1.1\r\nHost: {EVIL}\r\n\r\n"
    pipelined = f"GET http://{GOOD}/1 HTTP/1.1\r\nHost: x\r\n\r\n" + second
    assert (await listed.ask(pipelined)).count("this is") == 1
    smuggled = (
        f"POST http://{GOOD}/2 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        + second
    )
    await listed.ask(smuggled)
    heard = b"".join(listed.internet.good.heard)
    assert b"evil" not in heard and heard.count(b"HTTP/1.1") <= 2 and heard.count(b"GET ") == 1
    assert listed.internet.evil.heard == []


@pytest.mark.parametrize(
    "text",
    ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET ftp://a.example/ HTTP/1.1\r\nHost: a\r\n\r\n", "\x16\x03\x01\r\n\r\n"],
)
async def test_what_is_no_proxy_request(listed: Proxy, text: str) -> None:
    assert (await listed.ask(text)).startswith("HTTP/1.1 400 ")


async def test_a_head_that_never_ends(listed: Proxy) -> None:
    assert (await listed.ask(b"GET http://a.example/ HTTP/1.1\r\nX: " + b"x" * 100_000)).startswith("HTTP/1.1 431 ")


async def test_silence_is_hung_up_on(listed: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "_HEAD_TIMEOUT_S", 0.05)
    assert await listed.ask("GET http://") == ""


async def test_connections_are_bounded_and_others_wait(tmp_path: Path) -> None:
    async with (
        running_internet(tmp_path) as internet,
        anyio.create_task_group() as tasks,
    ):
        opened = Egress(internet.network, tasks, max_connections=2)
        outlets = [opened.outlet(tmp_path / name, EgressPolicy(None)) for name in ("a", "b")]
        mine, others = (Proxy(tmp_path / name / SOCKET_NAME, internet) for name in ("a", "b"))
        idle = [await mine.open() for _ in range(2)]
        third = asyncio.create_task(mine.tunnel(GOOD))
        assert (await others.tunnel(GOOD)).endswith(f"this is {GOOD}")  # another sandbox's places are its own
        assert not third.done()
        idle[0][1].close()
        assert (await third).endswith(f"this is {GOOD}")
        idle[1][1].close()
        for outlet in outlets:
            await outlet.aclose()


async def test_an_outlet_that_is_closed_cuts_what_runs(tmp_path: Path) -> None:
    async with (
        running_internet(tmp_path) as internet,
        Egress.open(internet.network, max_sandboxes=1) as opened,
    ):
        outlet = opened.outlet(tmp_path / "net", EgressPolicy(None))
        proxy = Proxy(tmp_path / "net" / SOCKET_NAME, internet)
        reader, writer = await proxy.open()
        writer.write(f"CONNECT {GOOD}:443 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        await outlet.aclose()
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await proxy.open()
        again = opened.outlet(
            tmp_path / "net", EgressPolicy(None)
        )  # as the next host does for a container that lived on
        assert (await proxy.tunnel(GOOD)).endswith(f"this is {GOOD}")
        await again.aclose()


# --- Its parts --------------------------------------------------------------------------------------------------------


def test_lists_are_checked() -> None:
    assert EgressPolicy.allow(("A.example.", "*.B.example", "a.example")).allowed == ("a.example", "*.b.example")
    for name in (
        "*",
        "*.",
        "a",
        "10.0.0.1",
        "http://a.example",
        "a.example:443",
        "a.*.example",
        "**.a.example",
        "a b.example",
    ):
        with pytest.raises(InvalidName):
            EgressPolicy.allow((name,))


def test_public_addresses_are_outside() -> None:
    assert all(
        is_outside(address) for address in ("1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "64:ff9b::808:808")
    )
    assert normalized("XN--Bcher-kva.Example.") == "xn--bcher-kva.example"


def test_this_machine_is_not_outside_under_any_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _is_ours("127.0.0.1") and not _is_ours("192.0.2.1")
    network = Network()
    monkeypatch.setattr("host.network.is_outside", lambda address: True)
    assert not network.is_outside("127.0.0.1")
    network.close()


async def test_the_machines_own_resolver() -> None:
    network = Network()
    with pytest.raises(socket.gaierror):
        await network.look_up("no-such-name.invalid")
    network.close()


def test_a_hello_is_read_from_any_pieces() -> None:
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=GOOD)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    reader = ServerNameReader()
    assert [reader.feed(hello[n : n + 1]) for n in range(len(hello))] == [False] * (len(hello) - 1) + [True]
    assert reader.name == GOOD
    whole = ServerNameReader()
    assert whole.feed(hello + b"more") and whole.name == GOOD
    with pytest.raises(NotTLS):
        ServerNameReader().feed(b"GET / HTTP/1.1\r\n")
