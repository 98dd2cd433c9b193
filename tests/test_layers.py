"""Imports point one way: down the map in ``host``'s docstring; and what runs in containers depends on next to nothing."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import host
import host.cluster

ROOT = Path(__file__).parents[1]
COMMANDS = {f"commands.{path.stem}": path for path in (ROOT / "host" / "commands").glob("*.py")}
CLUSTER = {f"cluster.{path.stem}": path for path in (ROOT / "host" / "cluster").glob("*.py")}
HOST = {path.stem: path for path in (ROOT / "host").glob("*.py")} | COMMANDS | CLUSTER
RUNTIME = sorted((ROOT / "sandbox_runtime").rglob("*.py"))

RUNTIME_NEEDS = {"pydantic", "pydantic_core"}
SHARED = {"sandbox_runtime.bodies", "sandbox_runtime.frames", "sandbox_runtime.messages"}
"""The vocabulary that both sides speak: all that the host may import of the runtime."""


def layers(package: ModuleType = host) -> list[str]:
    """Return the modules on a package's map, top to bottom."""
    assert package.__doc__ is not None
    names = re.findall(r"^    ((?:\w+, )*\w+)(?:  .*)?$", package.__doc__, re.MULTILINE)
    return [name for line in names for name in line.split(", ")]


def imports(path: Path) -> Iterator[str]:
    """Yield every module that a file imports, inside functions too. ``from package import module`` is the module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).rstrip(".")
            for alias in node.names:
                submodule = ROOT.joinpath(*module.split("."), f"{alias.name}.py")
                yield f"{module}.{alias.name}" if submodule.exists() else module


def host_imports(path: Path) -> set[str]:
    """Return the modules of ``host`` that a file imports, without the package itself (its version)."""
    return {name.removeprefix("host.").partition(".")[0] for name in imports(path) if name.startswith("host.")}


def cluster_imports(path: Path) -> set[str]:
    """Return the modules of ``host.cluster`` that a file imports."""
    prefix = "host.cluster."
    return {name.removeprefix(prefix).partition(".")[0] for name in imports(path) if name.startswith(prefix)}


def test_the_clusters_map_is_complete() -> None:
    names = layers(host.cluster)
    assert len(names) == len(set(names))
    assert {f"cluster.{name}" for name in names} == CLUSTER.keys() - {"cluster.__init__"}


@pytest.mark.parametrize("module", sorted(CLUSTER.keys() - {"cluster.__init__"}))
def test_the_clusters_imports_point_down(module: str) -> None:
    order = layers(host.cluster)
    assert cluster_imports(CLUSTER[module]) <= set(order[order.index(module.removeprefix("cluster.")) + 1 :])


def test_the_map_is_complete() -> None:
    names = layers()
    assert len(names) == len(set(names))
    assert set(names) == {module.partition(".")[0] for module in HOST} - {"__init__", "__main__"}


@pytest.mark.parametrize("module", sorted(HOST))
def test_host_imports_point_down(module: str) -> None:
    order = ["__main__", *layers()]
    below = set() if module == "__init__" else set(order[order.index(module.partition(".")[0]) + 1 :])
    own = {"cluster"} if module in CLUSTER else set()  # no command imports another
    assert host_imports(HOST[module]) <= below | own


@pytest.mark.parametrize("module", sorted(HOST))
def test_host_shares_only_the_vocabulary_with_the_runtime(module: str) -> None:
    assert {name for name in imports(HOST[module]) if name.partition(".")[0] == "sandbox_runtime"} <= SHARED


def test_one_module_imports_docker() -> None:
    importers = [module for module, path in HOST.items() if any(re.match(r"docker\b", name) for name in imports(path))]
    assert importers == ["docker_client"]


def test_one_module_imports_ray() -> None:
    importers = [module for module, path in HOST.items() if any(re.match(r"ray\b", name) for name in imports(path))]
    assert importers == ["cluster.ray_cluster"]


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: path.stem)
def test_the_runtime_depends_on_next_to_nothing(path: Path) -> None:
    packages = {name.partition(".")[0] for name in imports(path)}
    assert packages - {"sandbox_runtime"} - RUNTIME_NEEDS <= sys.stdlib_module_names


def test_what_both_sides_share_is_pure() -> None:
    for module in SHARED:
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        packages = {name.partition(".")[0] for name in imports(path)}
        assert packages.isdisjoint({"asyncio", "socket", "os", "io", "subprocess", "threading"}), module
