"""The one list of requests. A flow is asked of each server in turn; what is asked must not depend on what was answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .servers import DIALECTS
from .talk import Talk

ONE = ("ors-sdk",)
"""For what does not depend on the SDK at all: importing openreward takes three seconds of a container's life."""

FlowFunction = Callable[[Talk], Awaitable[None]]


@dataclass(frozen=True)
class Flow:
    """Some requests that belong together, and for which SDKs; ``patient`` ones mostly wait, so they run beside the rest."""

    name: str
    run: FlowFunction
    dialects: tuple[str, ...]
    server: str
    patient: bool


FLOWS: list[Flow] = []


def flow(
    *, dialects: tuple[str, ...] = DIALECTS, server: str = "", patient: bool = False
) -> Callable[[FlowFunction], FlowFunction]:
    """Put a function on the list. ``server`` names the environments' folder if it isn't the dialect's."""

    def add(function: FlowFunction) -> FlowFunction:
        name = function.__name__.replace("_", " ")
        FLOWS.append(Flow(name, function, dialects, server, patient))
        return function

    return add
