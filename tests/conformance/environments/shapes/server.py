"""Ten small environments in one server, each of a shape that is found among the public ones."""
# ruff: noqa: B006 (written as such files are)

import asyncio
import base64
import random
import struct
import time
import zlib
from typing import Literal

from ors import Environment, ImageBlock, ListToolsOutput, Server, Split, TextBlock, ToolOutput, Toolset, ToolSpec, tool
from pydantic import BaseModel, Field


def say(text, **fields):
    return ToolOutput(blocks=[TextBlock(text=text)], **fields)


# --- Single-turn question and answer; parameters that forbid what they don't know; a tool without parameters ---------


class Answer(BaseModel, extra="forbid"):
    answer: int = Field(description="The result, a whole number.")


class Arithmetic(Environment):
    """Add two numbers."""

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train"), Split(name="test", type="test"), "hard"]

    @classmethod
    def list_tasks(cls, split):
        start = {"train": 0, "test": 100, "hard": 10_000}[split]
        return [{"id": f"{split}-{n}", "a": start + n, "b": 2 * n + 1} for n in range(5)]

    def __init__(self, task_spec, secrets={}):
        super().__init__(task_spec)
        self.hints = 0

    def get_prompt(self):
        return [TextBlock(text=f"What is {self.task_spec['a']} + {self.task_spec['b']}?")]

    @tool
    def hint(self) -> ToolOutput:
        """Say something that helps."""
        self.hints += 1
        return say(f"hint {self.hints}: the answer is positive", metadata={"hints": self.hints})

    @tool
    async def submit(self, params: Answer) -> ToolOutput:
        """Submit the answer."""
        correct = params.answer == self.task_spec["a"] + self.task_spec["b"]
        return say("Correct!" if correct else "Wrong.", reward=1.0 if correct else 0.0, finished=True)


# --- Many tools, a reward for every step, no super().__init__() ------------------------------------------------------


class GridWorld(Environment):
    """Walk to the goal; every step costs."""

    SIZE = 4

    def __init__(self, task_spec: dict, secrets: dict):
        self.task_spec = task_spec
        self.x, self.y = task_spec["start"]

    @classmethod
    def list_splits(cls):
        return ["train", "test"]

    @classmethod
    async def list_tasks(cls, split: str):
        return [{"start": [0, n], "goal": [1, n]} for n in range(3 if split == "train" else 1)]

    async def get_prompt(self):
        return [TextBlock(text=f"You are at {self.x},{self.y}."), TextBlock(text=f"Goal: {self.task_spec['goal']}")]

    def _step(self, dx: int, dy: int) -> ToolOutput:
        self.x = min(max(self.x + dx, 0), self.SIZE - 1)
        self.y = min(max(self.y + dy, 0), self.SIZE - 1)
        there = [self.x, self.y] == list(self.task_spec["goal"])
        return say(f"{self.x},{self.y}", reward=1.0 if there else -0.1, finished=there)

    @tool
    async def north(self) -> ToolOutput:
        """One step north."""
        return self._step(0, -1)

    @tool
    async def south(self) -> ToolOutput:
        """One step south."""
        return self._step(0, 1)

    @tool
    async def east(self) -> ToolOutput:
        """One step east."""
        return self._step(1, 0)

    @tool
    async def west(self) -> ToolOutput:
        """One step west."""
        return self._step(-1, 0)

    @tool
    def look(self) -> ToolOutput:
        """Look around."""
        return say(f"a field of {self.SIZE} by {self.SIZE}", reward=0)


# --- Too many tasks to list ------------------------------------------------------------------------------------------


class Guess(BaseModel):
    number: int


class Endless(Environment):
    """A million tasks, made when asked for."""

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str):
        raise NotImplementedError("there are a million")

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        return 1_000_000

    @classmethod
    async def get_task(cls, split: str, index: int):
        if not 0 <= index < 1_000_000:
            raise IndexError(index)
        return {"index": index, "number": (index * 7919) % 1009}

    def get_prompt(self):
        return [TextBlock(text=f"Task {self.task_spec['index']}: guess a number below 1009.")]

    @tool
    def guess(self, params: Guess) -> ToolOutput:
        """Guess the number."""
        number = self.task_spec["number"]
        if params.number == number:
            return say("Yes.", reward=1.0, finished=True)
        return say("Higher." if params.number < number else "Lower.", reward=0.0)


# --- A constructor that takes its time -------------------------------------------------------------------------------


class Word(BaseModel):
    word: str


class Thesaurus(Environment):
    """Loads its data in the constructor."""

    @classmethod
    def list_splits(cls):
        return ["test"]

    @classmethod
    def list_tasks(cls, split):
        return [{"word": "big"}, {"word": "small"}]

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        time.sleep(3)
        self.words = {"big": {"large", "great"}, "small": {"little", "tiny"}}

    def get_prompt(self):
        return [TextBlock(text=f"Another word for {self.task_spec['word']}?")]

    @tool
    def synonym(self, params: Word) -> ToolOutput:
        """Give one synonym."""
        right = params.word in self.words[self.task_spec["word"]]
        return say("Yes" if right else "No", reward=float(right), finished=right)


# --- Images in the prompt and in a result ----------------------------------------------------------------------------


def png(width, height, rgb):
    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\x00" + bytes(rgb) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    raw = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(rows, 9)) + part(b"IEND", b"")
    return base64.b64encode(raw).decode()


class Zoom(BaseModel):
    factor: int = Field(default=2, ge=1, le=16)


class Colour(BaseModel):
    colour: Literal["red", "green", "blue"]


class ColourChart(Environment):
    """Name the colour of a picture."""

    COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}

    @classmethod
    def list_splits(cls):
        return ["validation"]

    @classmethod
    def list_tasks(cls, split):
        return [{"colour": colour} for colour in cls.COLOURS]

    def _image(self, size):
        data = png(size, size, self.COLOURS[self.task_spec["colour"]])
        return ImageBlock(data=data, mimeType="image/png", detail={"size": size})

    def get_prompt(self):
        return [TextBlock(text="Which colour is this?", detail={"language": "en"}), self._image(8)]

    @tool
    def zoom(self, params: Zoom) -> ToolOutput:
        """Show the picture larger."""
        return ToolOutput(blocks=[self._image(8 * params.factor)], metadata={"factor": params.factor})

    @tool
    def name_it(self, params: Colour) -> ToolOutput:
        """Name the colour."""
        return say("thank you", reward=float(params.colour == self.task_spec["colour"]), finished=True)


# --- Tools from a toolset of the class -------------------------------------------------------------------------------


class Line(BaseModel, extra="forbid"):
    text: str = Field(min_length=1)


class Pad:
    def __init__(self):
        self.lines = []


class Pages(Toolset):
    @tool
    def write_line(self, params: Line) -> ToolOutput:
        """Add a line to the notes."""
        self.env.sandbox.lines.append(params.text)
        return say(f"{len(self.env.sandbox.lines)} lines")

    @tool
    async def read_all(self) -> ToolOutput:
        """Read the notes."""
        return say("\n".join(self.env.sandbox.lines) or "(empty)")


class Notebook(Environment):
    """Take notes, then hand them in."""

    toolsets = [Pages]

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"lines": 2}]

    def __init__(self, task_spec, secrets):
        super().__init__(task_spec, secrets)
        self.sandbox = Pad()

    def get_prompt(self):
        return [TextBlock(text=f"Write {self.task_spec['lines']} lines.")]

    @tool
    def hand_in(self) -> ToolOutput:
        """Hand the notes in."""
        return say("received", reward=float(len(self.sandbox.lines) == self.task_spec["lines"]), finished=True)


# --- Tools that only some tasks have ---------------------------------------------------------------------------------


class Quests(Environment):
    """Which tools there are depends on the task."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"tool": "sing"}, {"tool": "dance"}]

    def list_task_tools(self) -> ListToolsOutput:
        name = self.task_spec["tool"]
        return ListToolsOutput(tools=[ToolSpec(name=name, description=f"Time to {name}.", input_schema=None)])

    def get_prompt(self):
        return [TextBlock(text=f"You may {self.task_spec['tool']}.")]

    def _do(self, name):
        right = self.task_spec["tool"] == name
        return say(f"you {name}", reward=1.0 if right else 0.0, finished=right)

    @tool(shared=False)
    def sing(self) -> ToolOutput:
        """Sing."""
        return self._do("sing")

    @tool(shared=False)
    def dance(self) -> ToolOutput:
        """Dance."""
        return self._do("dance")

    @tool
    def rest(self) -> ToolOutput:
        """Do nothing."""
        return say("you rest")


# --- Tasks in an order that hash() decides ---------------------------------------------------------------------------


class Choice(BaseModel):
    letter: str


class Shuffled(Environment):
    """Multiple choice. The right letter is in no task: it is worked out again for grading."""

    QUESTIONS = {"q1": ["Paris", "Rome", "Oslo", "Bern"], "q2": ["two", "three", "four", "five"]}

    @classmethod
    def list_splits(cls):
        return ["test"]

    @classmethod
    def _options(cls, task_id):
        options = list(cls.QUESTIONS[task_id])
        random.seed(hash(task_id))
        random.shuffle(options)
        return options

    @classmethod
    def list_tasks(cls, split):
        return [{"id": task_id, "options": cls._options(task_id)} for task_id in cls.QUESTIONS]

    def get_prompt(self):
        lines = [f"{'ABCD'[n]}. {option}" for n, option in enumerate(self.task_spec["options"])]
        return [TextBlock(text="\n".join(["Choose one.", *lines]))]

    @tool
    def choose(self, params: Choice) -> ToolOutput:
        """Choose a letter."""
        chosen = self._options(self.task_spec["id"])["ABCD".index(params.letter)]
        return say(chosen, reward=float(chosen == self.QUESTIONS[self.task_spec["id"]][0]), finished=True)


# --- Secrets, without which the constructor raises -------------------------------------------------------------------


class Vault(Environment):
    """Needs two keys."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"door": "north"}]

    def __init__(self, task_spec, secrets):
        super().__init__(task_spec, secrets)
        self.judge_key = secrets.get("OPENAI_API_KEY")
        if not self.judge_key:
            raise ValueError("OPENAI_API_KEY must be given in secrets")
        self.db_key = secrets["database_password"]

    def get_prompt(self):
        return [TextBlock(text=f"Open the {self.task_spec['door']} door.")]

    @tool
    def open_door(self) -> ToolOutput:
        """Open the door with both keys."""
        return say(f"{self.judge_key} and {self.db_key} fit", reward=1.0, finished=True)


# --- Everything that may go wrong ------------------------------------------------------------------------------------


class Text(BaseModel):
    text: str
    times: int = 1


class Seconds(BaseModel):
    seconds: float = Field(ge=0, le=60)


class What(BaseModel):
    what: str


class Workshop(Environment):
    """Where tools are tried out: what it does is in the task and in the parameters."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": n} for n in range(3)]

    def __init__(self, task_spec, secrets):
        super().__init__(task_spec, secrets)
        if task_spec.get("construct") == "raise":
            raise RuntimeError("no such thing can be built")
        self.prompts = self.calls = self.running = 0

    async def setup(self):
        await asyncio.sleep(self.task_spec.get("setup_s", 0))
        if self.task_spec.get("setup") == "raise":
            raise RuntimeError("the workshop is closed")

    def get_prompt(self):
        if self.task_spec.get("prompt") == "raise":
            raise RuntimeError("speechless")
        self.prompts += 1
        return [TextBlock(text=f"Prompt number {self.prompts}.")]

    @tool
    def echo(self, params: Text) -> ToolOutput:
        """Return a text, many times over.

        The text may be anything:
            it comes back as it is.
        """
        return say(params.text * params.times)

    @tool
    def count(self) -> ToolOutput:
        """Count its own calls."""
        self.calls += 1
        return say(str(self.calls))

    @tool
    async def slow(self, params: Seconds) -> ToolOutput:
        """Take a while, then count."""
        await asyncio.sleep(params.seconds)
        return self.count()

    @tool
    async def overlap(self, params: Seconds) -> ToolOutput:
        """Say how many calls of this tool run at once."""
        self.running += 1
        await asyncio.sleep(params.seconds)
        seen = self.running
        await asyncio.sleep(params.seconds)
        self.running -= 1
        return say(f"{seen} at once")

    @tool
    def rich(self) -> ToolOutput:
        """Return everything that an output may have."""
        return ToolOutput(
            blocks=[
                TextBlock(text="one", detail={"n": 1, "nested": {"list": [1, 2.5, None, True, "x"]}}),
                TextBlock(text=""),
            ],
            metadata={"unicode": "été 👩\u200d🚀 \u2028", "big": 2**53, "negative": -0.5},
            reward=-1,
        )

    @tool
    def fail(self, params: What) -> ToolOutput:
        """Fail in the way asked for."""
        match params.what:
            case "raise":
                raise ValueError("it broke\nin two\n\nplaces")
            case "key":
                raise KeyError("missing")
            case "empty":
                raise RuntimeError
            case "cancelled":
                raise asyncio.CancelledError
            case "not_an_output":
                return "just a string"
            case "nan":
                return say("a reward", reward=float("nan"))
            case "infinite":
                return say("a reward", reward=float("inf"))
            case "no_blocks":
                return ToolOutput(blocks=[])
        return say("nothing failed")

    @tool
    def finish(self) -> ToolOutput:
        """End the episode."""
        return say("done", reward=0.5, finished=True)


if __name__ == "__main__":
    server = Server(
        [Arithmetic, GridWorld, Endless, Thesaurus, ColourChart, Notebook, Quests, Shuffled, Vault, Workshop]
    )
    server.run(port=8080)
