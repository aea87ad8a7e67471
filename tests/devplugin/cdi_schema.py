"""The Container Device Interface, version 0.6.0, as a JSON Schema of our own.

Written from the published rules of the format: what a specification must and may hold, how vendor, class and
device names are spelled. Device names of one file being distinct is a rule that a schema cannot say.
"""

from __future__ import annotations

from typing import Any

_PATH: dict[str, Any] = {"type": "string", "pattern": "^/"}
_STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 1}}
_ANNOTATIONS: dict[str, Any] = {"type": "object"}

_DEVICE_NODE: dict[str, Any] = {
    "type": "object",
    "required": ["path"],
    "additionalProperties": False,
    "properties": {
        "path": _PATH,
        "hostPath": _PATH,
        "type": {"enum": ["b", "c", "u", "p"]},
        "major": {"type": "integer"},
        "minor": {"type": "integer"},
        "fileMode": {"type": "integer"},
        "permissions": {"type": "string", "pattern": "^[rwm]*$"},
        "uid": {"type": "integer"},
        "gid": {"type": "integer"},
    },
}

_MOUNT: dict[str, Any] = {
    "type": "object",
    "required": ["hostPath", "containerPath"],
    "additionalProperties": False,
    "properties": {
        "hostPath": _PATH,
        "containerPath": _PATH,
        "type": {"type": "string"},
        "options": _STRINGS,
    },
}

_EDITS: dict[str, Any] = {
    "$comment": "an edit must edit something",
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "env": {"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}},
        "deviceNodes": {"type": "array", "minItems": 1, "items": _DEVICE_NODE},
        "mounts": {"type": "array", "minItems": 1, "items": _MOUNT},
        "hooks": {"type": "array"},
    },
}

CDI: dict[str, Any] = {
    "type": "object",
    "required": ["cdiVersion", "kind", "devices"],
    "additionalProperties": False,
    "properties": {
        "cdiVersion": {"const": "0.6.0"},
        "kind": {
            "type": "string",
            "pattern": r"^[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?$",
        },
        "annotations": _ANNOTATIONS,
        "devices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "containerEdits"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$"},
                    "annotations": _ANNOTATIONS,
                    "containerEdits": _EDITS,
                },
            },
        },
        "containerEdits": _EDITS,
    },
}
