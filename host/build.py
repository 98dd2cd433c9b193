"""``ors-host build``: an environment image from a folder, made and shown to work.

A folder with a Dockerfile is built as it is; what is not from our base is to run a server of its own. A folder with just
``env.py``, or a ``server.py`` as the public SDKs have it (and ``requirements.txt``, if it needs packages), gets a generated
Dockerfile. The base image is made first where it is missing.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path

from host import docker_client, event_loop, wheels
from host.base_image import REPOSITORY as BASE_REPOSITORY
from host.base_image import ensure_base, inspect_image, probe_python, starting_image
from host.base_image import tag as base_tag
from host.build_context import IGNORED_BY_DEFAULT, Folders, ignore_patterns, open_context
from host.check import CheckReport, check_image
from host.errors import StartupError
from host.image_builder import BuildError, StepFailed, run_build
from host.kinds import LABEL_RUNTIME
from host.progress import Detail, Steps
from host.settings import Settings

__all__ = ["BuildError", "Install", "build_environment", "dockerfile_of", "generated_dockerfile"]

_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAG = re.compile(rf"(?:[A-Za-z0-9.-]+(?::\d+)?/)?{_NAME}(?:/{_NAME})*(?::\w[\w.-]{{0,127}})?", re.ASCII)
_FROM_BASE = re.compile(
    rf"^\s*FROM\s+(?:--\S+\s+)*{BASE_REPOSITORY}(?::(\S+))?\s*(?:AS\s.*)?$", re.MULTILINE | re.IGNORECASE
)
_START = re.compile(r"^\s*ARG\s+BASE=(\S+)\s*$(?:\n.*)*?^\s*FROM\s+\$\{?BASE\b", re.MULTILINE | re.IGNORECASE)
"""A Dockerfile that lets what it starts from be chosen."""

_HINTS = (
    (
        re.compile(r"No module named '([\w.]+)'"),
        "the image has no {0}: a package is named in requirements.txt, or installed by the Dockerfile; a module of yours lies "
        "beside the program",
    ),
    (
        re.compile("defines no environment and starts no server"),
        "an environment is a class that derives from sandbox_runtime.Environment, or from an SDK's",
    ),
)
"""What is often amiss in an author's code → what to do."""

_COMPILE = "RUN python -m compileall -q /opt/env || true"
"""Each session's start would compile the author's modules again; what can't be compiled is no reason to fail here."""

_PROGRAMS = ("env.py", "server.py", "main.py")
"""The file that the environments are in, or that serves them; the first that is there counts."""


class Install(Enum):
    """How a generated Dockerfile installs a ``requirements.txt``."""

    NOTHING = auto()
    WHEELS = auto()  # collected outside and put into the context's wheels/
    FROM_INDEX = auto()  # by pip in the build


def build_environment(
    directory: Path,
    image: str,
    *,
    data: str | None = None,
    ignore_dockerfile: bool = False,
    settings: Settings | None = None,
    steps: Steps | None = None,
) -> CheckReport:
    """Build the folder into the image named ``image`` and check that it answers, with ``data`` at ``/orwd_data``.

    It is checked as a host with ``settings`` would serve it.

    With ``ignore_dockerfile`` one is generated although the folder has its own, which is for another way of serving it.

    Returns:
        What the image was found to serve.

    Raises:
        BuildError: folder, name, engine, a step of the build, or the finished image is at fault; ``str()`` is for the user.
    """
    steps = steps or Steps()
    _check_tag(image)
    own = _own_dockerfile(directory, ignored=ignore_dockerfile)
    advice = ""
    try:
        client = docker_client.connect()
    except docker_client.EngineUnavailable as exc:
        raise BuildError(str(exc)) from exc
    with client:
        if own is None:
            _build_generated(client, directory, image, ensure_base(client, steps), steps)
        else:
            _prepare_base_of(client, own, steps)
            start = _START.search(own)
            arguments = {"BASE": starting_image(client, steps, start[1])} if start else {}
            try:
                with steps.step(f"building {image} from {directory / 'Dockerfile'}") as detail:
                    folders = {"": (directory, ignore_patterns(directory) or [])}
                    _build(client, folders, {}, image, detail, arguments)
            except StepFailed as exc:
                if BASE_REPOSITORY in own:
                    raise
                raise BuildError(f"{exc}{_unless_a_server(directory)}") from exc
            if _is_from_base(client, image):
                _refuse_other_entrypoint(client, image, directory)
            else:
                advice = _unless_a_server(directory)
    return _check(image, data, settings, steps, advice)


def dockerfile_of(directory: Path, *, ignore_dockerfile: bool = False) -> str:
    """Return the folder's Dockerfile; if it has none, one that does the same as ours, to be saved there and changed.

    Raises:
        BuildError: there is nothing to build in the folder.
    """
    own = _own_dockerfile(directory, ignored=ignore_dockerfile)
    if own is not None:
        return own
    install = Install.FROM_INDEX if _has_requirements(directory) else Install.NOTHING
    return generated_dockerfile(base_tag(), module=_program(directory).stem, install=install)


def generated_dockerfile(
    base: str, *, module: str = "env", source: str = ".", install: Install = Install.NOTHING
) -> str:
    """Return a Dockerfile for a folder that has none.

    Args:
        base: the image it starts from.
        module: what in the folder has the environments.
        source: where in the context the folder is.
        install: what of the folder's ``requirements.txt``, and how.
    """
    lines = [f"FROM {base}"]
    if install is Install.WHEELS:
        lines += ["COPY wheels/ /opt/wheels/", "RUN pip install --no-index /opt/wheels/*.whl && rm -rf /opt/wheels"]
    lines.append(f"COPY {source} /opt/env/")
    if install is Install.FROM_INDEX:
        lines.append("RUN cd /opt/env && pip install -r requirements.txt")
    lines.append(_COMPILE)
    return "\n".join([*lines, f'CMD ["{module}"]', ""])


def _own_dockerfile(directory: Path, *, ignored: bool) -> str | None:
    """Return the text of the folder's Dockerfile, or None if one is to be generated."""
    if not directory.is_dir():
        raise BuildError(f"{directory} is {'not a directory' if directory.exists() else 'not there'}")
    try:
        if (directory / "Dockerfile").is_file() and not ignored:
            return (directory / "Dockerfile").read_text(encoding="utf-8", errors="replace")
        if any((directory / name).is_file() for name in _PROGRAMS):
            return None
        contents = "is empty" if not any(directory.iterdir()) else "has neither a Dockerfile nor an env.py or server.py"
    except OSError as exc:
        raise BuildError(f"{directory} can't be read: {exc.strerror}") from exc
    raise BuildError(
        f"{directory} {contents}: an environment is an env.py with the class in it, a server.py that serves it, or a Dockerfile"
    )


def _program(directory: Path) -> Path:
    return next(path for name in _PROGRAMS if (path := directory / name).is_file())


def _has_requirements(directory: Path) -> bool:
    file = directory / "requirements.txt"
    if not file.is_file():
        return False
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.strip() and not line.strip().startswith("#") for line in lines)


def _check_tag(image: str) -> None:
    if not _TAG.fullmatch(image):
        raise BuildError(f"{image!r} is no image name: use small letters, digits and . _ -, as in my-env:latest")
    if image.partition(":")[0] == BASE_REPOSITORY:
        raise BuildError(f"{BASE_REPOSITORY} is the name of the base image: choose another one")


def _prepare_base_of(client: docker_client.APIClient, dockerfile: str, steps: Steps) -> None:
    """Make the base image if a Dockerfile speaks of it."""
    if BASE_REPOSITORY not in dockerfile:
        return
    ours = base_tag()
    for match in _FROM_BASE.finditer(dockerfile):
        wanted = match[1] or "latest"
        if wanted not in ("latest", ours.partition(":")[2]) and not inspect_image(
            client, f"{BASE_REPOSITORY}:{wanted}"
        ):
            raise BuildError(
                f"the Dockerfile starts FROM {BASE_REPOSITORY}:{wanted}, which is not here; "
                f"this version of ors-host makes {ours}: change that line"
            )
    ensure_base(client, steps)


def _is_from_base(client: docker_client.APIClient, image: str) -> bool:
    built = inspect_image(client, image)
    return built is not None and LABEL_RUNTIME in (built["Config"].get("Labels") or {})


def _refuse_other_entrypoint(client: docker_client.APIClient, image: str, directory: Path) -> None:
    built, base = inspect_image(client, image), inspect_image(client, base_tag())
    if built is not None and base is not None and built["Config"]["Entrypoint"] != base["Config"]["Entrypoint"]:
        raise BuildError(
            f"{image} was built, but with an ENTRYPOINT of its own, so that the runtime is not started: take it out of "
            f'{directory / "Dockerfile"}, and name the class in CMD, as in CMD ["env:MyEnv"]'
        )


def _unless_a_server(directory: Path) -> str:
    return (
        "\n\nThe Dockerfile is not from the base of ors-host, so the image is to run a server of its own. "
        f"If it is not: {_advice(directory)}"
    )


def _advice(directory: Path) -> str:
    advice = f"start {directory / 'Dockerfile'} with FROM {base_tag()}"
    if any((directory / name).is_file() for name in _PROGRAMS):
        advice += ", or have one generated with --ignore-dockerfile"
    return advice


def _build_generated(client: docker_client.APIClient, directory: Path, image: str, base: str, steps: Steps) -> None:
    patterns = ignore_patterns(directory)
    environment = (directory, list(IGNORED_BY_DEFAULT) if patterns is None else patterns)
    folders = {"env": environment}  # not at the context's top, or the Dockerfile would be copied along

    program = _program(directory)

    def build(folders: Folders, install: Install, detail: Detail) -> None:
        dockerfile = generated_dockerfile(base, module=program.stem, source="env/", install=install)
        _build(client, folders, {"Dockerfile": dockerfile}, image, detail)

    if not _has_requirements(directory):
        with steps.step(f"building {image} from {program}") as detail:
            return build(folders, Install.NOTHING, detail)
    with tempfile.TemporaryDirectory(prefix="ors-host-") as wheel_folder:
        try:
            with steps.step("collecting wheels for requirements.txt"):
                wheels.collect(probe_python(client, base), directory / "requirements.txt", Path(wheel_folder))
            with steps.step(f"building {image} with the wheels collected outside") as detail:
                return build({**folders, "wheels": (Path(wheel_folder), [])}, Install.WHEELS, detail)
        except (wheels.WheelsUnavailable, StepFailed) as exc:
            problem = str(exc)
    steps.say(f"requirements.txt can't be installed from wheels collected outside:\n{problem}")
    try:
        with steps.step(f"building {image}, with pip asking the package index inside the build") as detail:
            build(folders, Install.FROM_INDEX, detail)
    except StepFailed as exc:
        raise BuildError(f"{exc}\n\nNor could it be installed from wheels collected outside:\n{problem}") from exc


def _build(
    client: docker_client.APIClient,
    folders: Folders,
    files: Mapping[str, str],
    image: str,
    detail: Detail,
    buildargs: Mapping[str, str] | None = None,
) -> None:
    try:
        with open_context(folders, files) as context:
            run_build(client, context, tag=image, detail=detail, buildargs=buildargs)
    except OSError as exc:
        raise BuildError(f"the folder could not be sent to the engine: {exc}") from exc


def _check(image: str, data: str | None, settings: Settings | None, steps: Steps, advice: str) -> CheckReport:
    try:
        with steps.step(f"checking that {image} answers"):
            report = event_loop.run(check_image, image, data, settings)
    except StartupError as exc:
        raise BuildError(f"built, but {exc}{_hint(str(exc))}{advice}") from exc
    for found in report.environments:
        steps.say(f"  {found.name}: tools {', '.join(found.tools)}; splits {', '.join(found.splits)}")
        for problem in found.problems:
            steps.say(f"  {found.name}: warning: {problem}")
    return report


def _hint(problem: str) -> str:
    for pattern, advice in _HINTS:
        if match := pattern.search(problem):
            return f"\n\n{advice.format(*match.groups())}"
    return ""
