"""One image build on the engine: send a context, follow the steps, say which one failed and with what output."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import IO

from host import docker_client
from host.progress import Detail

OUTPUT_LINES = 30
"""Of a failing step: enough for a traceback, and it fits on a screen."""

_STEP = re.compile(r"Step (\d+/\d+) : (.*)")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_DISK_FULL = "no space left on device"


class BuildError(Exception):
    """An image could not be made; ``str()`` is what the user should read, output of the failing step included."""


class StepFailed(BuildError):
    """An instruction of the Dockerfile failed."""


def run_build(
    client: docker_client.APIClient,
    context: IO[bytes],
    *,
    tag: str,
    detail: Detail,
    buildargs: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Build the image ``tag`` from a context: a tar archive whose ``Dockerfile`` is at its top.

    Raises:
        StepFailed: an instruction failed; the text names it and ends with its last lines of output.
        BuildError: the engine refused the Dockerfile or the context, or broke off.
    """
    step = ""
    failure: str | None = None
    output: deque[str] = deque(maxlen=OUTPUT_LINES)
    try:
        events = client.build(
            fileobj=context,
            custom_context=True,
            tag=tag,
            buildargs=dict(buildargs or {}),
            labels=dict(labels or {}),
            rm=True,
            forcerm=True,
            decode=True,
        )
        for event in events:
            if "error" in event:
                failure = _failure(step, output, str(event["error"]))
            for line in _ANSI.sub("", str(event.get("stream", ""))).splitlines():
                if match := _STEP.match(line):
                    step = f"step {match[1]}: {match[2]}"
                    output.clear()
                    detail(step)
                elif line.strip() and not line.startswith(" ---> "):
                    output.append(line.rstrip())
    except docker_client.ERRORS as exc:
        raise BuildError(explain(exc)) from exc
    if failure is not None:  # raised here, after the answer's end, which leaves its connection fit for use
        raise StepFailed(failure)


def explain(exc: Exception) -> str:
    """Return what the engine said, with what to do about it where that is known."""
    return _with_advice(docker_client.explain(exc))


def _failure(step: str, output: deque[str], error: str) -> str:
    lines = [f"the build failed at {step}" if step else "the build failed", *(f"  {line}" for line in output)]
    return "\n".join([*lines, _with_advice(error)])


def _with_advice(error: str) -> str:
    if _DISK_FULL in error:
        return f"the engine's disk is full ({error}): free some space, for example with 'docker system prune'"
    if "requires BuildKit" in error:
        return f"{error}: build this folder with 'docker build' instead"
    return error
