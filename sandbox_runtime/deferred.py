"""Modules whose content is loaded when something in it is first needed, and not when they are imported.

asyncio imports TLS, and pydantic all that reads the metadata of installed packages: an eighth of the runtime's start and some
megabytes of each session, for what most environments never use. Whoever imports one of these gets the module all the same; the
first look for a name in it loads it, in place, once, whichever thread it is in.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_METADATA = "importlib.metadata"
_DEFERRED = ("ssl", "asyncio.sslproto", "secrets", _METADATA)

_PLUGINS = "pydantic"
"""The entry points that pydantic looks for when it makes its first validator."""

_one_at_a_time = threading.RLock()


def defer_modules() -> None:
    """Defer what an environment may never need. What is imported already stays as it is."""
    sys.meta_path.insert(0, _Finder())


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _DEFERRED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Later(spec.loader)  # type: ignore[assignment]  # which asks for no base class
        return spec


class _Later:
    """A loader that leaves a module empty until it is looked into."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._is_loading = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        def look(name: str) -> Any:
            self._load(module)
            try:
                return vars(module)[name]
            except KeyError:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}") from None

        module.__getattr__ = look  # type: ignore[method-assign]
        if module.__name__ == _METADATA:
            module.entry_points = _entry_points  # type: ignore[attr-defined]

    def _load(self, module: ModuleType) -> None:
        with _one_at_a_time:
            if self._is_loading or module.__loader__ is not self:  # by this very thread, or by another until now
                return
            self._is_loading = True
            try:
                self._loader.exec_module(module)
            finally:
                self._is_loading = False
            vars(module).pop("__getattr__", None)
            module.__loader__ = self._loader
            if module.__spec__ is not None:
                module.__spec__.loader = self._loader


def _entry_points(**params: Any) -> Any:
    """``importlib.metadata.entry_points``, which answers one question without the module: there are no plugins."""
    if params == {"group": _PLUGINS} and not _may_have_plugins():
        return ()
    metadata = sys.modules[_METADATA]
    vars(metadata).get("__getattr__", lambda _: None)("EntryPoints")
    return metadata.entry_points(**params)


def _may_have_plugins() -> bool:
    """Look through what is installed, as cheaply as can be; what is no directory may have them."""
    for entry in sys.path:
        try:
            names = os.listdir(entry or ".")
        except FileNotFoundError:
            continue
        except OSError:
            return True
        for name in names:
            if not name.endswith((".dist-info", ".egg-info", ".egg")):
                continue
            try:
                with open(os.path.join(entry, name, "entry_points.txt"), "rb") as file:
                    if f"[{_PLUGINS}]".encode() in file.read():
                        return True
            except FileNotFoundError:
                continue
            except OSError:
                return True
    return False
