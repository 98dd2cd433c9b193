"""A session in somebody else's server: made, set up, and its prompt.

Set-up goes on in the background of these servers, and whatever needs it waits. So the prompt is asked for at once, and kept for
who asks for it first: the environment is asked exactly once, as it is by a client of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from host.answers import CheckedJSON, InvalidAnswer
from host.channel import RuntimeFault
from host.errors import Failure, Reason, SandboxFailed
from host.server_asking import EVENTS, SMALL_BYTES, Asking, misbehaviour
from host.server_dialect import Question, checked_session_id, creation, is_object, question, session_id
from host.server_note import ServerNote
from host.server_reader import BadAnswer
from host.server_stream import EventReader
from sandbox_runtime.messages import Method

_KEPT_PROMPT_BYTES = 4 * 1024 * 1024
"""A longer prompt is not kept from set-up to the first who asks for it, but asked for again."""


class ServerSession:
    """The one session that a server is asked for. Its methods raise HttpError as well, where there is no answer."""

    def __init__(self, asking: Asking, note: ServerNote) -> None:
        self._asking = asking
        self._note = note
        self._prompt: CheckedJSON | RuntimeFault | None = None

    async def create(self, params: Mapping[str, Any]) -> None:
        """Have an environment constructed, under an id of the server's.

        Raises:
            RuntimeFault: the server refuses.
            SandboxFailed: it can't be noted for the next host.
        """
        sid = await self._new_session_id()
        for with_secrets in (True, False):
            body, headers = creation(params, with_secrets=with_secrets)
            asked = Question("POST", "/create", body)
            async with await self._asking.request(asked, sid=sid, headers=headers) as exchange:
                if exchange.status == 200:
                    if not is_object(await exchange.body(SMALL_BYTES)):
                        raise misbehaviour("the environment's server answers POST /create with 200 and no JSON object")
                    break
                # A server that takes secrets in the header alone refuses a body with them before it does anything.
                if exchange.status not in (400, 422) or not params["secrets"] or not with_secrets:
                    raise await self._asking.fault(Method.CREATE, asked, exchange)
        self._asking.sid = sid
        try:
            self._note.begin(sid, params["env"])
        except OSError as exc:
            words = f"the state directory can't be written: {exc.strerror}"
            raise SandboxFailed(Failure(Reason.START_FAILED, words)) from exc

    async def _new_session_id(self) -> str:
        asked = Question("POST", "/create_session")
        async with await self._asking.request(asked, headers={"Accept": f"application/json, {EVENTS}"}) as exchange:
            if exchange.status == 404:
                return str(uuid.uuid4())
            if exchange.status != 200:
                raise await self._asking.fault(Method.CREATE, asked, exchange)
            body = await exchange.body(SMALL_BYTES)
            is_stream = exchange.content_type == EVENTS
        try:
            if not is_stream:
                return session_id(body)
            events = EventReader(max_bytes=SMALL_BYTES).feed(bytes(body))
            return checked_session_id(next((event.data.decode() for event in events if event.name == "task_id"), None))
        except (InvalidAnswer, ValueError) as exc:
            raise BadAnswer(str(exc)) from None

    async def set_up(self) -> None:
        """Wait until the environment is set up: until it has a prompt, or has none although it is.

        Raises:
            RuntimeFault: set-up failed.
        """
        if self._note.is_set_up:
            return
        try:
            prompt = await self._asking.answer(Method.PROMPT, question(Method.PROMPT, self._note.environment, {}))
            self._prompt = prompt if len(prompt.json) <= _KEPT_PROMPT_BYTES else None
        except InvalidAnswer as exc:
            self._prompt = misbehaviour(f"the environment's server gave a prompt that is none: {exc}")
        except RuntimeFault as exc:
            self._prompt = exc
            # Not the prompt's own fault, if the tools are not to be had either.
            asked = question(Method.TASK_TOOLS, self._note.environment, {})
            async with await self._asking.request(asked) as exchange:
                if exchange.status >= 500:
                    raise await self._asking.fault(Method.SETUP, asked, exchange) from None
        self._note.set_up()

    async def prompt(self) -> CheckedJSON:
        """Return the task's prompt: the one that was kept, or another.

        Raises:
            RuntimeFault: the environment raised.
            InvalidAnswer: it isn't one.
        """
        kept, self._prompt = self._prompt, None
        if kept is None:
            return await self._asking.answer(Method.PROMPT, question(Method.PROMPT, self._note.environment, {}))
        if isinstance(kept, RuntimeFault):
            raise kept
        return kept
