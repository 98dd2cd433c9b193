"""Sessions to look at: good ones, one at work, one that failed, one with a picture."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.docker.harness import Client, Session

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))  # whose scripts import each other by name

from episodes import EPISODES, Episode

BUSY = """python3 - <<'EOF'
import time
block = bytearray(90_000_000)
end = time.time() + 300
while time.time() < end:
    sum(range(100_000))
EOF"""


async def begin(client: Client, environment: str, split: str, index: int) -> Session:
    """Create a session and ask for its prompt."""
    session = client.session()
    body = {"env_name": environment, "split": split, "index": index}
    status, answer = await session.post("/create", body)
    assert status == 200, answer
    await session.get(f"/{environment}/prompt")
    return session


async def play(client: Client, episode: Episode, *, calls: int | None = None) -> Session:
    """Play an episode, or the first calls of it; it is not deleted."""
    session = await begin(client, episode.environment, episode.split, episode.index)
    for call in episode.calls[:calls]:
        await session.call(call.tool, **call.input)
    return session


def episode(environment: str, title: str) -> Episode:
    """Return one of the examples' episodes."""
    return next(e for e in EPISODES if e.environment == environment and e.title == title)
