"""The environment in the README is built and played as it stands there."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path

from host.build import build_environment
from tests.docker.harness import running_host

README = Path(__file__).parent.parent.parent / "README.md"
IMAGE = "ors-host-test-readme:latest"


async def test_the_ten_lines_work(tmp_path: Path) -> None:
    section = README.read_text().partition("## Your own environment")[2].partition("Then `ors-host build")[0]
    code = section[section.index("    from pydantic") :]
    (tmp_path / "env.py").write_text(textwrap.dedent(code))
    await asyncio.to_thread(build_environment, tmp_path, IMAGE)
    with running_host(IMAGE) as host:
        async with host.client() as client:
            for command, reward in (("true", 0.0), ("touch hello.txt", 1.0)):
                session = await client.create({"file": "hello.txt"})
                assert "hello.txt" in str(await session.get("/myenv/prompt"))
                await session.bash(command)
                output = (await session.call("submit")).result["output"]
                assert (output["reward"], output["finished"]) == (reward, True)
                await session.delete()
