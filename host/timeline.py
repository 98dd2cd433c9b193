"""What one session has done so far, step by step: names, times, outcomes and rewards, for whoever looks at the host.

A timeline holds nothing that a client or an environment said, but for names and the sentence that tells why the session ended.
What they said is a *piece* (a call's input, its output, the prompt, the task): where those go, if anywhere, is the recorder's
business (``recording.py``). Everything is bounded, and nothing here waits or raises: a session is not to notice it is watched.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal, Protocol

from host.answers import MAX_FAULT_CHARS
from host.calls import Outcome
from host.errors import Failure, HostError, Reason
from host.masking import Mask
from host.metrics import Start
from sandbox_runtime.messages import Method

Kind = Literal["created", "set_up", "prompt", "call", "score_group", "ended"]
State = Literal["running", "ok", "refused", "error", "cut"]
"""How a step went. ``refused``: the environment did not run the tool. ``cut``: this host let go of it, the next one has it."""

MAX_STEPS = 300
"""Of one session; the oldest go first. An episode has tens."""

MAX_NAME_CHARS = 100
MAX_WORDS_CHARS = 2000
_MAX_LABEL_CHARS = 120

_TAIL = re.compile(r'"reward":(null|-?[0-9.]+(?:[eE][-+]?[0-9]+)?),"finished":(true|false)\}\}$')
"""How the result of a call ends (``answers.as_json`` writes the fields in this order): no text in it can be taken for this."""

_TAIL_CHARS = 80
_NO_SECRETS = Mask()
_REASONS = tuple(f"{reason}: " for reason in Reason)


@dataclass(slots=True)
class Step:
    """One step. Times in seconds, ``at`` since the epoch; ``seconds`` is None until it ends. ``revision``: its last change."""

    number: int
    kind: Kind
    name: str
    at: float
    revision: int
    state: State = "running"
    seconds: float | None = None
    reward: float | None = None
    finished: bool = False
    words: str = ""


@dataclass
class Tally:
    """What all sessions of this host have come to since its start: calls that ended, sessions made, failed, refused a place."""

    calls: int = 0
    errors: int = 0
    created: int = 0
    failed: int = 0
    refused: int = 0


class Recording(Protocol):
    """Where one session's pieces go."""

    def write(self, kind: str, fields: Mapping[str, Any], pieces: Mapping[str, Any]) -> None:
        """Keep a step, or not: its ``fields``, which are masked already, and its pieces, which are not.

        A piece that is text or bytes is JSON, anything else a value that becomes such. Doesn't wait, and raises nothing.
        """

    def end(self, fields: Mapping[str, Any]) -> None:
        """Keep how it ended; nothing comes after that."""


class Timeline:
    """One session's steps and what they come to. ``ref`` names it in URLs: a session's id may come again."""

    def __init__(
        self,
        ref: str,
        sid: str,
        environment: str,
        image: str,
        *,
        task: str = "",
        secrets: Iterable[str] = (),
        age_s: float = 0.0,
        tally: Tally | None = None,
    ) -> None:
        """Begin. ``secrets``: what is not to be kept of anything."""
        self.mask = Mask(secrets)
        self.ref = ref
        self.sid = sid
        self.environment = environment
        self.image = image
        self.task = self.mask.text(clean(task))[:_MAX_LABEL_CHARS]
        self.created_at = time.time() - age_s
        self.ended_at: float | None = None
        self.container = ""
        self.start: Start | None = None
        self.failure: tuple[str, str] | None = None
        """Why it ended: the word, and the sentence."""
        self._steps: deque[Step] | tuple[()] = deque(maxlen=MAX_STEPS)
        self._packed = b""
        self.length = 0
        """How many steps there were, those left out too."""
        self.revision = 0
        self.calls = 0
        self.errors = 0
        self.running: dict[str, Step] = {}
        self.reward: float | None = None
        self.finished = False
        self.left_to_next = False
        self.recording: Recording | None = None
        self._set_up: Step | None = None
        self._tally = tally or Tally()

    @property
    def steps(self) -> Sequence[Step]:
        """The steps, the oldest first."""
        return [Step(*fields) for fields in json.loads(zlib.decompress(self._packed))] if self._packed else self._steps

    @property
    def left_out(self) -> int:
        """How many of the oldest steps are no longer there."""
        return max(0, self.length - MAX_STEPS)

    def created(self, container: str, start: Start, seconds: float, task_spec: Mapping[str, Any] | None) -> None:
        """The environment is constructed, and ``setup()`` begins."""
        self.container, self.start = container, start
        self._tally.created += 1
        step = self._step("created", start)
        self._done(step, "ok", seconds)
        self._record("created", step, {"start": start}, {} if task_spec is None else {"task": task_spec})
        if start != "adopted":
            self._set_up = self._step("set_up", "")

    def set_up(self) -> None:
        """``setup()`` is done."""
        if self._set_up is not None:
            self._done(self._set_up, "ok")
            self._record("set_up", self._set_up, {"seconds": self._set_up.seconds}, {})
            self._set_up = None

    def prompted(self, prompt: bytes, seconds: float) -> None:
        """The environment gave its prompt (JSON)."""
        step = self._step("prompt", "")
        self._done(step, "ok", seconds)
        self._record("prompt", step, {"seconds": seconds}, {"output": prompt})

    def call_began(self, call_id: str, method: Method, params: Mapping[str, Any]) -> None:
        """A call was asked for: of a tool (``name``, ``input``), or for scores (``candidates``).

        One that an earlier host passed on has no parameters: nobody here knows them.
        """
        kind: Kind = "score_group" if method is Method.SCORE_GROUP else "call"
        step = self.running[call_id] = self._step(kind, str(params.get("name", "")))
        self.calls += 1
        asked = params.get("input", params.get("candidates"))
        pieces = {} if asked is None else {"input": asked}
        self._record(kind, step, {"call_id": self.mask.text(clean(call_id)), "name": step.name}, pieces)

    def call_ended(self, call_id: str, outcome: Outcome) -> None:
        """A call ended, or this host let go of it."""
        step = self.running.pop(call_id, None)
        if step is None:
            return
        self._tally.calls += 1
        state: State = "ok"
        if outcome.event == "end":
            if outcome.text.startswith('{"ok":false'):
                state = "refused"
            elif tail := _TAIL.search(outcome.text[-_TAIL_CHARS:]):
                step.reward = None if tail[1] == "null" else float(tail[1])
                step.finished = tail[2] == "true"
        else:
            state = outcome.event
        if state == "error":
            self.errors += 1
            self._tally.errors += 1
            step.words = next((r[:-2] for r in _REASONS if outcome.text.startswith(r)), "")
        if step.reward is not None:
            self.reward = (self.reward or 0.0) + step.reward
        self.finished = self.finished or step.finished
        self._done(step, state)
        fields = {"seconds": step.seconds, "outcome": state, "reward": step.reward, "finished": step.finished}
        if state == "error":
            self._record("result", step, fields, {"error": json.dumps(outcome.text[:MAX_FAULT_CHARS]).encode()})
        else:
            self._record("result", step, fields, {"output": outcome.text} if outcome.event == "end" else {})

    def ended(self, why: Failure | HostError | None, *, left_to_next: bool) -> None:
        """Nothing is left of the session, in this host."""
        reason = getattr(why, "reason", None) or "internal"
        message = why.message if isinstance(why, Failure) else str(why or "")
        self.left_to_next = left_to_next
        self.failure = (str(reason), self.mask.text(clean(message))[:MAX_WORDS_CHARS])
        for call_id in tuple(self.running):  # of sessions that never got so far
            self.call_ended(call_id, Outcome("error", ""))
        if self._set_up is not None:
            self._done(self._set_up, "cut" if left_to_next else "error")
        step = self._step("ended", self.failure[0])
        step.words = self.failure[1]
        self._done(step, "cut" if left_to_next else "ok", 0.0)
        self.ended_at = step.at
        if self.recording is not None:
            fields = {"reason": self.failure[0], "message": self.failure[1], "calls": self.calls, "reward": self.reward}
            self.recording.end({"at": step.at, "number": step.number, **fields, "left_to_next": left_to_next})
        self.mask = _NO_SECRETS  # they are not to be remembered longer than they are needed
        # Thousands of these stay for an hour: small, and of one piece, or else what lies between them is not given back either.
        self._packed = zlib.compress(json.dumps([astuple(step) for step in self._steps]).encode(), level=1)
        self._steps = ()

    def _step(self, kind: Kind, name: str) -> Step:
        self.revision += 1
        step = Step(self.length, kind, self.mask.text(clean(name))[:MAX_NAME_CHARS], time.time(), self.revision)
        self.length += 1
        if isinstance(self._steps, deque):  # nothing comes after the end
            self._steps.append(step)
        return step

    def _done(self, step: Step, state: State, seconds: float | None = None) -> None:
        self.revision += 1
        step.revision = self.revision
        step.state = state
        step.seconds = max(0.0, time.time() - step.at) if seconds is None else seconds

    def _record(self, kind: str, step: Step, fields: Mapping[str, Any], pieces: Mapping[str, Any]) -> None:
        if self.recording is not None:
            self.recording.write(kind, {"at": time.time(), "number": step.number, **fields}, pieces)


def clean(text: str) -> str:
    """Return a text that can be written as UTF-8: JSON may hold halves of surrogate pairs."""
    return text.encode(errors="replace").decode()


def label(task_spec: Mapping[str, Any]) -> str:
    """Return a few words that tell a task from the others: its id or name, else its first short values."""
    for key in ("id", "task_id", "name", "title"):
        if isinstance(value := task_spec.get(key), str | int) and str(value):
            return f"{key} {value}"
    short = (f"{key} {value}" for key, value in list(task_spec.items())[:8] if _is_short(value))
    return ", ".join(list(short)[:3])


def _is_short(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 40)
