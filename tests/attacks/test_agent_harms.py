"""The agent against the environment: stopping it, starving it, outliving its calls, confusing who reads its output.

Each deed is done in a container without defences first, where it must do harm. These leave nothing to share, so each has two
containers of its own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from tests.attacks.board import AGENT, IN_FULL, attack
from tests.attacks.targets import DONE, Served, Target, Weakened, processes_on_the_machine, until
from tests.attacks.test_agent_steals import RUNTIME, python
from tests.docker.harness import Client, RunningHost

RecordProperty = Callable[[str, object], None]
Succeeded = Callable[[Target, str], Awaitable[bool]]

CONNECT = """
s = socket.socket(socket.AF_UNIX)
s.connect("/run/ors/host.sock")
"""
FORGE = """
import json
def send(message):
    body = json.dumps(message).encode()
    s.sendall(len(body).to_bytes(4, "big") + body)
output = {"blocks": [{"type": "text", "text": "won"}], "reward": 1.0, "finished": True}
for n in range(20):
    send({"jsonrpc": "2.0", "id": n, "result": {"ok": True, "output": output}})
print("ATTACK-DONE")
"""


class Deed(NamedTuple):
    """``timeout_s`` is the command's. ``shown`` is False for what harms everybody a little, but nobody for certain."""

    id: str
    what: str
    command: str
    timeout_s: float = 20
    shown: bool = True


async def _is_dead(target: Target, output: str) -> bool:
    return not await target.alive()


async def _did_it(target: Target, output: str) -> bool:
    return DONE in output or not await target.alive()


async def _cannot_keep(target: Target, output: str) -> bool:
    return await target.output("keep", megabytes=1) is None


async def _runs_no_command(target: Target, output: str) -> bool:
    return "still" not in await target.run("/bin/echo still" + " | cat" * 8, timeout_s=6)


async def _runs_on(target: Target, output: str) -> bool:
    listed = await target.run("for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null")
    return "sleep 4711" in listed


DEEDS: list[tuple[Deed, Succeeded]] = [
    (Deed("B01", "kill the runtime", f"{RUNTIME} kill -KILL $R; kill -ABRT $R; sleep 1"), _is_dead),
    (Deed("B02", "kill everything there is", "kill -KILL -1; sleep 1"), _is_dead),
    (Deed("B03", "stop the runtime", f"{RUNTIME} kill -STOP $R; sleep 1", 2), _is_dead),
    (Deed("B04", "dial the host", python(CONNECT + 'print("ATTACK-DONE")')), _did_it),
    (Deed("B05", "send the host answers of its own making", python(CONNECT + FORGE)), _did_it),
    (Deed("B06", "put its own socket in place of the host's", "rm -f /run/ors/host.sock && echo ATTACK-DONE"), _did_it),
    (
        Deed(
            "B07",
            "leave the grader no room in /tmp",
            "head -c 1G /dev/zero >/tmp/full; head -c 1G /dev/zero >/dev/shm/full",
        ),
        _cannot_keep,
    ),
    (
        Deed(
            "B08",
            "leave the grader no inode in /tmp",
            python("for n in range(300_000):\n    os.close(os.open(f'/tmp/{n}', os.O_CREAT | os.O_WRONLY))"),
        ),
        _cannot_keep,
    ),
    (
        Deed(
            "B09",
            "use up all process ids",
            python(
                """
try:
    while os.fork():
        pass
    import time
    os.close(1), os.close(2), time.sleep(4712)
except OSError:
    pass
"""
            ),
            5,
        ),
        _runs_no_command,
    ),
    (
        Deed(
            "B10", "use up all process ids faster than one can look", "b() { b | b & }; b; sleep 4713", 3, shown=False
        ),
        _runs_no_command,
    ),
    (
        Deed(
            "B11",
            "leave a process behind that outlives the call",
            "(setsid setsid sleep 4711 &) & setsid sleep 4711",
            1,
        ),
        _runs_on,
    ),
    (Deed("B12", "have the runtime hold a gigabyte of output", "head -c 1G /dev/zero"), _is_dead),
    (
        Deed(
            "B13",
            "eat the memory so that the runtime is killed for it",
            # The largest process goes first, unless the kernel was told otherwise: so many, each smaller than the runtime.
            """for n in $(seq 60); do python3 -S -c 'x = b"1" * (16 << 20); import time; time.sleep(5)' & done; wait""",
        ),
        _is_dead,
    ),
]


@pytest.mark.parametrize(
    ("deed", "succeeded"),
    [pytest.param(deed, succeeded, marks=attack(deed.id, AGENT, deed.what), id=deed.id) for deed, succeeded in DEEDS],
)
async def test_deed(
    deed: Deed,
    succeeded: Succeeded,
    vault_image: str,
    profile: str,
    served: Served,
    record_property: RecordProperty,
) -> None:
    if deed.shown and profile == IN_FULL[0]:
        async with Weakened.open(vault_image) as weakened:
            output = await weakened.run(deed.command, deed.timeout_s)
            assert await succeeded(weakened, output), f"this attack can't succeed anywhere: {output}"
        record_property("shown", True)
    output = await served.run(deed.command, deed.timeout_s)
    assert not await succeeded(served, output), output
    assert await served.alive()
    assert "still here" in await served.run("echo still here")


@attack("B14", AGENT, "leave a process behind that outlives the session")
async def test_nothing_outlives_the_session(
    vault_host: RunningHost, client: Client, weakened: Weakened, record_property: RecordProperty
) -> None:
    mark = f"sleep 4714.{uuid.uuid4().int % 10**6}"
    await weakened.run(f"setsid {mark} >/dev/null 2>&1 &")
    assert processes_on_the_machine(mark)
    record_property("shown", True)
    theirs = f"{mark}1"
    async with Served.open(vault_host, client) as served:
        await served.run(f"trap '' TERM HUP; (setsid setsid {theirs} >/dev/null 2>&1 &)")
        await until(lambda: processes_on_the_machine(theirs))
    assert processes_on_the_machine(theirs) == []


OUTPUTS = {
    "B15": ("end the stream with output that looks like its end", r"\r\n\r\nevent: end\r\ndata: {\"ok\":true}\r\n\r\n"),
    "B16": (
        "break the reader with NUL, halves of characters and lone surrogates",
        r"\0\xff\xe2\x82\xed\xa0\x80\xf0\x9f",
    ),
    "B17": ("reach a terminal with escape sequences", r"\e[2J\e]0;title\a\e]52;c;aGk=\a\x9b31m"),
}


@pytest.mark.parametrize(
    "written", [pytest.param(written, marks=attack(id, AGENT, what), id=id) for id, (what, written) in OUTPUTS.items()]
)
async def test_output_is_only_text(served: Served, vault_host: RunningHost, written: str) -> None:
    output = await served.output("bash", command=f"printf '{written}'; printf '{written}' >&2")
    assert output is not None
    assert (output["reward"], output["finished"]) == (None, False)
    raw = await served.run(f"printf '{written}'")
    json.dumps(raw).encode("utf-8")
    assert "\x1b" not in vault_host.log and "\x9b" not in vault_host.log
    assert await served.alive()


@attack("B18", AGENT, "forge a result in the text of an error")
async def test_an_error_is_only_an_error(served: Served) -> None:
    won = '{"ok": true, "output": {"blocks": [{"type": "text", "text": "won"}], "reward": 1.0, "finished": true}}'
    for line_end in ("\r\n", "\n", "\r", "\x0b", "\x85", "\u2028"):
        text = f"oh{line_end}{line_end}event: end{line_end}data: {won}{line_end}{line_end}"
        reply = await served.session.call("fail", text=text)
        assert reply.event == "error"
    assert await served.alive()
