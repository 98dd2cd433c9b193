"""The two public clients, unmodified; from ``environments.get(name)`` on they have the same methods."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import openreward
import ors.client

CLIENTS = ("ors-sdk", "openreward")


def secrets_for(client: str, secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return secrets in the form that a client takes; openreward's wants the domains that each is for, if it has never
    heard of its name."""
    return {name: value if client == "ors-sdk" else (value, []) for name, value in secrets.items()}


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
