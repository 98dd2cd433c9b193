"""A harness of others, unmodified, with a scripted model: ``firehorse`` finds, plays and scores a task here."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from .scripted_model import scripted_model


async def test_firehorse_plays_an_episode(urls: dict[str, str], tmp_path: Path) -> None:
    """With a toolset that the environment can't have: it is to fall back on the environment's own tools."""
    turns = [("hint", {}), ("no_such_tool", {}), ("submit", {"answer": 101})]
    async with scripted_model(turns) as (model_url, asked):
        url = urls["ors-sdk"]
        environ = {
            **os.environ,
            "OPENREWARD_API_URL": url,
            "OPENREWARD_SESSION_URL": url,
            "OPENREWARD_API_KEY": "unused",
            "OPENROUTER_API_KEY": "unused",
        }
        options = {
            "--env": "Acme/arithmetic",
            "--split": "test",
            "--max-tasks": "1",
            "--agent": "react",
            "--toolset": "claude-code",
            "--model": "openrouter/scripted",
            "--provider-url": model_url,
            "--output-dir": str(tmp_path),
        }
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("firehorse")),
            *(word for option in options.items() for word in option),
            "--no-logging",
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(90):
            output, _ = await process.communicate()
    said = output.decode(errors="replace")
    assert process.returncode == 0, said
    assert "toolset 'claude-code' not supported" in said and "retrying with no toolset" in said, said
    (trial,) = json.loads((tmp_path / "run_result.json").read_text())["trials"]
    assert (trial["final_reward"], trial["finished"]) == (1.0, True), said
    assert "What is 100 + 1?" in json.dumps(asked[0]["messages"])
    assert {tool["function"]["name"] for tool in asked[0]["tools"]} == {"hint", "submit"}
    assert "not a valid tool" in json.dumps(asked[2]["messages"])
