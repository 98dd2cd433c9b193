"""An environment that does, on request, whatever an author's code may do wrong."""

import asyncio
import os
import sys
import time
from typing import Any

from pydantic import BaseModel, Field

from sandbox_runtime import Environment, Split, TextBlock, ToolOutput, shell, tool


def text(words: str, **fields: Any) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=words)], **fields)


class Command(BaseModel, extra="forbid"):
    command: str
    timeout_s: float = 60


class Seconds(BaseModel):
    seconds: float = Field(ge=0)


class Text(BaseModel):
    text: str
    times: int = 1


class What(BaseModel):
    what: str


class Probe(Environment):
    """What it does is in its task: ``construct``, ``setup``, ``prompt``, ``teardown`` each ``raise``, ``exit`` or ``sleep``."""

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train"), "hard"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": n, "split": split, "order": hash(f"task-{n}")} for n in range(5)]

    def __init__(self, task_spec, secrets):
        super().__init__(task_spec, secrets)
        self.calls = 0
        self._misbehave("construct")

    def setup(self):
        self._misbehave("setup")

    def get_prompt(self):
        self._misbehave("prompt")
        return [TextBlock(text=f"task {self.task_spec.get('n')}")]

    def teardown(self):
        print("teardown ran", flush=True)
        self._misbehave("teardown")

    def _misbehave(self, where: str) -> None:
        match self.task_spec.get(where):
            case "raise":
                raise RuntimeError(f"{where} was told to raise")
            case "exit":
                os._exit(7)
            case "sleep":
                time.sleep(self.task_spec.get("seconds", 3600))
            case "print":
                print(self.task_spec["text"], flush=True)

    @tool(concurrent=True)
    async def bash(self, params: Command) -> ToolOutput:
        """Run a shell command as the agent."""
        result = await shell.run(params.command, timeout_s=params.timeout_s)
        return text(result.output or "(no output)", metadata={"status": result.status})

    @tool
    def echo(self, params: Text) -> ToolOutput:
        """Return a text, many times over."""
        return text(params.text * params.times)

    @tool
    def count(self) -> ToolOutput:
        """Count its own calls."""
        self.calls += 1
        return text(str(self.calls))

    @tool(concurrent=True)
    def sleep(self, params: Seconds) -> ToolOutput:
        """Block a thread, then count."""
        time.sleep(params.seconds)
        return self.count()

    @tool(concurrent=True)
    async def sleep_async(self, params: Seconds) -> ToolOutput:
        """Wait on the event loop, then count."""
        await asyncio.sleep(params.seconds)
        return self.count()

    @tool
    def fail(self, params: What) -> ToolOutput:
        """Fail in the way asked for."""
        match params.what:
            case "raise":
                raise ValueError("the tool raised\non two lines")
            case "cancelled":
                raise asyncio.CancelledError
            case "system_exit":
                sys.exit(3)
            case "keyboard_interrupt":
                raise KeyboardInterrupt
            case "os_exit":
                os._exit(9)
            case "nan":
                return text("a reward", reward=float("nan"))
            case "no_blocks":
                return ToolOutput(blocks=[])
            case "not_an_output":
                return "just a string"  # type: ignore[return-value]
            case "surrogates":
                return text("a\ud800b")
            case "hog":
                self.hog = [b"x" * 2**24 for _ in range(2**12)]
            case "stdout":
                for n in range(200_000):
                    print(f"line {n}")
        return text("nothing failed")

    @tool
    def secret(self) -> ToolOutput:
        """Return what secrets it was given."""
        return text(" ".join(f"{name}={value}" for name, value in sorted(self.secrets.items())))

    @tool(shared=False)
    def finish(self) -> ToolOutput:
        """End the episode."""
        return text("done", reward=1.0, finished=True)
