"""Plays episodes through SWE-ReX's Docker deployment and prints their times: ``drive.py IMAGE STARTS CALLS CLIENTS``."""

import asyncio
import json
import logging
import sys
import time

from swerex.deployment.docker import DockerDeployment
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest


async def play(image: str, calls: int) -> tuple[float, list[float]]:
    """Return the time from the start to the first result, and of each call after that."""
    begin = time.perf_counter()
    deployment = DockerDeployment(image=image, pull="never")
    times = []
    try:
        await deployment.start()
        await deployment.runtime.create_session(CreateBashSessionRequest())
        for _ in range(1 + calls):
            before = time.perf_counter()
            observation = await deployment.runtime.run_in_session(BashAction(command="echo done"))
            assert observation.output.strip() == "done"
            times.append(time.perf_counter() - before)
            if len(times) == 1:
                first_s = time.perf_counter() - begin
    finally:
        await deployment.stop()
    return first_s, times[1:]


async def main() -> None:
    """Play one after the other, then as many side by side as there are clients."""
    logging.disable()
    image, starts, calls, clients = sys.argv[1], *map(int, sys.argv[2:])
    played = [await play(image, calls) for _ in range(starts)]
    begin = time.perf_counter()

    async def two() -> list[str]:
        failed = []
        for _ in range(2):
            try:
                await play(image, 0)
            except Exception as exc:
                failed.append(f"{type(exc).__name__}: {exc}".splitlines()[0])
        return failed

    failures = sum(await asyncio.gather(*(two() for _ in range(clients))), [])
    took_s = time.perf_counter() - begin
    print(
        json.dumps(
            {
                "starts_s": [first_s for first_s, _ in played],
                "calls_s": [each for _, times in played for each in times],
                "sessions_per_s": (2 * clients - len(failures)) / took_s,
                "failures": failures,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
