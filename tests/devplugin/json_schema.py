"""A JSON Schema checker for the keywords our schemas use; an unknown keyword is an error, never skipped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
}


def complaints(schema: Mapping[str, Any], value: Any, at: str = "$") -> list[str]:
    """Every rule of the schema that the value breaks."""
    found: list[str] = []
    for keyword, rule in schema.items():
        found += _broken(keyword, rule, schema, value, at)
    return found


def _broken(keyword: str, rule: Any, schema: Mapping[str, Any], value: Any, at: str) -> list[str]:
    match keyword:
        case "type":
            fits = isinstance(value, TYPES[rule]) and (rule != "integer" or not isinstance(value, bool))
            return [] if fits else [f"{at}: no {rule}"]
        case "const":
            return [] if value == rule else [f"{at}: not {rule!r}"]
        case "enum":
            return [] if value in rule else [f"{at}: none of {rule!r}"]
        case "pattern":
            fits = not isinstance(value, str) or re.search(rule, value) is not None
            return [] if fits else [f"{at}: {value!r} does not match {rule}"]
        case "minLength" | "minItems" | "minProperties":
            return [] if len(value) >= rule else [f"{at}: fewer than {rule}"]
        case "required":
            return [f"{at}: no {name!r}" for name in rule if isinstance(value, dict) and name not in value]
        case "properties":
            if not isinstance(value, dict):
                return []
            return [
                line
                for name in rule
                if name in value
                for line in complaints(rule[name], value[name], f"{at}.{name}")
            ]
        case "additionalProperties":
            assert rule is False
            extra = set(value) - set(schema["properties"]) if isinstance(value, dict) else set()
            return [f"{at}: unknown {name!r}" for name in sorted(extra)]
        case "items":
            if not isinstance(value, list):
                return []
            return [
                line for index, item in enumerate(value) for line in complaints(rule, item, f"{at}[{index}]")
            ]
        case "$comment":
            return []
    raise AssertionError(f"this checker does not know {keyword!r}")
