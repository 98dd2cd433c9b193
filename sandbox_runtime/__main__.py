"""``python -m sandbox_runtime module:Class …``: the process in the container (``process.py``)."""

import gc

if __name__ == "__main__":
    gc.disable()  # what is imported stays; to look through it again and again would take a part of the start
    from .deferred import defer_modules

    defer_modules()  # before asyncio and pydantic
    from .snippets import compiled_before

    with compiled_before():
        from .process import run

    run()
