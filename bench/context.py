"""What every row is given."""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.plan import Plan
from bench.table import Row, RowSpec
from host import docker_client


@dataclass(frozen=True)
class Bench:
    """One run of the benchmark."""

    plan: Plan
    engine: docker_client.APIClient
    say: Callable[[str], None]
    """Tells what is being done just now."""


@dataclass(frozen=True)
class Group:
    """Rows that are measured together; ``run`` gives them in any order."""

    specs: tuple[RowSpec, ...]
    run: Callable[[Bench], Coroutine[Any, Any, Sequence[Row]]]
    image: str
    """The image that must be there."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep this process's garbage collector out of what is measured."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
