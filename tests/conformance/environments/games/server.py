"""Games of textarena. The prompt resets the game: it is the first observation."""
# ruff: noqa: B006 (written as such files are)

import textarena as ta
from ors import Environment, Server, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field


class Action(BaseModel, extra="forbid"):
    action: str = Field(description="The move, in the form that the game asks for.")


class Game(Environment):
    game: str

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec)
        self.env = ta.make(self.game)
        self.resets = 0

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str):
        seeds = range(0, 50) if split == "train" else range(50, 60)
        return [{"id": f"{cls.game}_{split}_{seed}", "seed": seed} for seed in seeds]

    async def get_prompt(self):
        self.resets += 1
        self.env.reset(num_players=1, seed=self.task_spec["seed"])
        _, observation = self.env.get_observation()
        return [TextBlock(text=observation)]

    @tool
    async def act(self, params: Action) -> ToolOutput:
        """Make a move."""
        done, _ = self.env.step(params.action)
        if done:
            rewards, info = self.env.close()
            text, reward = info[0].get("reason", ""), float(rewards[0])
        else:
            (_, text), reward = self.env.get_observation(), 0.0
        return ToolOutput(
            blocks=[TextBlock(text=text)], metadata={"resets": self.resets}, reward=reward, finished=bool(done)
        )


class TowerOfHanoi(Game):
    game = "TowerOfHanoi-v0"


class Mastermind(Game):
    game = "Mastermind-v0"


if __name__ == "__main__":
    server = Server([TowerOfHanoi, Mastermind])
    server.run(port=8080)
