"""The scripted episodes of the demo: they fit the examples, and playing one notices what a server does wrong."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

import pytest

from sandbox_runtime import Environment, ListToolsOutput, TextBlock, ToolOutput

from .conftest import EXAMPLES, load_example


def _load_episodes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_episodes", EXAMPLES / "episodes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


episodes = _load_episodes()
CLASSES: dict[str, type[Environment]] = {
    "bashenv": load_example("bash_env").BashEnv,
    "codeenv": load_example("code_env").CodeEnv,
    "gsm8kenv": load_example("gsm8k_env").GSM8KEnv,
    "plotenv": load_example("plot_env").PlotEnv,
}
INPUTS: dict[tuple[str, str], Any] = {
    ("bashenv", "bash"): load_example("bash_env").BashInput,
    ("codeenv", "run"): load_example("code_env").RunInput,
    ("codeenv", "submit"): load_example("code_env").SubmitInput,
    ("gsm8kenv", "submit"): load_example("gsm8k_env").SubmitInput,
    ("plotenv", "plot"): load_example("plot_env").PlotInput,
    ("plotenv", "submit"): load_example("plot_env").SubmitInput,
}
IN_PYTHON = [episode for episode in episodes.EPISODES if episode.environment in CLASSES]
"""One example is in another language; it is tried as it is served, among ``tests/strangers``."""

WITHOUT_SHELL = [episode for episode in episodes.EPISODES if episode.environment in ("gsm8kenv", "plotenv")]


class InProcess:
    """An environment and its session, as the async client of an SDK has them, without a server between."""

    def __init__(self, name: str, change: Callable[[ToolOutput], ToolOutput] = lambda output: output) -> None:
        self._name = name
        self._change = change

    async def get_task(self, split: str, index: int) -> Any:
        tasks: Any = CLASSES[self._name].list_tasks(split)
        return tasks[index]

    def session(self, task: Any) -> InProcess:
        self._env = CLASSES[self._name](task)
        return self

    async def __aenter__(self) -> InProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        return None

    async def get_prompt(self) -> Any:
        return self._env.get_prompt()

    async def list_tools(self) -> Any:
        tools = self._env.list_tools()
        assert isinstance(tools, ListToolsOutput)
        return tools.tools

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolOutput:
        output: ToolOutput = getattr(self._env, name)(INPUTS[self._name, name].model_validate(arguments))
        return self._change(output)


@pytest.mark.parametrize("episode", IN_PYTHON, ids=lambda episode: episode.title)
def test_every_episode_fits_its_environment(episode: Any) -> None:
    environment = CLASSES[episode.environment]
    tasks: Any = environment.list_tasks(episode.split)
    assert 0 <= episode.index < len(tasks)
    listed = environment.list_tools()
    assert isinstance(listed, ListToolsOutput)
    schemas = {tool.name: tool.input_schema for tool in listed.tools}
    for call in episode.calls:
        if schemas[call.tool] is None:
            assert not call.input
        else:
            INPUTS[episode.environment, call.tool].model_validate(call.input)
    assert episode.calls[-1].tool == "submit"


def test_each_environment_has_a_good_and_a_bad_episode() -> None:
    rewards = {(episode.environment, episode.reward) for episode in episodes.EPISODES}
    assert rewards == {(name, reward) for name in (*CLASSES, "nodeenv") for reward in (0.0, 1.0)}


@pytest.mark.parametrize("episode", WITHOUT_SHELL, ids=lambda episode: episode.title)
async def test_an_episode_gets_the_reward_it_deserves(episode: Any) -> None:
    outcome = await episodes.play(InProcess(episode.environment), episode)
    assert (outcome.reward, outcome.steps) == (episode.reward, len(episode.calls))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda output: output.model_copy(update={"finished": False}), "after submit finished is False"),
        (lambda output: output.model_copy(update={"finished": True}), "after plot finished is True"),
        (lambda output: output.model_copy(update={"blocks": [TextBlock(text="no picture")]}), "plot returned 0 images"),
    ],
)
async def test_playing_notices_what_is_wrong(change: Callable[[ToolOutput], ToolOutput], words: str) -> None:
    (episode,) = [episode for episode in WITHOUT_SHELL if episode.title == "looks twice"]
    with pytest.raises(episodes.EpisodeFailed, match=words):
        await episodes.play(InProcess(episode.environment, change), episode)
