"""``python -m tests.attacks.attacker URL ATTACKERS``: attack a host until standard input ends.

Each attacker does so from one session after the other. A process of its own, so that what is measured beside it is the host and
not this. It prints a line after each attack.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

import aiohttp

from tests.docker.harness import Client

ATTACKS: list[dict[str, Any]] = [
    {"do": "heavy", "values": 400_000},
    {"do": "large", "size": 8 * 2**20},
    {"do": "many_values"},
    {"do": "long_error"},
    {"do": "nested"},
    {"do": "many_connections"},
    {"do": "unasked"},
]


async def attack_once(client: Client, tool_input: dict[str, Any]) -> None:
    """Open a session, have it attack, read what comes of it as cheaply as can be, delete it."""
    session = client.session()
    if (await session.post("/create", {"task_spec": {}}))[0] != 200:
        return
    body = {"name": "probe", "input": tool_input}
    try:
        async with client.http.post("/any/call", json=body, headers=session.headers) as response:
            async for _ in response.content.iter_chunked(2**20):
                pass
    except aiohttp.ClientError:
        pass
    await session.delete()


async def main(url: str, attackers: int) -> None:
    """Attack until standard input ends; what was begun is ended first."""
    told = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    async def attacker(http: aiohttp.ClientSession, first: int) -> None:
        for attack in itertools.islice(itertools.cycle(ATTACKS), first, None):
            if told.done():
                return
            await attack_once(Client(http), attack)
            print(attack["do"], flush=True)

    async with aiohttp.ClientSession(url) as http:
        await asyncio.gather(*(attacker(http, 2 * n) for n in range(attackers)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
