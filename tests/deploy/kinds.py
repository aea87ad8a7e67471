"""Whether a Kubernetes release takes an object: its own schemas, strict, and ours for custom resources.

kubernetes-validate reads megabytes of definitions for every object; here they are read once a release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CRDS = Path(__file__).parent / "crds"
OLDEST = "1.25"


def releases() -> tuple[str, str]:
    """The oldest release we promise to run on, and the newest whose schemas there are."""
    import kubernetes_validate

    return OLDEST, kubernetes_validate.latest_version()


@cache
def _validator(api_version: str, kind: str, release: str) -> Any:
    import jsonschema
    from kubernetes_validate.utils import all_versions, schema_contents
    from referencing import Registry, Resource

    (version,) = {one for one in all_versions() if one == release or one.startswith(f"{release}.")}
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    folder = f"kubernetes-json-schema/v{version}-local-strict"
    own = schema_contents(f"{folder}/{kind.lower()}-{group}.json", release)
    shared = schema_contents(f"{folder}/_definitions.json", release)
    registry = Resource.from_contents(shared) @ (Resource.from_contents(own) @ Registry())
    return jsonschema.Draft202012Validator(own, registry=registry)


@cache
def _custom(kind: str) -> Any:
    import jsonschema

    return jsonschema.Draft202012Validator(yaml.safe_load((CRDS / f"{kind.lower()}.yaml").read_text()))


def complaints(document: Mapping[str, Any], release: str) -> list[str]:
    """What is wrong with an object, by place; nothing when the release takes it."""
    api_version, kind = document["apiVersion"], document["kind"]
    checked = (
        _custom(kind) if api_version.startswith("monitoring.") else _validator(api_version, kind, release)
    )
    return [f"{kind} {error.json_path}: {error.message}" for error in checked.iter_errors(document)]
