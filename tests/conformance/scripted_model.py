"""A model that says what it was told to say, behind the API of chat completions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Turn = tuple[str, dict[str, Any]]


@asynccontextmanager
async def scripted_model(turns: Sequence[Turn]) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Serve a model whose n-th turn is the n-th tool call; gives its base URL, and the list of requests that it got."""
    requests: list[dict[str, Any]] = []

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        requests.append(body)
        name, arguments = turns[sum(message["role"] == "assistant" for message in body["messages"])]
        call = {"id": f"call-{len(requests)}", "type": "function"}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**call, "function": {"name": name, "arguments": json.dumps(arguments)}}],
        }
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", requests
    finally:
        await runner.cleanup()
