"""A container image's name as the container runtime keeps it.

A pod says ``alpine``; containerd's Kubernetes namespace lists ``docker.io/library/alpine:latest``. To look
an image up there the name must be completed the same way. Rules: amd.md 8; what that leaves open
(``docker.io/alpine``, a tag beside a digest) as containerd's CRI completes it.
"""

from __future__ import annotations

import re

_DEFAULT = "docker.io"
_OLD_DEFAULT = "index.docker.io"

_GRAMMAR = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:/@+\[\]-]{0,511}", re.ASCII)
"""Characters of registry, path, tag and digest; no first dash, so no word of a command line either."""


class ImageNameError(ValueError):
    """What a pod calls its image is no image reference."""


def normalise(image: str) -> str:
    """The full reference: registry, path, and tag or digest.

    Raises:
        ImageNameError: characters no reference has, or an empty part.
    """
    if not _GRAMMAR.fullmatch(image) or image.endswith(("/", ":", "@")) or "//" in image:
        raise ImageNameError(f"{image[:80]!a} is no image reference")
    name, at, digest = image.partition("@")
    registry, path = _split(name)
    if registry == _OLD_DEFAULT:
        registry = _DEFAULT
    if registry == _DEFAULT and "/" not in path:
        path = f"library/{path}"
    last = path.rpartition("/")[2]
    if at:
        # Both tag and digest: the digest alone names the image.
        path = path.removesuffix(":" + last.partition(":")[2]) if ":" in last else path
        return f"{registry}/{path}@{digest}"
    return f"{registry}/{path}" if ":" in last else f"{registry}/{path}:latest"


def _split(name: str) -> tuple[str, str]:
    """(registry, path): the first part is a registry when it looks like a host."""
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return _DEFAULT, name
