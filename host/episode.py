"""What a host and one session's runtime say to each other, and what an answer, or none, means for the session.

A runtime that breaks its promises, or goes on past its time, is ended with its container, so that nothing is left behind by a
time-out: ``end`` is told why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from host.answers import InvalidAnswer, as_json
from host.calls import Outcome
from host.channel import RequestTimeout, RuntimeFault
from host.errors import EnvironmentFailed, Failure, InvalidRequest, NotFound, Reason, SandboxFailed
from host.sandbox import Sandbox
from host.settings import Settings
from sandbox_runtime.messages import Fault, Method

log = structlog.get_logger()


class Episode:
    """The episode that one sandbox is for."""

    def __init__(self, sandbox: Sandbox, settings: Settings, *, end: Callable[[Failure], None]) -> None:
        self._sandbox = sandbox
        self._settings = settings
        self._end = end

    async def construct(
        self,
        environment: str,
        *,
        task_spec: Mapping[str, Any],
        secrets: Mapping[str, str],
        toolset_name: str | None,
    ) -> None:
        """Have the environment constructed.

        Raises:
            InvalidRequest: it has no such toolset.
            SandboxFailed: it could not be.
        """
        params = {"env": environment, "task_spec": task_spec, "secrets": secrets, "toolset_name": toolset_name}
        timeout_s = self._settings.create_timeout_s
        try:
            await self._sandbox.request(Method.CREATE, params, timeout_s=timeout_s)
        except RuntimeFault as exc:
            if exc.fault is Fault.INVALID_TOOLSET:
                raise InvalidRequest(str(exc)) from exc
            raise SandboxFailed(Failure(Reason.SETUP_FAILED, str(exc))) from exc
        except RequestTimeout as exc:
            message = f"the environment's constructor took longer than {timeout_s:g} s"
            raise SandboxFailed(Failure(Reason.SETUP_TIMEOUT, message)) from exc

    async def set_up(self) -> None:
        """Have ``setup()`` run, or wait for it if it runs already.

        Raises:
            SandboxFailed: it failed, or took too long.
        """
        timeout_s, grace_s = self._settings.setup_timeout_s, self._settings.cancel_grace_s
        try:
            await self._sandbox.request(Method.SETUP, {}, timeout_s=timeout_s, cancel_grace_s=grace_s)
        except RuntimeFault as exc:
            raise SandboxFailed(Failure(Reason.SETUP_FAILED, str(exc))) from exc
        except RequestTimeout as exc:
            failure = Failure(Reason.SETUP_TIMEOUT, f"setup() took longer than {timeout_s:g} s")
            raise SandboxFailed(failure) from exc

    async def ask(self, method: Method) -> bytes:
        """Return the answer (JSON) to a question without parameters.

        Raises:
            NotFound: the environment doesn't have that.
            EnvironmentFailed: it raised, or took too long.
            SandboxFailed: the sandbox is dead, or the answer was not valid.
        """
        timeout_s = self._settings.call_timeout_s
        try:
            value = await self._request(method, {})
            return as_json(method, value)
        except RuntimeFault as exc:
            if exc.fault is Fault.NOT_SUPPORTED:
                raise NotFound(str(exc)) from exc
            raise EnvironmentFailed(str(exc)) from exc
        except RequestTimeout as exc:
            message = f"{method} took longer than {timeout_s:g} s"
            self._end_unless_over(exc, message)
            raise EnvironmentFailed(f"{Reason.CALL_TIMEOUT}: {message}") from exc
        except InvalidAnswer as exc:
            raise SandboxFailed(self._invalid(method, exc)) from exc

    async def call(self, method: Method, params: Mapping[str, Any]) -> Outcome:
        """Have a tool run, or wait for one that runs; return what its caller is told.

        Raises:
            SandboxFailed: the sandbox is dead.
        """
        timeout_s = self._settings.call_timeout_s
        try:
            value = await self._request(method, params)
            return Outcome("end", as_json(method, value).decode())
        except RuntimeFault as exc:
            # Not its words, which may hold what is nobody's business; the traceback is in the container's log.
            log.warning("call_failed", tool=str(params.get("name", ""))[:100], fault=exc.fault)
            return Outcome("error", str(exc))
        except InvalidRequest as exc:
            return Outcome("error", str(exc))
        except RequestTimeout as exc:
            message = f"the call took longer than {timeout_s:g} s"
            self._end_unless_over(exc, message)
            return Outcome("error", str(Failure(Reason.CALL_TIMEOUT, message)))
        except InvalidAnswer as exc:
            return Outcome("error", str(self._invalid(method, exc)))

    async def tear_down(self) -> None:
        """Have ``teardown()`` run; what comes of it is nobody's concern any more."""
        try:
            await self._sandbox.request(Method.TEARDOWN, {}, timeout_s=self._settings.teardown_timeout_s)
        except (RuntimeFault, RequestTimeout, SandboxFailed) as exc:
            log.warning("teardown_failed", error=type(exc).__name__)

    async def _request(self, method: Method, params: Mapping[str, Any]) -> Any:
        timeout_s, grace_s = self._settings.call_timeout_s, self._settings.cancel_grace_s
        return await self._sandbox.request(method, params, timeout_s=timeout_s, cancel_grace_s=grace_s)

    def _end_unless_over(self, timeout: RequestTimeout, message: str) -> None:
        if not timeout.ended:
            self._end(Failure(Reason.CALL_TIMEOUT, f"{message} and did not end when told to"))

    def _invalid(self, method: Method, exc: InvalidAnswer) -> Failure:
        failure = Failure(Reason.PROTOCOL_VIOLATION, f"the runtime's answer to {method} is not valid: {exc}")
        self._end(failure)
        return failure
