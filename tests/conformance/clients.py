"""The two public clients, unmodified; from ``environments.get(name)`` on they have the same methods."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import openreward
import ors.client

CLIENTS = ("ors-sdk", "openreward")


@asynccontextmanager
async def environments(client: str, url: str) -> AsyncIterator[Any]:
    """Open a client on a server."""
    if client == "ors-sdk":
        api: Any = ors.client.AsyncORS(base_url=url).environments
    else:
        with mock.patch.dict(os.environ, OPENREWARD_SESSION_URL=url, OPENREWARD_API_URL=url):
            api = openreward.AsyncOpenReward(api_key="unused").environments
    try:
        yield api
    finally:
        for http in api._clients.values():
            await http.close()
