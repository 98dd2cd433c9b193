"""Requests to Docker: each in a thread, of which there are a bounded number, because docker-py blocks.

What comes back as docker-py's errors is told in the words of ``engine``, and every request is counted and traced.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from host import docker_client, tracing
from host.engine import EngineError, EngineSilent, NotThere

T = TypeVar("T")

THREADS = 16


class DockerCalls:
    """Runs blocking requests. ``on_request``: see ``Engine``."""

    def __init__(self) -> None:
        self.on_request: Callable[[str, str, float], None] | None = None
        self._threads = anyio.CapacityLimiter(THREADS)

    async def __call__(self, function: Callable[..., T], *args: Any) -> T:
        """Run one blocking call in a thread. It ends there when its caller is cancelled, who doesn't wait for that.

        Raises:
            NotThere: the engine says that there is no such thing.
            EngineSilent: it didn't answer, or its answer was lost.
            EngineError: it refused.
        """
        asked_at, outcome = time.monotonic(), "given_up"
        name = (function.func if isinstance(function, partial) else function).__name__.strip("_")
        try:
            with tracing.span(f"engine {name}", "client"):
                value = await anyio.to_thread.run_sync(function, *args, limiter=self._threads, abandon_on_cancel=True)
            outcome = "ok"
            return value
        except docker_client.NotFound as exc:
            outcome = "not_found"
            raise NotThere(docker_client.explain(exc)) from exc
        except docker_client.APIError as exc:
            outcome = "refused"
            raise EngineError(docker_client.explain(exc)) from exc
        except docker_client.ERRORS as exc:
            outcome = "silent"
            raise EngineSilent(docker_client.explain(exc)) from exc
        finally:
            if self.on_request is not None:
                self.on_request(name, outcome, time.monotonic() - asked_at)
