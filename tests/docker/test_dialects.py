"""A folder as an author of the public SDKs has it, built without an edit; and what of it is refused before it is served."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.build import BuildError, build_environment
from tests.docker.harness import RunningHost, running_host

IMAGE = "ors-host-test-dialects:latest"
REFUSED = "ors-host-test-refused:latest"

SERVER = '''
import argparse, json, os
from pathlib import Path
from ors import Environment, Server, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel

TASKS = json.loads(Path("tasks.json").read_text())
SECOND = Path(__file__).with_name("second.txt").read_text()

class Command(BaseModel):
    command: str

class First(Environment):
    @classmethod
    def list_splits(cls): return [Split(name="train", type="train")]
    @classmethod
    def list_tasks(cls, split): return TASKS
    def __init__(self, task_spec, secrets): super().__init__(task_spec)
    def get_prompt(self): return [TextBlock(text=self.task_spec["q"])]

    @tool
    def data(self) -> ToolOutput:
        """Read what the operator gave."""
        return ToolOutput(blocks=[TextBlock(text=Path("/orwd_data/answers.txt").read_text())])

    @tool
    def spoil(self) -> ToolOutput:
        Path("/orwd_data/answers.txt").write_text("spoiled")

    @tool
    async def bash(self, params: Command) -> ToolOutput:
        from sandbox_runtime import shell
        return ToolOutput(blocks=[TextBlock(text=(await shell.run(params.command)).output)])

class Second(First):
    def get_prompt(self): return [TextBlock(text=SECOND)]

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8080)
    Server([Second, First]).run(port=parser.parse_args().port)
'''


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    folder.chmod(0o755)
    (folder / "answers.txt").write_text("42")
    (folder / "answers.txt").chmod(0o644)
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Iterator[RunningHost]:
    folder = write(
        tmp_path_factory.mktemp("env"),
        server_py=SERVER,
        requirements_txt="ors-sdk==0.1.0\n",
        tasks_json='[{"q": "six times seven?"}]',
        second_txt="second",
    )
    report = build_environment(folder, IMAGE, data=str(data))
    assert [found.name for found in report.environments] == ["second", "first"]
    shutil.rmtree(folder)
    with running_host(IMAGE, data=f"{IMAGE}={data}") as host:
        yield host


async def test_a_folder_of_the_sdks_is_served_with_its_files(served: RunningHost) -> None:
    async with served.client() as client:
        session = await client.create({"q": "x"})
        assert (await session.get("/second/prompt"))[1][0]["text"] == "second"
        await session.delete()
        session = client.session()
        assert (await session.post("/create", {"env_name": "First", "split": "train", "index": 0}))[0] == 200
        assert (await session.get("/first/prompt"))[1][0]["text"] == "six times seven?"
        assert (await session.get("/first/messages"))[0] == 404
        await session.delete()


async def test_data_is_for_the_environment_to_read_and_not_for_the_agent(served: RunningHost, data: Path) -> None:
    async with served.client() as client:
        session = await client.create({"q": "x"})
        assert (await session.call("data")).text == "42"
        assert "Read-only file system" in (await session.call("spoil")).data
        said = await session.bash("cat /orwd_data/answers.txt; ls /orwd_data/ /opt/orwd/data; ls -d /orwd_data")
        assert said.count("Permission denied") == 3
        assert "42" not in said
        mounts = {mount["Destination"]: mount for mount in served.inspect(session.sid)["Mounts"]}
        assert mounts["/opt/orwd/data"]["Source"] == str(data)
        assert not mounts["/opt/orwd/data"]["RW"]
        await session.delete()
    (catalog,) = served.containers(role="catalog")
    assert {mount["Destination"] for mount in catalog["Mounts"]} == {"/run/ors", "/opt/orwd/data"}


OURS = (
    SERVER.replace("from ors import Environment, Server,", "from sandbox_runtime import Environment,")
    .partition("\nif __name__")[0]
    .replace('json.loads(Path("tasks.json").read_text())', "[{}]")
    .replace('Path(__file__).with_name("second.txt").read_text()', "''")
)


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("server.py", SERVER, "add ors-sdk to its requirements.txt"),
        ("env.py", "import no_such_module", "No module named 'no_such_module' (/opt/env/env.py, line 1)"),
        ("env.py", "class Env: pass", "module 'env' defines no environment"),
        ("env.py", OURS + "\nclass SecOnd(First): pass", "env:Second and env:SecOnd (in /opt/env/env.py)"),
        ("env.py", OURS.replace("@tool", "#"), "it has no tools: decorate at least one method with @tool"),
        ("env.py", OURS.replace('[Split(name="train", type="train")]', "[]"), "has no splits"),
    ],
    ids=["sdk missing", "import fails", "no environment", "one name twice", "no tools", "no splits"],
)
def test_what_is_refused_at_build(tmp_path: Path, name: str, source: str, message: str) -> None:
    (tmp_path / name).write_text(source)
    with pytest.raises(BuildError) as caught:
        build_environment(tmp_path, REFUSED)
    assert message in str(caught.value)
