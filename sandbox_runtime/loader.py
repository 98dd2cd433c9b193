"""From what an image's ``CMD`` names to checked environment classes."""

from __future__ import annotations

import asyncio
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from . import discovery
from .dialects import DISTRIBUTIONS, is_environment, serve
from .faults import RequestFault, describe_exception, log_exception
from .scripts import Loaded, load_module, run_as_main
from .served import ServedClass

T = TypeVar("T")


class LoadError(Exception):
    """An environment can't be served; the text says which, why, and what was expected."""


def load(specs: Sequence[str]) -> list[type]:
    """Return the environment classes that ``specs`` name: ``module:Class``, or ``module`` for all that it serves or defines.

    The classes are checked for everything that would otherwise go wrong at the first request only.

    Raises:
        LoadError: one of them can't be had or can't be served. If the author's code raised, the traceback is in the log.
    """
    if not specs:
        raise LoadError("no environment given; name one or more as module:Class, or module for all that it defines")
    found: list[type] = []
    for spec in specs:
        module_name, colon, class_name = spec.partition(":")
        module_name = _module_name(module_name)
        if not module_name or (colon and not class_name):
            raise LoadError(f"{spec!r} names no environment; expected module:Class, or module")
        found += [_named(module_name, class_name)] if colon else _all_of(module_name)
    by_name: dict[str, type] = {}
    for env in found:
        name = _served(env).name.lower()
        other = by_name.setdefault(name, env)
        if other is not env:
            raise LoadError(
                f"two environments have the same name but for upper and lower case: {_where(other)} and {_where(env)}"
                f"{_in_file(env)}"
            )
    environments = list(by_name.values())
    for env in environments:
        asyncio.run(_check(_served(env)))
    return environments


def _module_name(spec: str) -> str:
    """Return the module of ``server.py`` too: files are how authors think of them."""
    if spec.startswith("/"):
        raise LoadError(f"{spec!r} names no environment{_command_hint(spec)}")
    return spec.removesuffix(".py").replace("/", ".") if spec.endswith(".py") else spec


def _named(module_name: str, class_name: str) -> type:
    module = _load(module_name, may_serve=False).module
    env = getattr(module, class_name, None)
    if env is None:
        names = ", ".join(env.__name__ for env in _defined_in(module)) or "none"
        raise LoadError(f"module {module_name!r} has no {class_name!r}; environments in it: {names}{_in_file(module)}")
    if not is_environment(env):
        raise LoadError(
            f"{module_name}:{class_name} is no environment: it is not a subclass of Environment, "
            f"of sandbox_runtime, ors or openreward{_in_file(module)}"
        )
    return env  # type: ignore[no-any-return]


def _all_of(module_name: str) -> list[type]:
    loaded = _load(module_name, may_serve=True)
    if loaded.served is not None:
        return loaded.served
    defined = _defined_in(loaded.module)
    if found := [env for env in defined if not inspect.isabstract(env)]:
        return found
    if not defined and loaded.module.__name__ == module_name:
        program = _guarded(module_name, lambda: run_as_main(module_name))
        if program is not None and program.served is not None:
            return program.served
    abstract = "; ".join(_missing_methods(env) for env in defined)
    raise LoadError(
        f"module {module_name!r} defines no environment"
        + (f" ({abstract})" if abstract else " and starts no server with one")
        + _in_file(loaded.module)
    )


def _load(name: str, *, may_serve: bool) -> Loaded:
    return _guarded(name, lambda: load_module(name, may_serve=may_serve))


def _guarded(name: str, load_it: Callable[[], T]) -> T:
    """Run the author's module; what it raises, a module that calls ``sys.exit`` included, is a ``LoadError``."""
    try:
        return load_it()
    except BaseException as exc:
        missing = (exc.name or "") if isinstance(exc, ModuleNotFoundError) else ""
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise LoadError(f"no module named {missing!r}{_command_hint(name)}") from exc
        log_exception(exc)
        hint = ""
        if (sdk := missing.partition(".")[0]) in DISTRIBUTIONS:
            hint = f"; it is written for an SDK that the image lacks: add {DISTRIBUTIONS[sdk]} to its requirements.txt"
        raise LoadError(f"importing {name!r} failed: {describe_exception(exc)}{_line_of(exc)}{hint}") from exc


def _command_hint(name: str) -> str:
    if name.startswith(("python", "/")):
        return '; CMD names the environments, not a command: ["server"] for a server.py'
    return ""


def _line_of(exc: BaseException) -> str:
    """Return the last place in the author's own files that the exception came through."""
    for frame in reversed(traceback.extract_tb(exc.__traceback__)):
        if Path(frame.filename).is_file() and "site-packages" not in frame.filename and not _is_ours(frame.filename):
            return f" ({frame.filename}, line {frame.lineno})"
    return ""


def _is_ours(file: str) -> bool:
    return Path(file).parent == Path(__file__).parent or file.startswith(sys.base_prefix)


def _defined_in(module: ModuleType) -> list[type]:
    return [value for value in vars(module).values() if is_environment(value) and value.__module__ == module.__name__]


def _missing_methods(env: type) -> str:
    return f"{env.__name__} does not define {', '.join(sorted(getattr(env, '__abstractmethods__', ())))}"


def _served(env: type) -> ServedClass:
    try:
        return serve(env)
    except Exception as exc:  # its name is asked of it
        raise LoadError(f"{_where(env)} can't be served: {describe_exception(exc)}{_in_file(env)}") from exc


async def _check(env: ServedClass) -> None:
    where, file = _where(env.cls), _in_file(env.cls)
    if inspect.isabstract(env.cls):
        raise LoadError(f"{where} is not complete: {_missing_methods(env.cls)}{file}")
    try:
        await env.check()
    except (TypeError, ValueError) as exc:
        raise LoadError(f"{where}: {exc}{file}") from exc
    except RequestFault as exc:
        raise LoadError(f"{where}: its tools can't be listed: {exc}{file}") from exc
    try:
        splits = await discovery.list_splits(env)
    except RequestFault as exc:
        raise LoadError(f"{where}: list_splits failed: {exc}{file}") from exc
    if not splits:
        raise LoadError(f"{where} has no splits: list_splits returned an empty list{file}")


def _where(env: type) -> str:
    module = env.__module__
    if module == "__main__":  # what the author calls it
        module = Path(getattr(sys.modules[module], "__file__", None) or module).stem
    return f"{module}:{env.__qualname__}"


def _in_file(defined: type | ModuleType) -> str:
    try:
        file = inspect.getsourcefile(defined)
    except (TypeError, OSError):
        file = None
    return f" (in {file})" if file else ""
