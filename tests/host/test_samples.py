"""What is made up from a schema is valid by it: shown with a validator that was written by others."""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, Field

from host.samples import sample


class Inner(BaseModel):
    flag: bool
    kind: str = Field(json_schema_extra={"enum": ["a", "b"]})


class Tree(BaseModel):
    name: str
    children: list[Tree] = []
    parent: Tree | None = None


class All(BaseModel, extra="forbid"):
    text: str = Field(min_length=3, max_length=4)
    number: int = Field(gt=3, le=5)
    ratio: float = Field(gt=0, lt=0.5)
    low: int = Field(le=-7)
    step: int = Field(multiple_of=5, ge=1, lt=16)
    many: list[Inner] = Field(min_length=2, max_length=3)
    either: int | str
    maybe: str | None
    date: str = Field("2026-01-01", pattern=r"^\d{4}-\d\d-\d\d$")
    shown: str = Field(examples=["this", "that"])


@pytest.mark.parametrize("model", [Inner, Tree, All])
@pytest.mark.parametrize("seed", range(20))
def test_made_up_inputs_are_valid(model: type[BaseModel], seed: int) -> None:
    schema = model.model_json_schema()
    jsonschema.validate(sample(schema, random.Random(seed)), schema)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        {"type": "object"},
        {"properties": {"x": True}, "required": ["x"]},
        {"$ref": "#/$defs/none"},
        {"type": []},
    ],
)
def test_odd_schemas_do_no_harm(schema: dict[str, Any] | None) -> None:
    assert isinstance(sample(schema, random.Random(0)), dict)


def test_a_schema_of_itself_comes_to_an_end() -> None:
    loop = {"$ref": "#"}
    assert sample({"type": "object", "properties": {"a": loop}, "required": ["a"]}, random.Random(0)) != {}
    assert sample(loop, random.Random(0)) == {}


def test_the_same_seed_gives_the_same() -> None:
    schema = All.model_json_schema()
    assert sample(schema, random.Random(7)) == sample(schema, random.Random(7))
