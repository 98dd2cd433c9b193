"""A training loop as small as it gets: a policy that chooses among four commands, and REINFORCE.

Where a language model would write a command, this policy draws one. All else is as in earnest: tasks, sessions in parallel,
rewards, and what fails without a reward.
"""

import asyncio
import math
import random

from ors.client import AsyncORS

COMMANDS = [
    "head -n 1 numbers.txt > answer.txt",
    "wc -l < numbers.txt > answer.txt",
    "sort -n numbers.txt | tail -n 1 > answer.txt",
    "awk '{ s += $1 } END { print s }' numbers.txt > answer.txt",
]
STEPS, BATCH, RATE = 6, 8, 2.0
rng = random.Random(1)


async def play(environment, task, command: str) -> float | None:
    """Play one episode; return its reward, or None where the machinery failed and not the policy."""
    try:
        async with environment.session(task) as session:
            await session.call_tool("bash", {"command": command})
            return (await session.call_tool("submit", {})).reward
    except Exception as exc:  # a container that died, no free place: say so, and leave it out of the update
        print(f"  not counted: {exc}")
        return None


async def main() -> None:
    client = AsyncORS(base_url="http://127.0.0.1:8080")
    environment = client.environment("sums")
    tasks = await environment.list_tasks("train")
    preferences = [0.0] * len(COMMANDS)
    for step in range(STEPS):
        weights = [math.exp(preference) for preference in preferences]
        chances = [weight / sum(weights) for weight in weights]
        actions = rng.choices(range(len(COMMANDS)), chances, k=BATCH)
        drawn = rng.sample(tasks, BATCH)
        played = await asyncio.gather(
            *(play(environment, task, COMMANDS[action]) for task, action in zip(drawn, actions, strict=True))
        )
        batch = [(action, reward) for action, reward in zip(actions, played, strict=True) if reward is not None]
        mean = sum(reward for _, reward in batch) / len(batch)
        print(f"step {step}: mean reward {mean:.2f}, chance of the right command {chances[-1]:.2f}")
        for action, reward in batch:
            for other, chance in enumerate(chances):
                gradient = (other == action) - chance
                preferences[other] += RATE / len(batch) * (reward - mean) * gradient


asyncio.run(main())
