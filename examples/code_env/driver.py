"""Runs one call of a submitted function in a process of the agent's; its text is what `python -I -c` is given.

Reads one JSON object ``{"code", "function", "args"}`` from stdin and writes one, ``{"value"}`` or ``{"error"}``, to stdout.
Nothing here has to be proof against the submitted code, which can do whatever this process can: it is told the arguments
of one call, and never what the result should be.
"""

import json
import os
import resource
import sys

MEMORY_BYTES = 512 * 1024 * 1024


def main() -> None:
    """Answer the request on stdin."""
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # What the submitted code prints must not mix with the answer.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(devnull, descriptor)
    try:
        namespace: dict[str, object] = {"__name__": "submission"}
        exec(compile(request["code"], "submission.py", "exec"), namespace)
        value = namespace[request["function"]](*request["args"])  # type: ignore[operator]
        text = json.dumps({"value": value}, allow_nan=False)
    except Exception as exc:
        text = json.dumps({"error": f"{type(exc).__name__}: {exc}".removesuffix(": ")[:1000]})
    answer.write(text)
    answer.flush()
    os._exit(0)  # without waiting for threads that the submitted code has left


main()
