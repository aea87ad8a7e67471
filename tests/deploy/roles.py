"""What a ClusterRole grants because our code asks for it, and what it grants beside that, with the reason.

A rule whose comment begins with ``extra:`` is one that the recorded calls of our programs do not need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import yaml

Grant = tuple[str, str]
"""Resource and verb: ``("nodes/status", "patch")``, as `gpusim.cluster`'s request log has them."""


@dataclass(frozen=True)
class Role:
    """One ClusterRole of a rendered text."""

    name: str
    needed: frozenset[Grant]
    extras: dict[Grant, str]
    """With the reason."""

    @property
    def granted(self) -> frozenset[Grant]:
        return self.needed | frozenset(self.extras)


def roles(text: str) -> dict[str, Role]:
    """Every ClusterRole of a text, by name."""
    found = {}
    for document in re.split(r"^---$", text, flags=re.MULTILINE):
        loaded = yaml.safe_load(document)
        if loaded is not None and loaded["kind"] == "ClusterRole":
            found[loaded["metadata"]["name"]] = _role(loaded["metadata"]["name"], document)
    return found


def _role(name: str, document: str) -> Role:
    needed: set[Grant] = set()
    extras: dict[Grant, str] = {}
    body = document.split("\nrules:\n")[1]
    for comment, block in re.findall(r"((?: *#.*\n)*)( *- apiGroups(?:.*\n?)(?: +[a-z].*\n?)*)", body):
        (rule,) = yaml.safe_load(block)
        assert rule["apiGroups"] == [""], rule
        grants = {(resource, verb) for resource in rule["resources"] for verb in rule["verbs"]}
        said = " ".join(line.strip("# ") for line in comment.splitlines())
        if said.startswith("extra:"):
            extras |= dict.fromkeys(grants, said.removeprefix("extra:").strip())
        else:
            needed |= grants
    loaded = yaml.safe_load(document)["rules"]
    assert needed | set(extras) == {
        (resource, verb) for rule in loaded for resource in rule["resources"] for verb in rule["verbs"]
    }
    assert not needed & set(extras)
    return Role(name, frozenset(needed), extras)
