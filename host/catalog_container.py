"""One image's catalog container: made exactly as session containers are, there when it is asked, replaced when it died."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import anyio
import structlog

from host.answers import InvalidAnswer
from host.channel import RequestTimeout, RuntimeFault
from host.engine import Image, Role
from host.errors import EnvironmentFailed, Failure, InvalidRequest, QuestionLost, Reason, SandboxFailed
from host.sandbox import Sandbox
from host.sandbox_host import SandboxHost
from sandbox_runtime.messages import Fault, Method

log = structlog.get_logger()
T = TypeVar("T")

_CALLERS_FAULT = frozenset({Fault.INVALID_SPLIT, Fault.INVALID_INDEX, Fault.NOT_SUPPORTED})


class CatalogContainer:
    """Answers questions about an image's environments until ``aclose()``."""

    def __init__(self, host: SandboxHost, image: Image) -> None:
        self.image = image
        self._host = host
        self._stack = AsyncExitStack()
        self._sandbox: Sandbox | None = None
        self._opening = anyio.Lock()
        self._questions = 0
        self._answered = anyio.Event()

    async def sandbox(self) -> Sandbox:
        """Return a living sandbox.

        Raises:
            SandboxFailed: none could be started.
        """
        async with self._opening:
            if self._sandbox is not None and self._sandbox.failed:
                failure = await self._sandbox.wait_failed()
                log.warning("catalog_container_died", image=self.image.tag, reason=failure.reason)
                await self.aclose()
            if self._sandbox is None:
                self._sandbox = await self._stack.enter_async_context(
                    Sandbox.open(self._host, self.image, role=Role.CATALOG)
                )
            return self._sandbox

    async def ask(self, env: str, read: Callable[[Method, Any], T], method: Method, params: Mapping[str, Any]) -> T:
        """Ask one of its environments; return the answer as ``read`` makes it of what came.

        Raises:
            InvalidRequest: no such split or index, or the environment can't answer that.
            EnvironmentFailed: the environment failed.
            SandboxFailed, QuestionLost: there is no container to ask, or it failed; asking again is right.
        """
        self._questions += 1
        try:
            sandbox = await self.sandbox()
            try:
                return await self._ask(sandbox, {"env": env, **params}, read, method)
            except SandboxFailed as exc:
                failure = exc.failure
                if failure.reason is Reason.DELETED:  # by _retire()
                    failure = Failure(
                        Reason.CONTAINER_DIED, "the container that was asked is being replaced; ask again"
                    )
                raise QuestionLost(failure) from exc
        finally:
            self._questions -= 1
            if not self._questions:
                self._answered.set()

    async def drain(self) -> None:
        """Close it once it has answered everything that it was asked."""
        while self._questions:
            self._answered = anyio.Event()
            await self._answered.wait()
        await self.aclose()

    async def aclose(self) -> None:
        """Remove the container."""
        self._sandbox = None
        await self._stack.aclose()

    async def _ask(
        self, sandbox: Sandbox, params: Mapping[str, Any], read: Callable[[Method, Any], T], method: Method
    ) -> T:
        settings = self._host.settings
        timeout_s = settings.discovery_timeout_s
        try:
            value = await sandbox.request(method, params, timeout_s=timeout_s, cancel_grace_s=settings.cancel_grace_s)
            return read(method, value)
        except RuntimeFault as exc:
            if exc.fault in _CALLERS_FAULT:
                raise InvalidRequest(str(exc)) from exc
            raise EnvironmentFailed(str(exc)) from exc
        except RequestTimeout as exc:
            if not exc.ended:  # it goes on in there, and questions like it would pile up
                await self._retire(sandbox)
            raise EnvironmentFailed(f"{method} took longer than {timeout_s:g} s") from exc
        except InvalidAnswer as exc:
            raise EnvironmentFailed(f"the answer to {method} is not valid: {exc}") from exc

    async def _retire(self, sandbox: Sandbox) -> None:
        """Remove a container that can't be trusted to answer any more; what else it is asked is lost."""
        async with self._opening:
            if self._sandbox is sandbox:
                log.warning("catalog_container_stuck", image=self.image.tag)
                await self.aclose()
