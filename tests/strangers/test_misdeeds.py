"""Whatever a server in an image does wrong: whoever asked is told what, in words; a tool runs once; nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.docker.harness import RunningHost, running_host
from tests.strangers.misdoing import Everything, Told, Trap, do_everything

TIME_S = 4
SETTINGS: dict[str, Any] = {
    **dict.fromkeys(["call_timeout", "setup_timeout", "create_timeout", "discovery_timeout"], TIME_S),
    "cancel_grace": 0.5,
    "memory": "128MiB",
    "disk": "48MiB",
    "pids": 64,
    "max_frame": "4MiB",
    "max_sessions": 16,
    "start_concurrency": 2,
    "warm": 0,
}
REMOVED_S = 15
SLACK_S = 8
"""On top of a time limit, on a machine that does other things as well."""

RESULTS = {
    "crlf": "crlf",
    "shout": "shouted",
    "cr": "cr",
    "bytewise": "äöü 👩\u200d🚀 \u2028 end",
    "slow_bytes": "äöü 👩\u200d🚀 \u2028 end",
    "pings": "after pings",
    "cut_in_middle": "in two pieces",
    "no_id": "without an id",
    "odd_id": "x",
    "unknown_event": "and the result",
    "no_colon": "after a line without a colon",
    "two_results": "first",
    "result_then_error": "first",
    "surrogate": "a\ufffdb",
}
"""What is odd, but a result → its text."""

ERRORS = {
    "error": "^it broke\nin two places$",
    "empty_error": ".",
    "500": "the server is out of sorts",
    "503": "come again",
    "exit": "^container_died: .*exit code 9",
    "fork_and_exit": "^container_died: ",
    "leave_port": "^container_died: |^protocol_violation: ",
    "hog": "^out_of_memory: ",
    "fill_disk": "^disk_full: ",
    "long_error": "^e{1000}",
    "endless_pings": "^call_timeout: |^protocol_violation: ",  # whichever limit is first
    **dict.fromkeys(["silent", "drip"], "^call_timeout: "),
    **dict.fromkeys(
        [
            *("no_end", "nothing", "early_end", "hang_up", "html", "500_html", "204", "101", "redirect", "not_http"),
            *("two_lengths", "not_json", "not_utf8", "wrong_shape", "nan", "long_number", "bomb"),
            *("endless_json", "endless_header", "endless_line", "endless_data", "endless_chunks", "endless_names"),
        ],
        "^protocol_violation: ",
    ),
    # Read by a process that may have to be started first, which takes its time on a machine that does other things.
    **dict.fromkeys(["nested", "many"], "^protocol_violation: |^call_timeout: "),
}
"""What is no result → what the ``error`` event says."""

ANSWERS = {
    "500": "the server is out of sorts",
    **dict.fromkeys(["silent", "drip"], "took longer than 4 s|call_timeout|setup_timeout"),
    **dict.fromkeys(
        [
            *("html", "204", "redirect", "not_http", "early_end", "hang_up", "not_json", "not_utf8", "wrong_shape"),
            *("nan", "bomb", "endless_json", "endless_header", "endless_hints"),
        ],
        "protocol_violation|not valid",
    ),
    **dict.fromkeys(["nested", "many"], "protocol_violation|not valid|took longer than 4 s"),  # as above
}
"""What is no answer → what the client's answer says."""

CREATES = ("500", "html", "redirect", "early_end", "silent", "endless_json")
TASKS = ("500", "html", "redirect", "not_json", "wrong_shape", "nested", "many", "bomb", "endless_json", "early_end")

MISDEEDS = [
    *(("call", what) for what in (*RESULTS, *ERRORS)),
    *(("prompt", what) for what in ANSWERS),
    *(("create", what) for what in CREATES),
    *(("tasks", what) for what in TASKS),
]


@pytest.fixture(scope="module")
def host(hostile_image: str) -> Iterator[RunningHost]:
    with running_host(hostile_image, kind="server", **SETTINGS) as host:
        yield host


@pytest.fixture(scope="module")
def everything(host: RunningHost) -> Iterator[Everything]:
    """What came of all misdeeds; afterwards the host holds nothing that it did not hold before."""
    before = held(host)
    with closing(Trap()) as trap:
        everything = asyncio.run(do_everything(host, MISDEEDS, to=trap.url))
        assert not trap.was_visited()
    until = time.monotonic() + REMOVED_S
    while host.containers(role="session") and time.monotonic() < until:
        time.sleep(0.2)  # for those whose server is told to tear down, and doesn't answer
    assert host.containers(role="session") == []
    assert len(host.directories()) == 1
    yield everything
    descriptors, threads = held(host)
    # Connections to the engine are kept, up to 17, and the process that reads what is heavy, with its pipes, for some seconds.
    assert descriptors <= before[0] + 30 and threads <= before[1] + 16, (before, descriptors, threads)


def held(host: RunningHost) -> tuple[int, int]:
    """Return how many descriptors and threads the host's process has."""
    place = f"/proc/{host.process.pid}"
    return len(os.listdir(f"{place}/fd")), len(os.listdir(f"{place}/task"))


def told(everything: Everything, where: str, what: str) -> Told:
    """Return what a client was told, which was in time, and not otherwise than those who ask later."""
    told = everything.told[where, what]
    assert told.seconds < TIME_S + SLACK_S
    assert told.after is None or f"{told.after}: " in told.words, told
    return told


@pytest.mark.parametrize("what", RESULTS)
def test_an_odd_result_is_a_result(everything: Everything, what: str) -> None:
    found = told(everything, "call", what)
    assert (found.event, found.after) == ("end", None), found
    assert json.loads(found.words)["output"]["blocks"][0]["text"] == RESULTS[what]


@pytest.mark.parametrize("what", ERRORS)
def test_what_is_no_result_is_an_error_in_words(everything: Everything, what: str) -> None:
    found = told(everything, "call", what)
    assert found.event == "error"
    assert re.search(ERRORS[what], found.words), found
    assert len(found.words) < 20_000


@pytest.mark.parametrize("what", ANSWERS)
def test_what_is_no_prompt_is_an_error_in_words(everything: Everything, what: str) -> None:
    found = told(everything, "prompt", what)
    assert found.status in (410, 422), found
    assert re.search(ANSWERS[what], found.words), found


@pytest.mark.parametrize("what", CREATES)
def test_a_creation_that_fails_says_why_and_leaves_the_id_free(everything: Everything, what: str) -> None:
    found = told(everything, "create", what)
    assert found.status == 422 and found.after is None, found
    assert re.search(ANSWERS[what], found.words), found


@pytest.mark.parametrize("what", TASKS)
def test_a_question_that_is_answered_wrong(everything: Everything, what: str) -> None:
    found = told(everything, "tasks", what)
    assert found.status in (422, 503), found
    assert re.search(ANSWERS[what], found.words), found


def test_a_neighbour_is_served_meanwhile(everything: Everything) -> None:
    """Each of its calls ran once, and none waited for anybody's time limit."""
    assert everything.neighbour == str(len(everything.neighbours_calls))
    assert len(everything.neighbours_calls) > 20
    assert max(everything.neighbours_calls) < TIME_S / 2
