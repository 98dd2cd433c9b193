"""Plays episodes through OpenEnv's local Docker provider: ``drive.py IMAGE STARTS CALLS CLIENTS SESSIONS`` prints times."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from openenv.core.containers.runtime.providers import LocalDockerProvider
from openenv.core.generic_client import GenericEnvClient


def play(image: str, calls: int) -> tuple[float, list[float]]:
    """Return the time from the start to the first result, and of each call after that."""
    begin = time.perf_counter()
    provider = LocalDockerProvider()
    url = provider.start_container(image)
    times = []
    try:
        provider.wait_for_ready(url)
        with GenericEnvClient(base_url=url).sync() as client:
            client.reset()
            for _ in range(1 + calls):
                before = time.perf_counter()
                assert client.step({"text": "a few words"}).observation["text"] == "a few words"
                times.append(time.perf_counter() - before)
                if len(times) == 1:
                    first_s = time.perf_counter() - begin
    finally:
        provider.stop_container()
    return first_s, times[1:]


def main() -> None:
    """Play one after the other, then as many side by side as there are clients."""
    image, starts, calls, clients, sessions = sys.argv[1], *map(int, sys.argv[2:])
    played = [play(image, calls) for _ in range(starts)]
    begin = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        futures = [threads.submit(play, image, 0) for _ in range(sessions)]
    took_s = time.perf_counter() - begin
    # Two that start in the same millisecond get the same name for their containers, and one fails.
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
