"""Inputs made up from a tool's JSON schema: what it allows, by chance. Patterns and formats are not understood."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

_WORDS = ("a", "hello", "42", "file.txt", "", "ls", "echo hello")
_MOST_EXTRA_ITEMS = 2
_DEEPEST = 6
"""A schema may be of itself: from here on only what must be there."""


def sample(schema: Mapping[str, Any] | None, chance: random.Random) -> dict[str, Any]:
    """Return an input for a tool of this schema; a tool without one gets an empty object."""
    if schema is None:
        return {}
    value = _value(schema, chance, schema, 0)
    return value if isinstance(value, dict) else {}


def _value(schema: Any, chance: random.Random, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping):  # true: anything
        return None
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), Sequence) and schema[key]:
            return chance.choice(schema[key])
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), Sequence) and schema[key]:
            return _value(schema[key][0] if depth < _DEEPEST else schema[key][-1], chance, root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "null")
    match next(iter(kind), None) if isinstance(kind, list) else kind:
        case "object":
            return _object(schema, chance, root, depth)
        case "array":
            least = int(schema.get("minItems", 0))
            extra = chance.randint(0, _MOST_EXTRA_ITEMS) if depth < _DEEPEST else 0
            number = min(least + extra, int(schema.get("maxItems", least + extra)))
            return [_value(schema.get("items", {}), chance, root, depth + 1) for _ in range(number)]
        case "string":
            text = schema.get("default") if "pattern" in schema or "format" in schema else chance.choice(_WORDS)
            text = str(text or "").ljust(int(schema.get("minLength", 0)), "x")
            return text[: int(schema["maxLength"])] if "maxLength" in schema else text
        case "integer":
            return math.ceil(_number(schema, chance))
        case "number":
            return _number(schema, chance)
        case "boolean":
            return chance.random() < 0.5
    return None


def _object(schema: Mapping[str, Any], chance: random.Random, root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    required = schema.get("required", ())
    return {
        name: _value(field, chance, root, depth + 1)
        for name, field in (schema.get("properties") or {}).items()
        if name in required or (depth < _DEEPEST and chance.random() < 0.3 and "default" not in _resolved(field, root))
    }


def _number(schema: Mapping[str, Any], chance: random.Random) -> float:
    step = float(schema.get("multipleOf", 1))
    low = float(schema.get("minimum", schema.get("exclusiveMinimum", min(0.0, float(schema.get("maximum", 0.0))))))
    high = float(schema.get("maximum", schema.get("exclusiveMaximum", low + 10 * step)))
    first = math.ceil(low / step) + (1 if "exclusiveMinimum" in schema and math.ceil(low / step) * step <= low else 0)
    last = max(first, math.floor(high / step) - (1 if "exclusiveMaximum" in schema else 0))
    number = chance.randint(first, min(last, first + 10)) * step
    return number if number <= high else (low + high) / 2  # an interval too narrow for a whole step


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow ``$ref`` within the schema, and join what ``allOf`` asks for."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping):
            return {}
        if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#/"):
            target: Any = root
            for step in ref[2:].split("/"):
                target = target.get(step, {}) if isinstance(target, Mapping) else {}
            schema = target
        elif isinstance(parts := schema.get("allOf"), Sequence):
            joined = {key: value for key, value in schema.items() if key != "allOf"}
            for part in parts:
                joined = {**_resolved(part, root), **joined}
            schema = joined
        else:
            return schema
    return {}
