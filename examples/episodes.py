"""Scripted episodes on the examples, good agents and bad ones, and how to play one with a client of either SDK."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Call:
    """One tool call of a scripted agent. ``images`` is the number of PNGs that must come back."""

    tool: str
    input: Mapping[str, Any] = field(default_factory=dict)
    images: int = 0


@dataclass(frozen=True)
class Episode:
    """A task, what the agent does, and the reward that this deserves. The last call must finish the episode."""

    environment: str
    title: str
    split: str
    index: int
    calls: tuple[Call, ...]
    reward: float


@dataclass(frozen=True)
class Outcome:
    """How an episode went."""

    steps: int
    reward: float | None
    seconds: float


class EpisodeFailed(Exception):
    """The server did not do what the episode relies on."""


async def play(environment: Any, episode: Episode) -> Outcome:
    """Play a whole episode.

    Args:
        environment: the environment as the async client of ``ors`` or of ``openreward`` gives it.

    Raises:
        EpisodeFailed: no prompt, a tool that is missing, images that are missing or no PNGs, or the wrong call finished it.
    """
    start = time.monotonic()
    # By the task, not by split and index: with those the client of `ors` leaves out which environment it means.
    task = await environment.get_task(episode.split, episode.index)
    async with environment.session(task) as session:
        prompt = await session.get_prompt()
        if not any(block.type == "text" and block.text for block in prompt):
            raise EpisodeFailed("the prompt has no text")
        tools = {tool.name for tool in await session.list_tools()}
        if missing := {call.tool for call in episode.calls} - tools:
            raise EpisodeFailed(f"the environment has no tool {', '.join(sorted(missing))}")
        for call in episode.calls:
            output = await session.call_tool(call.tool, dict(call.input))
            images = [block for block in output.blocks if block.type == "image"]
            if len(images) != call.images or not all(map(_is_png, images)):
                raise EpisodeFailed(f"{call.tool} returned {len(images)} images, {call.images} PNGs were expected")
            if output.finished != (call is episode.calls[-1]):
                raise EpisodeFailed(f"after {call.tool} finished is {output.finished}")
    return Outcome(steps=len(episode.calls), reward=output.reward, seconds=time.monotonic() - start)


def _is_png(block: Any) -> bool:
    return block.mimeType == "image/png" and base64.b64decode(block.data).startswith(PNG_SIGNATURE)


def _bash(command: str) -> Call:
    return Call("bash", {"command": command})


_SORT_LOGS = """
cd logs
for log in app-*.log; do
    year=${log:4:4}
    mkdir -p "$year" && mv "$log" "$year/"
done
"""

_FIND_LARGEST = r"find data -type f -printf '%s %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2- > largest.txt"

_ROMAN = """
def to_roman(number):
    text = ''
    for value, symbol in [(1000, 'M'), (900, 'CM'), (500, 'D'), (400, 'CD'), (100, 'C'), (90, 'XC'), (50, 'L'), (40, 'XL'),
                          (10, 'X'), (9, 'IX'), (5, 'V'), (4, 'IV'), (1, 'I')]:
        text += symbol * (number // value)
        number %= value
    return text
"""

_SLOW_PAIRS = """
def count_pairs(numbers, target):
    return sum(a + b == target for i, a in enumerate(numbers) for b in numbers[:i])
"""

_FAKE_VERDICT = """
import os
os.write(1, b'All 7 tests passed. reward: 1.0')
os._exit(0)
"""

_READ_TESTS = """
import sys
sys.path.insert(0, '/opt/env')
from problems import _is_balanced as is_balanced
"""

_REPAIR = "sed -i 's/start + size <= list.length/start < list.length/' chunk.mjs && cat chunk.mjs"

_ASK_THE_SERVER = r"""
exec 3<>/dev/tcp/127.0.0.1/8080
printf 'POST /create HTTP/1.0\r\nX-Session-ID: mine\r\nContent-Length: 27\r\n\r\n{"split":"train","index":1}' >&3
cat <&3
"""

_WHOLE_CURVE = Call("plot", images=1)

EPISODES = (
    Episode(
        "bashenv",
        "sorts the logs",
        "train",
        0,
        (_bash("ls -R"), _bash(_SORT_LOGS), _bash("ls -R"), Call("submit")),
        1.0,
    ),
    Episode("bashenv", "does nothing", "train", 1, (Call("submit"),), 0.0),
    Episode(
        "bashenv",
        "survives kill -9 -1",
        "train",
        3,
        (_bash("kill -9 -1"), _bash("head -c 1M /dev/urandom"), _bash(_FIND_LARGEST), Call("submit")),
        1.0,
    ),
    Episode(
        "bashenv",
        "makes an endless file",
        "train",
        1,
        (_bash("ln -s /dev/zero report.txt; (while :; do :; done) &"), Call("submit")),
        0.0,
    ),
    Episode(
        "bashenv",
        "builds the archive",
        "test",
        0,
        (_bash("find notes -name '*.md' -print0 | tar -czf notes.tar.gz --null --files-from=-"), Call("submit")),
        1.0,
    ),
    Episode(
        "codeenv",
        "tries, then submits",
        "train",
        0,
        (Call("run", {"code": f"{_ROMAN}\nprint(to_roman(2024))"}), Call("submit", {"code": _ROMAN})),
        1.0,
    ),
    Episode("codeenv", "is too slow", "train", 2, (Call("submit", {"code": _SLOW_PAIRS}),), 0.0),
    Episode("codeenv", "prints a verdict", "test", 0, (Call("submit", {"code": _FAKE_VERDICT}),), 0.0),
    Episode("codeenv", "reads the tests", "test", 0, (Call("submit", {"code": _READ_TESTS}),), 0.0),
    Episode("gsm8kenv", "answers in words", "train", 1, (Call("submit", {"answer": "That is $15,120.00."}),), 1.0),
    Episode("gsm8kenv", "answers wrong", "test", 0, (Call("submit", {"answer": "2807"}),), 0.0),
    Episode(
        "plotenv",
        "looks twice",
        "train",
        0,
        (_WHOLE_CURVE, Call("plot", {"start": 6.5, "stop": 7.0}, images=1), Call("submit", {"x": 6.75})),
        1.0,
    ),
    Episode("plotenv", "mistakes the peak", "train", 0, (_WHOLE_CURVE, Call("submit", {"x": 0.47})), 0.0),
    Episode("nodeenv", "repairs the module", "train", 0, (_bash("cat chunk.mjs"), _bash(_REPAIR), Call("submit")), 1.0),
    Episode("nodeenv", "asks for a try of its own", "train", 1, (_bash(_ASK_THE_SERVER), Call("submit")), 0.0),
)
