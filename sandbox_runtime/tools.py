"""Tools: the ``tool`` decorator, ``Toolset``, and what a class's decorated methods say about themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, get_type_hints, overload

from pydantic import BaseModel

from .messages import ToolOutput, ToolSpec

_MARK = "_ors_tool"

F = TypeVar("F", bound=Callable[..., Any])


class ToolOptions(NamedTuple):
    """What ``@tool(…)`` was given; see ``tool``."""

    shared: bool = True
    concurrent: bool = False
    exclusive: bool = False


@overload
def tool(fn: F, /) -> F: ...
@overload
def tool(*, shared: bool = True, concurrent: bool = False, exclusive: bool = False) -> Callable[[F], F]: ...
def tool(
    fn: Callable[..., Any] | None = None, /, *, shared: bool = True, concurrent: bool = False, exclusive: bool = False
) -> Any:
    """Declare a method of an ``Environment`` or ``Toolset`` as a tool: ``@tool``, or ``@tool(…)`` with options.

    The method takes ``self`` and at most one pydantic model, is annotated to return ``ToolOutput``, and may be async. Its
    docstring is the tool's description.

    Args:
        shared: False leaves the tool out of the environment's tool list; only a session's own list has it.
        concurrent: calls of this tool may overlap. Otherwise they run one at a time (different tools still overlap).
        exclusive: a call waits for every call in flight and holds back new ones until it returns: for a tool that grades.

    Raises:
        ValueError: ``concurrent`` and ``exclusive`` are both asked for.
    """
    if concurrent and exclusive:
        raise ValueError("a tool can't be both concurrent and exclusive")
    options = ToolOptions(shared=shared, concurrent=concurrent, exclusive=exclusive)

    def mark(f: Any) -> Any:
        setattr(f, _MARK, options)
        return f

    return mark if fn is None else mark(fn)


class Toolset:
    """A collection of tools that environments reuse by naming it in their ``toolsets``; ``self.env`` is the environment."""

    def __init__(self, env: Any) -> None:
        self.env = env


class ToolMethod(NamedTuple):
    """One tool of a class: its name, its parameter's model (None for a tool without one) and what clients are told."""

    name: str
    owner: type
    options: ToolOptions
    model: type[BaseModel] | None
    spec: ToolSpec


def tool_methods(cls: type) -> dict[str, ToolMethod]:
    """Return the tools that ``cls`` and the toolsets it names define, by name; the class's own first, each in name order.

    Raises:
        TypeError: a decorated method has a signature that no tool can have.
        ValueError: two of them share a name.
    """
    found = {method.name: method for method in _own_tool_methods(cls)}
    for toolset in getattr(cls, "toolsets", ()):
        if not isinstance(toolset, type):
            raise TypeError(f"{cls.__name__}.toolsets must list classes; {toolset!r} is not one")
        for method in _own_tool_methods(toolset):
            if (other := found.get(method.name)) is not None:
                raise ValueError(
                    f"tool name collision: {method.name!r} is defined in both {other.owner.__name__} and "
                    f"{toolset.__name__}; rename one of them"
                )
            found[method.name] = method
    return found


def _own_tool_methods(cls: type) -> list[ToolMethod]:
    methods = []
    for name in dir(cls):
        attribute = inspect.getattr_static(cls, name)
        inner = getattr(attribute, "__func__", getattr(attribute, "fget", attribute))
        options = getattr(attribute, _MARK, None) or getattr(inner, _MARK, None)
        if not isinstance(options, ToolOptions):
            continue
        if not inspect.isfunction(attribute):
            raise _wrong(cls, name, f"it is a {type(attribute).__name__}, not a plain method")
        model = _parameter_model(cls, name, attribute)
        spec = ToolSpec(
            name=name,
            description=inspect.cleandoc(attribute.__doc__ or ""),
            input_schema=None if model is None else _schema(cls, name, model),
        )
        methods.append(ToolMethod(name=name, owner=cls, options=options, model=model, spec=spec))
    return methods


def _parameter_model(cls: type, name: str, method: Callable[..., Any]) -> type[BaseModel] | None:
    real = inspect.unwrap(method)
    if inspect.isasyncgenfunction(real) or inspect.isgeneratorfunction(real):
        raise _wrong(cls, name, "it is a generator")
    try:
        hints = get_type_hints(real)
    except Exception as exc:
        raise _wrong(cls, name, f"its annotations can't be resolved ({type(exc).__name__}: {exc})") from exc
    returns = hints.get("return")
    if not (isinstance(returns, type) and issubclass(returns, ToolOutput)):
        raise _wrong(cls, name, "it is not annotated to return ToolOutput")
    parameters = list(inspect.signature(real).parameters.values())
    if not parameters:
        raise _wrong(cls, name, "it does not take self")
    if len(parameters) > 2:
        raise _wrong(cls, name, f"it takes {len(parameters) - 1} parameters besides self")
    if len(parameters) == 1:
        return None
    parameter = parameters[1]
    if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
        raise _wrong(cls, name, f"its parameter {parameter.name!r} is not a positional one")
    model = hints.get(parameter.name)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise _wrong(cls, name, f"its parameter {parameter.name!r} is not annotated with a pydantic model")
    return model


def _schema(cls: type, name: str, model: type[BaseModel]) -> dict[str, Any]:
    try:
        return model.model_json_schema()
    except Exception as exc:
        raise _wrong(cls, name, f"{model.__name__} has no JSON Schema ({exc})") from exc


def _wrong(cls: type, name: str, problem: str) -> TypeError:
    return TypeError(
        f"{cls.__name__}.{name} can't be a tool: {problem}. A tool takes self and at most one pydantic model, and returns "
        f"ToolOutput: 'def {name}(self, params: Params) -> ToolOutput'"
    )
