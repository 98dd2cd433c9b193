"""Following a build: what the engine says, and what of it a user is told."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, cast

import pytest

from host import docker_client
from host.image_builder import OUTPUT_LINES, BuildError, StepFailed, run_build


class FakeBuilds:
    """An engine that knows only how a build went."""

    def __init__(self, *events: dict[str, Any] | Exception) -> None:
        self._events = events

    def build(self, **_: Any) -> Iterator[dict[str, Any]]:
        for event in self._events:
            if isinstance(event, Exception):
                raise event
            yield event


def follow(*events: dict[str, Any] | Exception) -> list[str]:
    details: list[str] = []
    client = cast(docker_client.APIClient, FakeBuilds(*events))
    run_build(client, io.BytesIO(), tag="x", detail=details.append)
    return details


def test_steps_are_told_as_they_come_and_output_is_not() -> None:
    told = follow({"stream": "Step 1/2 : FROM base\n"}, {"stream": " ---> 12ab\n"}, {"stream": "Step 2/2 : RUN x\n"})
    assert told == ["step 1/2: FROM base", "step 2/2: RUN x"]


def test_a_failing_step_is_named_with_the_end_of_its_own_output() -> None:
    noise = [{"stream": f"line {number}\n"} for number in range(100)]
    with pytest.raises(StepFailed) as caught:
        follow(
            {"stream": "Step 1/2 : FROM base\n"},
            {"stream": "of the step before\n"},
            {"stream": "Step 2/2 : RUN make\n"},
            *noise,
            {"stream": "\x1b[31mred\x1b[0m\n"},
            {"error": "The command 'make' returned a non-zero code: 2", "errorDetail": {"code": 2}},
        )
    lines = str(caught.value).splitlines()
    assert lines[0] == "the build failed at step 2/2: RUN make"
    assert lines[1:-1] == [f"  line {number}" for number in range(101 - OUTPUT_LINES, 100)] + ["  red"]
    assert lines[-1].endswith("non-zero code: 2")


def test_a_full_disk_is_called_so_with_what_to_do() -> None:
    with pytest.raises(BuildError, match=r"the engine's disk is full .*: free some space"):
        follow({"stream": "Step 1/1 : COPY . /\n"}, {"error": "write /x: no space left on device"})


def test_a_dockerfile_for_the_newer_builder_is_called_so() -> None:
    with pytest.raises(BuildError, match="with 'docker build' instead"):
        follow({"error": "the --mount option requires BuildKit. Refer to the documentation"})


def test_an_engine_that_breaks_off_is_an_error_and_not_a_traceback() -> None:
    with pytest.raises(BuildError, match="connection lost"):
        follow({"stream": "Step 1/1 : FROM base\n"}, docker_client.ERRORS[0]("connection lost"))
