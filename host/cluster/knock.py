"""Whether anything listens at an address: how a node whose host doesn't answer is told from one that is gone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import Enum, auto

_ANSWER_S = 1.0


class Knock(Enum):
    """What comes of it."""

    OPEN = auto()
    REFUSED = auto()
    """The machine is there, and nothing listens."""
    SILENT = auto()


async def knock(address: str, port: int) -> Knock:
    """Connect and hang up."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            _reader, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return Knock.REFUSED
    except (OSError, TimeoutError):
        return Knock.SILENT
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return Knock.OPEN
