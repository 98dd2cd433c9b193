"""``ors-host test``: an image played through the protocol, and the protocol's guarantees looked at on the way.

For each environment the first task of each split, with calls from a script or made up from the tools' schemas. What the
author's code answers to made-up input is told, and only what no environment may do is a failure.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from host.client import NotProtocol, Refused, Reply, Server, Session
from host.errors import Reason, StartupError
from host.inventory import Inventory
from host.private import PrivateHost
from host.samples import sample
from sandbox_runtime.messages import RunToolError, RunToolSuccess, TextBlock, ToolSpec, describe

_QUOTED_CHARS = 200
_INFRASTRUCTURE = frozenset(Reason)
"""Words that begin an error which is not the tool's."""

Kind = Literal["environment", "task", "prompt", "tools", "call", "reward", "check", "note", "failure"]


class ScriptedCall(BaseModel):
    """One call of a script."""

    model_config = ConfigDict(extra="forbid")

    tool: str
    input: dict[str, Any] = {}


class ScriptedEpisode(BaseModel):
    """Calls on one task, and what they are worth: the reward of the last."""

    model_config = ConfigDict(extra="forbid")

    environment: str | None = None
    split: str
    index: int = 0
    calls: list[ScriptedCall]
    reward: float | None = None


_SCRIPT = TypeAdapter(list[ScriptedEpisode])


def read_script(path: Path) -> list[ScriptedEpisode]:
    """Return the episodes of a script: a JSON array of them.

    Raises:
        StartupError: it can't be read, or isn't one.
    """
    try:
        return _SCRIPT.validate_json(path.read_bytes())
    except OSError as exc:
        raise StartupError(f"{path} can't be read: {exc.strerror}") from None
    except ValidationError as exc:
        raise StartupError(f"{path}: {describe(exc)}") from None


@dataclass(frozen=True)
class Line:
    """One line of the transcript."""

    kind: Kind
    text: str


@dataclass
class Trial:
    """What is tried on one host; each line of the transcript is given to ``tell`` as it comes."""

    host: PrivateHost
    tell: Callable[[Line], None]
    seed: int
    failures: int = 0
    episodes: int = 0
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    async def run(self, script: Sequence[ScriptedEpisode] | None) -> None:
        """Play the script, or the first task of each split of each environment."""
        async with Server.open(self.host.url) as server:
            for episode in await self._from_schemas(server) if script is None else script:
                self.episodes += 1
                try:
                    await self._play(server, episode, scripted=script is not None)
                except (Refused, NotProtocol) as exc:
                    self._fail(str(exc))

    async def _from_schemas(self, server: Server) -> list[ScriptedEpisode]:
        episodes = []
        for environment in await server.environments():
            for split in await server.splits(environment):
                if await server.num_tasks(environment, split.name):
                    episodes.append(ScriptedEpisode(environment=environment, split=split.name, calls=[]))
                else:
                    self.tell(Line("note", f"{environment}: split {split.name} has no task"))
        return episodes

    async def _play(self, server: Server, episode: ScriptedEpisode, *, scripted: bool) -> None:
        environment = episode.environment or (await server.environments())[0]
        self.tell(Line("environment", f"{environment} · {episode.split} · task {episode.index}"))
        task = await server.task(environment, episode.split, episode.index)
        self.tell(Line("task", json.dumps(task, ensure_ascii=False)))
        self._check(
            "a task asked for again is the same", await server.task(environment, episode.split, episode.index) == task
        )
        session = await server.create(environment, task, {})
        try:
            await self._episode(session, episode, scripted=scripted)
        finally:
            with anyio.CancelScope(shield=True):
                await session.delete()
        await self._check_end(session)

    async def _episode(self, session: Session, episode: ScriptedEpisode, *, scripted: bool) -> None:
        prompt = await session.prompt()
        self.tell(Line("prompt", text_of(prompt)))
        self._check("the prompt is not empty", bool(prompt))
        tools = await session.tools()
        self.tell(Line("tools", ", ".join(tool.name for tool in tools)))
        for tool in tools:
            if not tool.description:
                self.tell(Line("note", f"{tool.name} has no description: its docstring is what a model goes by"))
        calls = episode.calls if scripted else self._made_up(tools)
        reward: float | None = None
        is_finished = False
        call_id = ""
        for call in calls:
            reply = await session.call(call.tool, call.input)
            self._tell_call(call, reply)
            if isinstance(reply.output, RunToolSuccess):
                reward, is_finished = reply.output.output.reward, reply.output.output.finished
            call_id = reply.call_id
            again = await session.call(call.tool, call.input, reply.call_id)
            self._check("the result is there again by its task_id, and the tool ran once", again.data == reply.data)
            if is_finished:
                break
        if scripted:
            same = reward == episode.reward
            self._check(f"the reward is {episode.reward}", same, f"the reward is {reward}, not {episode.reward}")
        if call_id:
            unknown = await session.call(tools[0].name, {}, _another(call_id))
            kept = unknown.error == "unknown task_id"
            self._check("a task_id that was never given starts nothing", kept, unknown.data[:_QUOTED_CHARS])
        await self._check_calls(session, tools, is_finished=is_finished)

    def _made_up(self, tools: Sequence[ToolSpec]) -> list[ScriptedCall]:
        calls = [ScriptedCall(tool=tool.name, input=sample(tool.input_schema, self._chance)) for tool in tools]
        # A tool without input is often the one that ends the episode.
        return sorted(calls, key=lambda call: not call.input)

    async def _check_calls(self, session: Session, tools: Sequence[ToolSpec], *, is_finished: bool) -> None:
        name = tools[0].name if tools else "none"
        if is_finished:
            late = await session.call(name, {})
            refused = isinstance(late.output, RunToolError) and late.output.reason == "episode_finished"
            self._check("a call after the end is refused", refused, late.data[:_QUOTED_CHARS])
            return
        self.tell(Line("note", "the episode was not finished by these calls"))
        if tools:
            tool_input = sample(tools[0].input_schema, self._chance)
            call_id = await session.begin(name, tool_input)
            reply = await session.call(name, tool_input, call_id)
            self._check(
                "a client that hung up gets the result", reply.error != "unknown task_id", reply.data[:_QUOTED_CHARS]
            )

    async def _check_end(self, session: Session) -> None:
        await session.delete()
        try:
            await session.ping()
        except Refused as exc:
            self._check("it is gone, and says why; deleting it again is fine", exc.status == 410, str(exc))
        else:
            self._fail("a session that was deleted still answers")
        left = await anyio.to_thread.run_sync(self._left)
        self._check("nothing is left of it", not left, f"left: {', '.join(left)}")

    def _left(self) -> list[str]:
        with Inventory.open() as inventory:
            return [entry.name for entry in inventory.entries(self.host.state.server_id) if entry.kind != "catalog"]

    def _tell_call(self, call: ScriptedCall, reply: Reply) -> None:
        said = f"{call.tool} {json.dumps(call.input, ensure_ascii=False)}"
        match reply.output:
            case None:
                self.tell(Line("call", f"{said}\nraised: {reply.error}"))
                if (reply.error or "").partition(":")[0] in _INFRASTRUCTURE:
                    self._fail(f"the session failed in the call: {reply.error}")
                else:
                    self.tell(Line("note", f"{call.tool} raises for an input that its schema allows"))
            case RunToolError() as error:
                self.tell(Line("call", f"{said}\nrefused: {error.error}"))
            case success:
                output = success.output
                self.tell(Line("call", f"{said}\n{text_of(output.blocks)}"))
                if output.reward is not None or output.finished:
                    self.tell(Line("reward", f"reward {output.reward}" + (", finished" if output.finished else "")))

    def _check(self, promise: str, kept: bool, found: str = "") -> None:
        if kept:
            self.tell(Line("check", promise))
        else:
            self._fail(f"not so: {promise}" + (f" ({found})" if found else ""))

    def _fail(self, text: str) -> None:
        self.failures += 1
        self.tell(Line("failure", text))


def _another(call_id: str) -> str:
    """Return an id of the same form that was not given to any call."""
    return call_id[:-1] + ("1" if call_id.endswith("0") else "0")


def text_of(blocks: Sequence[Any]) -> str:
    """Return blocks as text; of an image, what it is."""
    return "\n".join(
        block.text if isinstance(block, TextBlock) else f"[{block.mimeType}, {len(block.data) * 3 // 4} bytes]"
        for block in blocks
    )


def as_data(line: Line) -> Mapping[str, str]:
    """Return a line of the transcript as JSON has it."""
    return {"kind": line.kind, "text": line.text}
