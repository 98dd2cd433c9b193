"""The images of the benchmark's environment, in both spellings."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from host.build import build_environment
from host.progress import Steps

ENVIRONMENTS = Path(__file__).parent / "environments"
SDK_FOLDER = ENVIRONMENTS / "sdk"
SDK_IMAGE = "ors-host-bench:sdk"
NATIVE_IMAGE = "ors-host-bench:native"
_FOLDERS = {SDK_IMAGE: SDK_FOLDER, NATIVE_IMAGE: ENVIRONMENTS / "native"}


def build(names: Collection[str], steps: Steps) -> None:
    """Build the images of these names.

    Raises:
        host.build.BuildError: one can't be built, or doesn't answer.
    """
    for name in sorted(names):
        build_environment(_FOLDERS[name], name, steps=steps)
