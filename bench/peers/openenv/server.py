"""The benchmark's environment as it is written for OpenEnv."""

from openenv.core.env_server import Environment, create_fastapi_app
from openenv.core.env_server.types import Action, Observation, State


class Words(Action):
    text: str


class Said(Observation):
    text: str


class Bench(Environment):
    def reset(self, seed=None, episode_id=None, **kwargs):
        return Said(text="Say something.")

    def step(self, action, timeout_s=None, **kwargs):
        return Said(text=action.text, reward=0.0)

    @property
    def state(self):
        return State()


app = create_fastapi_app(Bench, Words, Said)
