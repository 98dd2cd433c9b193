"""Loading an author's module; of a file that ends in ``Server([A, B]).run()`` the classes are had, the server isn't started.

1. A module is imported. A file whose text makes a ``Server`` of one of the SDKs, or that defines nothing but has an
   ``if __name__ == "__main__"``, is run as ``python FILE`` runs it: as the module ``__main__``, without arguments.
2. Meanwhile the SDKs' servers only note what they are given. Where one would start to serve the file is left; what stands
   after that would have run when the server ended.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import ast

_SDKS = ("ors", "openreward")


class Loaded(NamedTuple):
    """A module after it ran. ``served`` are the classes that it gave to a server, None if it made none."""

    module: ModuleType
    served: list[type] | None


class _ServerStarts(BaseException):
    """Raised where a server would begin to serve. No ``except Exception`` of an author's holds it up."""


def load_module(name: str, *, may_serve: bool) -> Loaded:
    """Import a module, or run it as a program if it is one and ``may_serve``.

    Raises:
        ModuleNotFoundError: there is none of that name (``exc.name`` is a part of it), or one that it needs is missing.
        BaseException: what its code raises.
    """
    if not may_serve and name in sys.modules:
        return Loaded(sys.modules[name], None)
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name!r}", name=name)
    source = _source(spec)
    with _servers_noted() as servers:
        if may_serve and _makes_server(source):
            module = _run_as_main(spec)
        else:
            module = sys.modules[name] if name in sys.modules else _import(spec)
    return Loaded(module, servers.served)


def run_as_main(name: str) -> Loaded | None:
    """Run a module that was imported once more, as a program; None if it isn't written to be one.

    Raises:
        BaseException: what its code raises.
    """
    spec = importlib.util.find_spec(name)
    assert spec is not None
    if not _has_main_guard(_source(spec)):
        return None
    with _servers_noted() as servers:
        module = _run_as_main(spec)
    return Loaded(module, servers.served)


def _import(spec: ModuleSpec) -> ModuleType:
    """Do what ``import`` does, but keep a module that was left where its server would have started."""
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        assert spec.loader is not None
        spec.loader.exec_module(module)
    except _ServerStarts:
        pass
    except BaseException:
        del sys.modules[spec.name]
        raise
    if spec.parent and spec.parent != spec.name:
        setattr(sys.modules[spec.parent], spec.name.rpartition(".")[2], module)
    return module


def _run_as_main(spec: ModuleSpec) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = spec.origin
    module.__package__ = spec.parent or None
    # It stays there: pickle, annotations and child processes look the author's classes up under this name.
    sys.modules["__main__"] = module
    sys.argv = [str(spec.origin)]
    with contextlib.suppress(_ServerStarts):
        exec(spec.loader.get_code(spec.name), vars(module))  # type: ignore[union-attr]
    return module


def _source(spec: ModuleSpec) -> str:
    get_source: Callable[[str], str | None] | None = getattr(spec.loader, "get_source", None)
    return (get_source(spec.name) if get_source is not None else None) or ""


def _makes_server(source: str) -> bool:
    if "Server" not in source or not any(sdk in source for sdk in _SDKS):
        return False  # most of all: to parse a file takes longer than to import it
    import ast

    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:  # importing it says so
        return False
    imported = {
        name.partition(".")[0]
        for node in nodes
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    }
    called = {_last_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    return "Server" in called and not imported.isdisjoint(_SDKS)


def _has_main_guard(source: str) -> bool:
    import ast

    return any(
        isinstance(node, ast.If)
        and any(isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test))
        for node in ast.parse(source).body
    )


def _last_name(node: ast.expr) -> str:
    """Return ``c`` for ``a.b.c``; nothing for what is no name."""
    return str(getattr(node, "id", None) or getattr(node, "attr", ""))


class _Servers:
    """The servers that were made, and how the modules they come from are changed and changed back."""

    def __init__(self) -> None:
        self._made: list[tuple[Any, list[type]]] = []
        self._started: list[type] | None = None
        self._replaced: list[tuple[Any, str, Any]] = []
        self._changes = {
            "ors.server": self._change_sdk,
            "openreward.environments.server": self._change_sdk,
            "uvicorn.server": self._change_uvicorn,  # for those who start the SDK's application by themselves
        }

    @property
    def served(self) -> list[type] | None:
        """The classes of the server that was started, else of the last one made."""
        return self._started or (self._made[-1][1] if self._made else None)

    def change(self, name: str, module: ModuleType) -> None:
        """Change a module that has just been imported, if it is one that serves."""
        if name in self._changes:
            self._changes[name](module)

    def change_back(self) -> None:
        """Undo all changes."""
        for owner, attribute, original in reversed(self._replaced):
            setattr(owner, attribute, original)

    @property
    def modules(self) -> Sequence[str]:
        """The names of the modules that are changed."""
        return tuple(self._changes)

    def _change_sdk(self, module: ModuleType) -> None:
        server = module.Server
        make = server.__init__

        def note(this: Any, *args: Any, **kwargs: Any) -> None:
            make(this, *args, **kwargs)  # refuses what can't be served
            given = kwargs["environments"] if "environments" in kwargs else args[0]
            self._made.append((this, [env if isinstance(env, type) else type(env) for env in given]))

        def start(this: Any, *args: Any, **kwargs: Any) -> None:
            self._started = next(environments for made, environments in self._made if made is this)
            raise _ServerStarts

        self._replace(server, "__init__", note)
        self._replace(server, "run", start)

    def _change_uvicorn(self, module: ModuleType) -> None:
        def run(this: Any, *args: Any, **kwargs: Any) -> None:
            raise _ServerStarts

        async def serve(this: Any, *args: Any, **kwargs: Any) -> None:
            raise _ServerStarts

        self._replace(module.Server, "run", run)
        self._replace(module.Server, "serve", serve)

    def _replace(self, owner: Any, attribute: str, value: Any) -> None:
        self._replaced.append((owner, attribute, getattr(owner, attribute)))
        setattr(owner, attribute, value)


class _Finder:
    """Finds the modules that serve as ever, and changes them once they have been imported."""

    def __init__(self, servers: _Servers) -> None:
        self._servers = servers

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._servers.modules:
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            self._servers.change(fullname, module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


@contextmanager
def _servers_noted() -> Iterator[_Servers]:
    """Have servers note what they are given, in modules imported already and in those that will be in the block."""
    servers = _Servers()
    finder = _Finder(servers)
    sys.meta_path.insert(0, finder)
    for name in servers.modules:
        if (module := sys.modules.get(name)) is not None:
            servers.change(name, module)
    try:
        yield servers
    finally:
        sys.meta_path.remove(finder)
        servers.change_back()
