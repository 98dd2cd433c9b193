"""The image that environment images are built from: made when it is missing, or when what it is made of has changed.

It starts from the first of these that can be had, and says which: the image that ``images/Dockerfile`` names, if the engine has
it; the same, pulled; a root filesystem made here from Debian's packages (``images/rootfs.sh``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from host import __version__, docker_client, wheels
from host.build_context import open_context
from host.image_builder import BuildError, explain, run_build
from host.progress import Detail, Steps

REPOSITORY = "ors-host-base"
ROOTFS_REPOSITORY = "ors-host-rootfs"
LABEL_INPUTS = "ors-host.inputs"
"""On images made here: a digest of what they were made of."""

_STAGING = "ors-host.stage=staging"
_PULL_PROBE_TIMEOUT_S = 20
_PROBE = (
    "import json, os, platform, sys; print(json.dumps([sys.version_info[:2], platform.machine(), platform.libc_ver()]))"
)


def tag() -> str:
    """Return the base image's name for this version; ``ors-host-base:latest`` is the same image."""
    return f"{REPOSITORY}:{__version__}"


def images_dir() -> Path:
    """Return the folder of the Dockerfile and its scripts: part of an installed host, beside it in a checkout."""
    installed = Path(__file__).parent / "_images"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "images"


def inputs_digest() -> str:
    """Return a digest of all that the base image is made of, apart from what it starts from."""
    digest = hashlib.sha256()
    parts = {"Dockerfile": (images_dir() / "Dockerfile").read_bytes(), **wheels.runtime_sources()}
    parts["requirements"] = "\n".join([*wheels.runtime_requirements(), *wheels.runtime_pins(), __version__]).encode()
    for name, content in parts.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def ensure_base(client: docker_client.APIClient, steps: Steps) -> str:
    """Make the base image if there is none, or not of these inputs, and return its name.

    Raises:
        BuildError: it could not be made.
    """
    inputs = inputs_digest()
    old = inspect_image(client, tag())
    if old is not None and _label(old, LABEL_INPUTS) == inputs:
        return tag()
    start = starting_image(client, steps)
    dockerfile = (images_dir() / "Dockerfile").read_text()
    with tempfile.TemporaryDirectory(prefix="ors-host-") as folder:
        index_option = "--no-index"
        with steps.step("base image: collecting wheels"):
            try:
                _collect_wheels(probe_python(client, start), Path(folder))
            except wheels.WheelsUnavailable as exc:
                index_option = ""
                steps.say(f"base image: the build itself will ask the package index, as here {exc}")
        with (
            steps.step(f"base image: building {tag()} from {start}") as detail,
            open_context({"wheels": (Path(folder), [])}, {"Dockerfile": dockerfile}) as context,
        ):
            arguments = {"BASE": start, "INDEX_OPTION": index_option, "RUNTIME_VERSION": __version__}
            run_build(client, context, tag=tag(), detail=detail, buildargs=arguments, labels={LABEL_INPUTS: inputs})
    client.tag(tag(), REPOSITORY, "latest", force=True)
    _remove_leftovers(client, old)
    return tag()


def probe_python(client: docker_client.APIClient, image: str) -> wheels.Target:
    """Return what an image's ``python`` is, by running it.

    Raises:
        BuildError: it has none that runs.
    """
    try:
        container = client.create_container(
            image,
            entrypoint=["python", "-c", _PROBE],
            command=[],
            network_disabled=True,
            labels={"ors-host.role": "probe"},
        )["Id"]
        try:
            client.start(container)
            client.wait(container, timeout=60)
            output = client.logs(container).decode(errors="replace")
        finally:
            client.remove_container(container, force=True)
        version, machine, (libc, libc_version) = json.loads(output)
        glibc_minor = int(libc_version.split(".")[1]) if libc == "glibc" else None
        return wheels.Target((version[0], version[1]), machine, glibc_minor)
    except docker_client.ERRORS as exc:
        raise BuildError(f"the image {image} has no python that runs: {explain(exc)}") from exc
    except ValueError as exc:
        raise BuildError(f"the image {image} has no python that runs: {output.strip()[-500:]}") from exc


def inspect_image(client: docker_client.APIClient, name: str) -> dict[str, Any] | None:
    """Return what the engine knows of an image, or None if it has none of that name.

    Raises:
        BuildError: the engine failed.
    """
    try:
        return dict(client.inspect_image(name))  # type: ignore[no-untyped-call]
    except docker_client.NotFound:
        return None
    except docker_client.ERRORS as exc:
        raise BuildError(explain(exc)) from exc


def starting_image(client: docker_client.APIClient, steps: Steps, wanted: str | None = None) -> str:
    """Return the first of these that can be had: the image that is wanted (if none is, the one that ``images/Dockerfile``
    names), if the engine has it; the same, pulled; a root filesystem of Debian's packages, which does for any slim Debian.

    Raises:
        BuildError: none of them.
    """
    wanted = wanted or _default_start()
    if inspect_image(client, wanted) is not None:
        steps.say(f"base image: starting from {wanted}, which is here")
        return wanted
    with steps.step(f"base image: asking the registry for {wanted}") as detail:
        problem = _pull(client, wanted, detail)
    if problem is None:
        return wanted
    steps.say(f"base image: {wanted} can't be pulled ({problem}); taking a root filesystem of Debian packages instead")
    return _ensure_rootfs(client, steps)


def _default_start() -> str:
    found = re.search(r"^ARG BASE=(\S+)", (images_dir() / "Dockerfile").read_text(), re.MULTILINE)
    if found is None:
        raise BuildError(f"{images_dir() / 'Dockerfile'} names no BASE")
    return found[1]


def _pull(client: docker_client.APIClient, image: str, detail: Detail) -> str | None:
    """Pull an image; return None, or why it can't be had."""
    try:
        # A pull knows no time limit. This question does, and only a registry that answers it is asked for more.
        with (
            docker_client.connect(timeout_s=_PULL_PROBE_TIMEOUT_S) as probe,
            contextlib.suppress(docker_client.NotFound),  # engines that are not Docker's don't know the question
        ):
            probe.inspect_distribution(image)  # type: ignore[no-untyped-call]
        for event in client.pull(image, stream=True, decode=True):
            if "error" in event:
                return str(event["error"])
            if event.get("status") == "Pull complete":
                detail(f"layer {event.get('id')} complete")
    except docker_client.ERRORS as exc:
        return docker_client.explain(exc)
    return None


def _ensure_rootfs(client: docker_client.APIClient, steps: Steps) -> str:
    script = images_dir() / "rootfs.sh"
    inputs = hashlib.sha256(script.read_bytes()).hexdigest()
    name = f"{ROOTFS_REPOSITORY}:{_codename()}"
    old = inspect_image(client, name)
    if old is not None and _label(old, LABEL_INPUTS) == inputs:
        return name
    with (
        tempfile.TemporaryDirectory(prefix="ors-host-") as folder,
        steps.step(f"base image: making {name} (a minute or so)") as detail,
    ):
        archive = Path(folder) / "rootfs.tar"
        _run_script(["bash", str(script), str(archive)], detail)
        detail("importing it")
        repository, _, release = name.partition(":")
        changes = ['CMD ["bash"]', f"LABEL {LABEL_INPUTS}={inputs}"]
        try:
            client.import_image_from_file(str(archive), repository=repository, tag=release, changes=changes)
        except docker_client.ERRORS as exc:
            raise BuildError(explain(exc)) from exc
    return name


def _run_script(command: list[str], detail: Detail) -> None:
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip())
            if line.startswith("I: "):
                detail(line[3:].strip())
    if process.returncode:
        raise BuildError("no root filesystem could be made:\n" + "\n".join(f"  {line}" for line in lines[-10:]))


def _codename() -> str:
    try:
        release = Path("/etc/os-release").read_text()
    except FileNotFoundError:
        release = ""
    found = re.search(r'^VERSION_CODENAME="?([\w.-]+)"?', release, re.MULTILINE)
    return found[1] if found else "local"


def _collect_wheels(target: wheels.Target, folder: Path) -> None:
    """Fill a folder with the runtime's wheel, the list to install, and (if they can be had) the wheels on it."""
    runtime = wheels.write_runtime_wheel(__version__, folder)
    pins = folder / "requirements.txt"
    pins.write_text("\n".join([*wheels.runtime_pins(), ""]))
    try:
        wheels.collect(target, pins, folder)
    finally:
        pins.write_text("\n".join([*wheels.runtime_pins(), f"/wheels/{runtime.name}", ""]))


def _remove_leftovers(client: docker_client.APIClient, old: dict[str, Any] | None) -> None:
    """Remove the build's first stage, and the base that was replaced unless images or containers still stand on it."""
    with contextlib.suppress(*docker_client.ERRORS):
        client.prune_images(filters={"dangling": True, "label": _STAGING})  # type: ignore[no-untyped-call]
    if old is not None:
        with contextlib.suppress(*docker_client.ERRORS):
            client.remove_image(old["Id"])


def _label(image: dict[str, Any], label: str) -> str | None:
    return (image["Config"].get("Labels") or {}).get(label)


def main() -> None:
    """Make the base image if need be: ``python -m host.base_image``."""
    try:
        with docker_client.connect() as client:
            print(f"base image: {ensure_base(client, Steps())}")
    except (docker_client.EngineUnavailable, BuildError) as exc:
        sys.exit(f"base image: {exc}")


if __name__ == "__main__":
    main()
