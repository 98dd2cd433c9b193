"""Reading tools off a class: what they say, and errors for what can't be one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from sandbox_runtime import TextBlock, ToolOutput, Toolset, tool
from sandbox_runtime.tools import ToolOptions, tool_methods


class Params(BaseModel):
    x: int = Field(description="A number.")


class Opaque(BaseModel):
    f: Callable[[], None]


OUTPUT = ToolOutput(blocks=[TextBlock(text="x")])


def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


class Good:
    @tool
    def plain(self, params: Params) -> ToolOutput:
        """Does a thing.

        And says
            how.
        """
        return OUTPUT

    @tool(shared=False, concurrent=True)
    async def without_parameter(self) -> ToolOutput:
        return OUTPUT

    @tool(exclusive=True)
    @logged
    def wrapped(self, params: Annotated[Params, "a note"], /) -> ToolOutput:
        return OUTPUT

    def not_a_tool(self, whatever: int) -> str:
        return ""


def test_what_a_class_says() -> None:
    methods = tool_methods(Good)
    assert list(methods) == ["plain", "without_parameter", "wrapped"]
    assert methods["plain"].spec.description == "Does a thing.\n\nAnd says\n    how."
    assert methods["plain"].spec.input_schema == Params.model_json_schema()
    assert methods["plain"].options == ToolOptions()
    assert methods["without_parameter"].spec.description == ""
    assert methods["without_parameter"].spec.input_schema is None
    assert methods["without_parameter"].options == ToolOptions(shared=False, concurrent=True)
    assert methods["wrapped"].model is Params
    assert methods["wrapped"].options == ToolOptions(exclusive=True)


def test_tools_are_inherited_and_an_override_without_the_decorator_is_none() -> None:
    class Child(Good):
        def plain(self, params: Params) -> ToolOutput:
            return OUTPUT

    assert list(tool_methods(Child)) == ["without_parameter", "wrapped"]


def test_looking_for_tools_runs_no_property() -> None:
    class WithProperty(Good):
        @property
        def trap(self) -> None:
            raise AssertionError("looked at")

    assert len(tool_methods(WithProperty)) == 3


def test_concurrent_and_exclusive_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="both concurrent and exclusive"):
        tool(concurrent=True, exclusive=True)


def no_self() -> ToolOutput:  # a method without self
    return OUTPUT


def no_return(self: Any, params: Params):  # type: ignore[no-untyped-def]
    return OUTPUT


def wrong_return(self: Any) -> str:
    return ""


def no_annotation(self: Any, params) -> ToolOutput:  # type: ignore[no-untyped-def]
    return OUTPUT


def plain_parameter(self: Any, x: int) -> ToolOutput:
    return OUTPUT


def two_parameters(self: Any, a: Params, b: Params) -> ToolOutput:
    return OUTPUT


def keyword_only(self: Any, *, params: Params) -> ToolOutput:
    return OUTPUT


def variadic(self: Any, *params: Params) -> ToolOutput:
    return OUTPUT


def unknown_name(self: Any, params: "Nowhere") -> ToolOutput:  # type: ignore[name-defined]  # noqa: F821, UP037
    return OUTPUT


def no_schema(self: Any, params: Opaque) -> ToolOutput:
    return OUTPUT


def generator(self: Any) -> ToolOutput:  # type: ignore[misc]
    yield OUTPUT


async def async_generator(self: Any) -> ToolOutput:  # type: ignore[misc]
    yield OUTPUT


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_self, "does not take self"),
        (no_return, "not annotated to return ToolOutput"),
        (wrong_return, "not annotated to return ToolOutput"),
        (no_annotation, "'params' is not annotated with a pydantic model"),
        (plain_parameter, "'x' is not annotated with a pydantic model"),
        (two_parameters, "takes 2 parameters besides self"),
        (keyword_only, "'params' is not a positional one"),
        (variadic, "'params' is not a positional one"),
        (unknown_name, "annotations can't be resolved (NameError"),
        (no_schema, "Opaque has no JSON Schema"),
        (generator, "it is a generator"),
        (async_generator, "it is a generator"),
        (staticmethod(plain_parameter), "it is a staticmethod"),
        (classmethod(plain_parameter), "it is a classmethod"),
        (property(wrong_return), "it is a property"),
    ],
)
def test_what_can_not_be_a_tool(function: Any, problem: str) -> None:
    inner = getattr(function, "__func__", getattr(function, "fget", function))
    tool(inner)
    bad = type("Bad", (), {"act": function})
    with pytest.raises(TypeError) as caught:
        tool_methods(bad)
    message = str(caught.value)
    assert message.startswith("Bad.act can't be a tool: ")
    assert problem in message
    assert "def act(self, params: Params) -> ToolOutput" in message


class Shell(Toolset):
    @tool
    def ls(self) -> ToolOutput:
        return OUTPUT


class OtherShell(Toolset):
    @tool
    def ls(self) -> ToolOutput:
        return OUTPUT


def test_toolsets_come_after_the_class() -> None:
    class WithToolset(Good):
        toolsets = (Shell,)

    methods = tool_methods(WithToolset)
    assert list(methods) == ["plain", "without_parameter", "wrapped", "ls"]
    assert methods["ls"].owner is Shell


def test_a_toolset_knows_its_environment() -> None:
    env = object()
    assert Shell(env).env is env


def test_name_collision_with_a_toolset() -> None:
    class Clash:
        toolsets = (Shell,)

        @tool
        def ls(self) -> ToolOutput:
            return OUTPUT

    with pytest.raises(ValueError, match="'ls' is defined in both Clash and Shell"):
        tool_methods(Clash)


def test_name_collision_between_toolsets() -> None:
    with pytest.raises(ValueError, match="'ls' is defined in both Shell and OtherShell"):
        tool_methods(type("Clash", (), {"toolsets": (Shell, OtherShell)}))


def test_toolsets_are_classes() -> None:
    with pytest.raises(TypeError, match=r"Clash\.toolsets must list classes"):
        tool_methods(type("Clash", (), {"toolsets": (Shell(None),)}))
