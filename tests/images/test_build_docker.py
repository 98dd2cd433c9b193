"""`ors-host build` on a real engine: images that answer, and what is said of those that don't."""

from __future__ import annotations

import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from host import docker_client, wheels
from host.base_image import LABEL_INPUTS, ensure_base, inputs_digest, tag
from host.build import BuildError, build_environment
from host.check import EnvironmentReport
from host.settings import ImageSettings, Settings

from .conftest import RecordedSteps

pytestmark = pytest.mark.docker

GOOD = """
from sandbox_runtime import Environment, TextBlock, ToolOutput, tool

class Counting(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": 1}]

    def get_prompt(self):
        return [TextBlock(text="Count.")]

    @tool
    def count(self) -> ToolOutput:
        "Count."
        return ToolOutput(blocks=[TextBlock(text="1")])
"""
COUNTING = (EnvironmentReport("counting", ("count",), ("train",)),)


@pytest.fixture
def client() -> Iterator[docker_client.APIClient]:
    with docker_client.connect() as client:
        yield client


@pytest.fixture
def base(client: docker_client.APIClient, steps: RecordedSteps) -> str:
    return ensure_base(client, steps)


@pytest.fixture
def image(client: docker_client.APIClient) -> Iterator[str]:
    """A name that is no image's yet; what a test builds under it is removed."""
    name = f"ors-host-test:{uuid.uuid4().hex[:12]}"
    yield name
    if client.images(name):
        client.remove_image(name, force=True)


def output_of(client: docker_client.APIClient, image: str, script: str, *, user: str = "root") -> str:
    """Return what a shell script prints in a container of an image, its errors included."""
    container = client.create_container(
        image, entrypoint=["bash", "-c", script], command=[], user=user, network_disabled=True
    )["Id"]
    try:
        client.start(container)
        client.wait(container, timeout=60)
        return str(client.logs(container).decode()).strip()
    finally:
        client.remove_container(container, force=True)


def test_the_agent_can_neither_change_the_runtime_nor_see_the_environments_code(
    client: docker_client.APIClient, base: str
) -> None:
    package = output_of(client, base, "python -P -c 'import sandbox_runtime as r; print(r.__path__[0])'")
    script = f"find {package} /usr /etc /opt -writable -not -type l 2>/dev/null; ls /opt/env; cat /opt/env/env.py"
    said = output_of(client, base, script, user="agent").splitlines()
    assert said == [
        "ls: cannot open directory '/opt/env': Permission denied",
        "cat: /opt/env/env.py: Permission denied",
    ]


def test_the_agent_has_its_number_its_home_and_its_work_directory(client: docker_client.APIClient, base: str) -> None:
    said = output_of(client, base, "id -u; id -G; cd ~; pwd; touch x /workspace/x && ls /workspace", user="agent")
    assert said.splitlines() == ["10000", "10000", "/home/agent", "x"]


def test_the_base_has_what_commands_need_and_says_what_it_is_made_of(
    client: docker_client.APIClient, base: str
) -> None:
    script = "for name in bash choom setpriv python python3 pip; do command -v $name >/dev/null || echo no $name; done"
    assert output_of(client, base, script) == ""
    labels = client.inspect_image(base)["Config"]["Labels"]  # type: ignore[no-untyped-call]
    assert labels["ors-host.runtime"] == base.partition(":")[2]
    assert labels[LABEL_INPUTS] == inputs_digest()
    assert client.inspect_image("ors-host-base:latest") == client.inspect_image(base)  # type: ignore[no-untyped-call]


def test_what_a_session_imports_is_compiled_already(client: docker_client.APIClient, base: str) -> None:
    script = (
        "PYTHONDONTWRITEBYTECODE=1 python -P -v -c 'import sandbox_runtime.worker' 2>&1 | grep -c 'code object from /'"
    )
    assert output_of(client, base, script) == "0"


def test_a_folder_with_just_env_py_becomes_an_image_that_answers(
    tmp_path: Path, client: docker_client.APIClient, image: str, steps: RecordedSteps
) -> None:
    (tmp_path / "env.py").write_text(GOOD)
    (tmp_path / "answers.txt").write_text("42")
    assert build_environment(tmp_path, image, steps=steps).environments == COUNTING
    assert "counting: tools count; splits train" in steps.text
    found = output_of(client, image, "stat -c %a /opt/env; cd /opt/env; ls *").split()
    compiled = found.pop()
    assert compiled.startswith("env.cpython-") and compiled.endswith(".pyc")  # so that no session's start does it
    assert found == ["700", "answers.txt", "env.py", "__pycache__:"]
    assert "Permission denied" in output_of(client, image, "cat /opt/env/answers.txt", user="agent")


def test_a_dockerfile_is_used_as_it_is_and_its_folder_less_what_it_ignores(
    tmp_path: Path, client: docker_client.APIClient, image: str, steps: RecordedSteps
) -> None:
    (tmp_path / "tasks.py").write_text(GOOD)
    (tmp_path / "notes.md").write_text("")
    (tmp_path / ".dockerignore").write_text("*.md\n")
    (tmp_path / "Dockerfile").write_text('FROM ors-host-base\nCOPY . /opt/env/\nCMD ["tasks:Counting"]\n')
    assert build_environment(tmp_path, image, steps=steps).environments == COUNTING
    assert output_of(client, image, "cd /opt/env; ls") == "Dockerfile\ntasks.py"


def test_an_import_error_shows_its_traceback(tmp_path: Path, image: str, steps: RecordedSteps) -> None:
    (tmp_path / "env.py").write_text("import json\nimport no_such_module\n")
    with pytest.raises(BuildError) as caught:
        build_environment(tmp_path, image, steps=steps)
    assert 'File "/opt/env/env.py", line 2' in str(caught.value)
    assert "ModuleNotFoundError: No module named 'no_such_module'" in str(caught.value)


def test_an_environment_without_tools_is_refused(tmp_path: Path, image: str, steps: RecordedSteps) -> None:
    (tmp_path / "env.py").write_text(GOOD.replace("@tool", ""))
    with pytest.raises(BuildError, match="Counting: it has no tools"):
        build_environment(tmp_path, image, steps=steps)


def test_an_environment_without_splits_is_refused(tmp_path: Path, image: str, steps: RecordedSteps) -> None:
    (tmp_path / "env.py").write_text(GOOD.replace('["train"]', "[]"))
    with pytest.raises(BuildError, match="split"):
        build_environment(tmp_path, image, steps=steps)


def test_requirements_come_from_wheels_collected_outside(
    tmp_path: Path, client: docker_client.APIClient, image: str, steps: RecordedSteps
) -> None:
    wheel = write_wheel(tmp_path, "tiny")
    (tmp_path / "requirements.txt").write_text(f"./{wheel.name}\n")
    (tmp_path / "env.py").write_text("import tiny\n" + GOOD)
    assert build_environment(tmp_path, image, steps=steps).environments == COUNTING
    assert "with the wheels collected outside: done" in steps.text
    # Nothing of the wheels stays; orwd is the base's place for data.
    assert output_of(client, image, "ls /opt; python -c 'import tiny; print(tiny.VALUE)'") == "env\norwd\n7"


def test_where_wheels_can_not_be_collected_pip_runs_inside_the_build(
    tmp_path: Path, image: str, steps: RecordedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collect(*_: object) -> None:
        raise wheels.WheelsUnavailable("ERROR: tiny has no wheel")

    monkeypatch.setattr(wheels, "collect", collect)
    wheel = write_wheel(tmp_path, "tiny")
    (tmp_path / "requirements.txt").write_text(f"./{wheel.name}\n")
    (tmp_path / "env.py").write_text("import tiny\n" + GOOD)
    assert build_environment(tmp_path, image, steps=steps).environments == COUNTING
    assert "ERROR: tiny has no wheel" in steps.text
    assert "with pip asking the package index inside the build: done" in steps.text


def test_where_both_ways_fail_both_reasons_are_told(tmp_path: Path, image: str, steps: RecordedSteps) -> None:
    (tmp_path / "requirements.txt").write_text("./missing-1.0-py3-none-any.whl\n")
    (tmp_path / "env.py").write_text(GOOD)
    with pytest.raises(BuildError, match="(?s)the build failed at step .*pip install.*Nor .* from wheels") as caught:
        build_environment(tmp_path, image, steps=steps)
    assert str(caught.value).count("missing-1.0-py3-none-any.whl") >= 2


def test_a_failing_step_shows_its_output(tmp_path: Path, image: str, steps: RecordedSteps) -> None:
    (tmp_path / "Dockerfile").write_text("FROM ors-host-base\nRUN echo here is why; exit 3\n")
    with pytest.raises(BuildError, match=r"(?s)step 2/2: RUN echo .*\n  here is why\n.*non-zero code: 3"):
        build_environment(tmp_path, image, steps=steps)


def test_a_dockerfile_that_is_none_is_the_engines_to_explain(tmp_path: Path, image: str, steps: RecordedSteps) -> None:
    (tmp_path / "Dockerfile").write_text("FORM ors-host-base\n")
    with pytest.raises(BuildError, match="unknown instruction: FORM"):
        build_environment(tmp_path, image, steps=steps)


@pytest.mark.parametrize("dockerfile", ["FROM scratch\nCOPY server.py /\n", "FROM no-such-image-anywhere:1\n"])
def test_a_dockerfile_from_another_base_that_is_no_server_is_refused_with_what_to_do(
    tmp_path: Path, image: str, steps: RecordedSteps, dockerfile: str
) -> None:
    (tmp_path / "server.py").write_text("")
    (tmp_path / "Dockerfile").write_text(dockerfile)
    with pytest.raises(
        BuildError,
        match=f"not from the base of ors-host, .*If it is not: start .*FROM {tag()}, or .*--ignore-dockerfile",
    ):
        build_environment(tmp_path, image, steps=steps)


def test_a_base_of_another_version_is_named_with_ours(tmp_path: Path, image: str, steps: RecordedSteps) -> None:
    (tmp_path / "Dockerfile").write_text('FROM ors-host-base:0.0.0\nCMD ["env"]\n')
    with pytest.raises(BuildError, match=f"ors-host-base:0.0.0, which is not here; .* makes {tag()}"):
        build_environment(tmp_path, image, steps=steps)


def write_wheel(folder: Path, name: str) -> Path:
    """Make a wheel of a module with ``VALUE = 7``."""
    info = f"{name}-1.0.dist-info"
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", "VALUE = 7\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def test_a_split_without_a_sound_task_is_warned_of(tmp_path: Path, image: str, steps: RecordedSteps) -> None:
    (tmp_path / "env.py").write_text(GOOD.replace('return [{"n": 1}]', "return [1]"))
    (found,) = build_environment(tmp_path, image, steps=steps).environments
    (problem,) = found.problems
    assert problem.startswith("split 'train' gives no task: ")


def test_an_entrypoint_of_its_own_is_refused(tmp_path: Path, image: str, steps: RecordedSteps) -> None:
    (tmp_path / "env.py").write_text(GOOD)
    (tmp_path / "Dockerfile").write_text('FROM ors-host-base\nCOPY env.py /opt/env/\nENTRYPOINT ["python", "env.py"]\n')
    with pytest.raises(BuildError, match=r"an ENTRYPOINT of its own, .* take it out of .*Dockerfile, .*CMD"):
        build_environment(tmp_path, image, steps=steps)


@pytest.mark.parametrize(
    ("program", "advice"),
    [
        ("import no_such_package\n" + GOOD, "has no no_such_package: a package is named in requirements.txt"),
        ("class MyEnv:\n    pass\n", "an environment is a class that derives from sandbox_runtime.Environment"),
    ],
)
def test_what_is_often_amiss_has_advice(
    tmp_path: Path, image: str, steps: RecordedSteps, program: str, advice: str
) -> None:
    (tmp_path / "env.py").write_text(program)
    with pytest.raises(BuildError) as caught:
        build_environment(tmp_path, image, steps=steps)
    assert advice in str(caught.value).splitlines()[-1]


def test_it_is_checked_as_it_would_be_served(tmp_path: Path, image: str, steps: RecordedSteps) -> None:
    (tmp_path / "env.py").write_text("import os\nassert os.environ['LEVEL'] == '3'\n" + GOOD)
    with pytest.raises(BuildError, match="KeyError"):
        build_environment(tmp_path, image, steps=steps)
    settings = Settings(images={image: ImageSettings(environment={"LEVEL": "3"})})
    assert build_environment(tmp_path, image, settings=settings, steps=steps).environments
