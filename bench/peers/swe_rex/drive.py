"""Plays episodes through SWE-ReX's Docker deployment: ``drive.py IMAGE STARTS CALLS CLIENTS SESSIONS`` prints times."""

import asyncio
import json
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from swerex.deployment.docker import DockerDeployment
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest


async def play(image: str, calls: int) -> tuple[float, list[float]]:
    """Return the time from the start to the first result, and of each call after that."""
    begin = time.perf_counter()
    deployment = DockerDeployment(image=image, pull="never", startup_timeout=60)
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


def main() -> None:
    """Play one after the other, then as many side by side as there are clients."""
    logging.disable()
    image, starts, calls, clients, sessions = sys.argv[1], *map(int, sys.argv[2:])
    played = [asyncio.run(play(image, calls)) for _ in range(starts)]
    begin = time.perf_counter()
    # Each in a thread and a loop of its own: its start blocks the loop, and others then wait in vain.
    with ThreadPoolExecutor(clients) as threads:
        futures = [threads.submit(lambda: asyncio.run(play(image, 0))) for _ in range(sessions)]
    took_s = time.perf_counter() - begin
    failures = [repr(error)[:200] for future in futures if (error := future.exception())]
    print(
        json.dumps(
            {
                "starts_s": [first_s for first_s, _ in played],
                "calls_s": [each for _, times in played for each in times],
                "sessions_per_s": (len(futures) - len(failures)) / took_s,
                "failures": failures,
            }
        )
    )


if __name__ == "__main__":
    main()
