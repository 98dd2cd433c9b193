"""From ``module:Class`` on the command line to checked environment classes."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Sequence
from types import ModuleType

from . import discovery
from .environment import Environment
from .faults import RequestFault, describe_exception, log_exception
from .tools import tool_methods


class LoadError(Exception):
    """An environment can't be served; the text says which, why, and what was expected."""


def load(specs: Sequence[str]) -> list[type[Environment]]:
    """Return the environment classes that ``specs`` name: ``module:Class``, or ``module`` for all that it defines.

    The classes are checked for everything that would otherwise go wrong at the first request only.

    Raises:
        LoadError: one of them can't be had or can't be served. If the author's code raised, the traceback is in the log.
    """
    if not specs:
        raise LoadError("no environment given; name one or more as module:Class, or module for all that it defines")
    found: list[type[Environment]] = []
    for spec in specs:
        module_name, colon, class_name = spec.partition(":")
        if not module_name or (colon and not class_name):
            raise LoadError(f"{spec!r} names no environment; expected module:Class, or module")
        module = _import(module_name)
        found += [_environment(module, class_name)] if colon else _defined_in(module)
    by_name: dict[str, type[Environment]] = {}
    for env in found:
        other = by_name.setdefault(env.__name__.lower(), env)
        if other is not env:
            raise LoadError(
                f"two environments have the same name but for upper and lower case: {other.__module__}:{other.__name__} "
                f"and {env.__module__}:{env.__name__}"
            )
    environments = list(by_name.values())
    for env in environments:
        _check(env)
    return environments


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise LoadError(f"no module named {exc.name!r}") from exc
        log_exception(exc)
        raise LoadError(f"importing {name!r} failed: {describe_exception(exc)}") from exc
    except BaseException as exc:  # a module that calls sys.exit() as well
        log_exception(exc)
        raise LoadError(f"importing {name!r} failed: {describe_exception(exc)}") from exc


def _environment(module: ModuleType, class_name: str) -> type[Environment]:
    env = getattr(module, class_name, None)
    if env is None:
        names = ", ".join(env.__name__ for env in _subclasses_in(module)) or "none"
        raise LoadError(f"module {module.__name__!r} has no {class_name!r}; environments in it: {names}")
    if not (isinstance(env, type) and issubclass(env, Environment)):
        raise LoadError(f"{module.__name__}:{class_name} is not a subclass of sandbox_runtime.Environment")
    return env


def _defined_in(module: ModuleType) -> list[type[Environment]]:
    found = [env for env in _subclasses_in(module) if not inspect.isabstract(env)]
    if found:
        return found
    abstract = "; ".join(_missing_methods(env) for env in _subclasses_in(module))
    raise LoadError(f"module {module.__name__!r} defines no environment" + (f" ({abstract})" if abstract else ""))


def _subclasses_in(module: ModuleType) -> list[type[Environment]]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Environment) and value.__module__ == module.__name__
    ]


def _missing_methods(env: type[Environment]) -> str:
    return f"{env.__name__} does not define {', '.join(sorted(env.__abstractmethods__))}"


def _check(env: type[Environment]) -> None:
    where = f"{env.__module__}:{env.__name__}"
    if inspect.isabstract(env):
        raise LoadError(f"{where} is not complete: {_missing_methods(env)}")
    try:
        methods = tool_methods(env)
    except (TypeError, ValueError) as exc:
        raise LoadError(f"{where}: {exc}") from exc
    if not methods:
        raise LoadError(f"{where} has no tools: decorate at least one method with @tool")
    try:
        splits = asyncio.run(discovery.list_splits(env))
    except RequestFault as exc:
        raise LoadError(f"{where}: list_splits failed: {exc}") from exc
    if not splits:
        raise LoadError(f"{where} has no splits: list_splits returned an empty list")
