"""Calls in somebody else's server. Each is sent once, whatever becomes of its answer.

The server gives a call a name of its own (``task_id``), which no client hears of: by it a stream that was cut is asked for
again. A call whose stream was cut before that has no name, and ends with words that it may have run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from host.answers import MAX_FAULT_CHARS, CheckedJSON, InvalidAnswer
from host.channel import RuntimeFault
from host.server_asking import EVENTS, Asking, misbehaviour
from host.server_dialect import Question, question, reconnection
from host.server_http import Exchange
from host.server_note import ServerNote
from host.server_reader import Broken
from host.server_stream import BadStream, EventReader
from sandbox_runtime.messages import Fault, Method

_RECONNECTS = 6
_RECONNECT_PAUSE_S = 0.2
_NAME = re.compile(r"[!-~]{1,200}")
_UNKNOWN_TASK = b"unknown task_id"
_MAY_HAVE_RUN = "it may have run, and is not run again"
_FINISHED = b'"finished":true}}'
"""How the JSON of an output ends, as it is made here, that ends its episode."""


@dataclass
class _Ending:
    """A stream's last event; none if it broke off before."""

    event: str = ""
    data: bytes = b""


class ServerCalls:
    """The calls of one session. ``is_over``: the channel has ended; ``wait_death`` gives its end time to be heard of."""

    def __init__(
        self,
        asking: Asking,
        note: ServerNote,
        *,
        is_over: Callable[[], bool],
        wait_death: Callable[[], Awaitable[None]],
    ) -> None:
        self._asking = asking
        self._note = note
        self._is_over = is_over
        self._wait_death = wait_death

    async def call(self, method: Method, params: Mapping[str, Any]) -> CheckedJSON:
        """Have a tool run.

        Raises:
            RuntimeFault: it failed, or its result is lost or none.
        """
        call_id = params["call_id"]
        if self._note.is_finished and method is Method.CALL:
            error = f"{params['name']!r} was not run: the episode has finished, and takes no more tool calls"
            return CheckedJSON(to_json({"ok": False, "error": error, "reason": "episode_finished"}))
        rest = {name: value for name, value in params.items() if name != "call_id"}
        self._note.started(call_id, method)
        try:
            return await self._run(call_id, method, question(method, self._note.environment, rest))
        finally:
            self._note_end(call_id)

    async def result(self, call_id: str) -> CheckedJSON:
        """Return the result of a call that an earlier host has sent. Raises as ``call``."""
        call = self._note.calls[call_id]
        if call.task_id is None:
            words = "the host was started anew before the environment's server had named this call"
            raise RuntimeFault(Fault.UNKNOWN_CALL, f"{words}: {_MAY_HAVE_RUN}")
        try:
            return await self._reconnect(call_id, call.method)
        finally:
            if call.ended_at is None:
                self._note_end(call_id)

    def _note_end(self, call_id: str) -> None:
        if not self._is_over():  # else the next host is to find it running
            self._note.ended(call_id)

    async def _run(self, call_id: str, method: Method, asked: Question) -> CheckedJSON:
        ending = _Ending()
        try:
            async with await self._asking.started(method, asked, headers={"Accept": EVENTS}) as exchange:
                ending = await self._ending(call_id, exchange)
        except Broken:
            await self._wait_death()
        if ending.event:
            return await self._outcome(method, ending)
        if self._note.calls[call_id].task_id is None:
            words = "the environment's server broke the connection off before it had named the call"
            raise misbehaviour(f"{words}: {_MAY_HAVE_RUN}")
        return await self._reconnect(call_id, method)

    async def _reconnect(self, call_id: str, method: Method) -> CheckedJSON:
        """Ask for the result of a call that has a name, as often as its stream breaks off."""
        task_id = self._note.calls[call_id].task_id
        assert task_id is not None
        asked = reconnection(method, self._note.environment, task_id)
        for attempt in range(_RECONNECTS):
            await asyncio.sleep(attempt * _RECONNECT_PAUSE_S)
            try:
                async with await self._asking.started(method, asked, headers={"Accept": EVENTS}) as exchange:
                    ending = await self._ending(call_id, exchange)
            except Broken:
                await self._wait_death()
                continue
            if ending.event == "error" and ending.data == _UNKNOWN_TASK:
                raise _forgotten()
            if ending.event:
                return await self._outcome(method, ending)
        words = "the environment's server breaks the call's stream off again and again"
        raise misbehaviour(f"{words}: {_MAY_HAVE_RUN}")

    async def _ending(self, call_id: str, exchange: Exchange) -> _Ending:
        """Read an answer to its end, be it a stream or, as some servers have it, the result alone."""
        with self._asking.holding() as held:
            if exchange.content_type != EVENTS:
                return _Ending("end", bytes(await exchange.body(self._asking.max_bytes, held)))
            try:
                return await self._last_event(call_id, exchange, held)
            except BadStream as exc:
                raise misbehaviour(f"the environment's server gave a stream that is none: {exc}") from exc

    async def _last_event(self, call_id: str, exchange: Exchange, held: Callable[[int], None]) -> _Ending:
        reader = EventReader(max_bytes=self._asking.max_bytes)
        result = bytearray()
        while (piece := await exchange.piece()) is not None:
            for event in reader.feed(piece):
                match event.name:
                    case "task_id":
                        self._named(call_id, event.data)
                    case "error":
                        return _Ending("error", event.data)
                    case "chunk" | "end":
                        result += event.data
                        if event.name == "end":
                            return _Ending("end", bytes(result))
                        held(len(result))
        return _Ending()

    def _named(self, call_id: str, data: bytes) -> None:
        task_id = data.decode("ascii", errors="replace")
        if not _NAME.fullmatch(task_id):
            return  # none to ask by
        known = self._note.calls[call_id].task_id
        if known is None:
            self._note.named(call_id, task_id)
        elif known != task_id:  # it was asked for one that it doesn't know, and has begun another, which does nothing
            raise _forgotten()

    async def _outcome(self, method: Method, ending: _Ending) -> CheckedJSON:
        if ending.event == "error":
            words = (
                ending.data.decode(errors="replace") or "the tool failed, and the environment's server doesn't say how"
            )
            raise RuntimeFault(Fault.ENVIRONMENT_RAISED, words[:MAX_FAULT_CHARS])
        try:
            found = await self._asking.checked(method, ending.data)
        except InvalidAnswer as exc:
            raise misbehaviour(f"the environment's server gave a result that is none: {exc}") from None
        if method is Method.CALL and found.json.endswith(_FINISHED):
            self._note.finished()
        return found


def _forgotten() -> RuntimeFault:
    return misbehaviour(f"the environment's server no longer knows the call: {_MAY_HAVE_RUN}", Fault.UNKNOWN_CALL)
