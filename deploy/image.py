"""The image of the host itself, built where neither a registry nor a package index can be reached from a build: ``make image``.

It is what ``docker build -f deploy/Dockerfile .`` makes, from what this machine can start from, with wheels collected outside.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from host import docker_client, wheels
from host.base_image import probe_python, starting_image
from host.build_context import ignore_patterns, open_context
from host.image_builder import BuildError, run_build
from host.progress import Steps

ROOT = Path(__file__).parent.parent
TAG = "ors-host:latest"


def build(client: docker_client.APIClient, steps: Steps, tag: str = TAG) -> None:
    """Build the image.

    Raises:
        BuildError: it could not be made.
    """
    base = starting_image(client, steps)
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    folders = {"": (ROOT, ignore_patterns(ROOT) or [])}
    with tempfile.TemporaryDirectory(prefix="ors-host-") as folder:
        dist, needed = Path(folder, "dist"), Path(folder, "wheels")
        with steps.step(f"{tag}: collecting wheels"):
            try:
                _collect(client, base, dist, needed)
                folders |= {"deploy/dist": (dist, []), "deploy/wheels": (needed, [])}
            except wheels.WheelsUnavailable as exc:
                steps.say(f"{tag}: the build itself will ask the package index, as here {exc}")
        with (
            steps.step(f"{tag}: building from {base}") as detail,
            open_context(folders, {"Dockerfile": dockerfile}) as context,
        ):
            run_build(client, context, tag=tag, detail=detail, buildargs={"BASE": base})


def _collect(client: docker_client.APIClient, base: str, dist: Path, needed: Path) -> None:
    """Put this checkout's wheel into one folder, and those that it requires into another."""
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={dist}", str(ROOT)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        raise BuildError(f"no wheel of ors-host could be made:\n{made.stderr.strip()}")
    (wheel,) = dist.glob("ors_host-*.whl")
    requirements = dist.parent / "requirements.txt"
    requirements.write_text(f"{wheel}\n")
    needed.mkdir()
    wheels.collect(probe_python(client, base), requirements, needed)
    (needed / wheel.name).unlink()


def main() -> None:
    """Build the image, or say why not."""
    try:
        with docker_client.connect() as client:
            build(client, Steps())
    except (docker_client.EngineUnavailable, BuildError) as exc:
        sys.exit(f"image: {exc}")
    print(f"image: {TAG}")


if __name__ == "__main__":
    main()
