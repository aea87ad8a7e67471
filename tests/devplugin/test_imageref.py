"""Image references as containerd's Kubernetes namespace lists them (amd.md 8 and 14.9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.imageref import ImageNameError, normalise


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ("alpine:3.20", "docker.io/library/alpine:3.20"),
        ("alpine", "docker.io/library/alpine:latest"),
        ("someuser/myimage:tag", "docker.io/someuser/myimage:tag"),
        ("someuser/myimage", "docker.io/someuser/myimage:latest"),
        ("ghcr.io/project/app:v1", "ghcr.io/project/app:v1"),
        ("myregistry.io/foo", "myregistry.io/foo:latest"),
        ("localhost:5000/foo", "localhost:5000/foo:latest"),
        ("localhost/foo:bar", "localhost/foo:bar"),
        ("alpine@sha256:deadbeef", "docker.io/library/alpine@sha256:deadbeef"),
        ("registry:5000/a/b/c:1", "registry:5000/a/b/c:1"),
        ("[::1]:5000/foo", "[::1]:5000/foo:latest"),
        # What containerd's CRI does beyond the written rules.
        ("docker.io/alpine", "docker.io/library/alpine:latest"),
        ("index.docker.io/library/alpine:3", "docker.io/library/alpine:3"),
        ("alpine:3.20@sha256:deadbeef", "docker.io/library/alpine@sha256:deadbeef"),
        ("localhost:5000/foo@sha256:00", "localhost:5000/foo@sha256:00"),
    ],
)
def test_a_name_is_completed(image: str, reference: str) -> None:
    assert normalise(image) == reference


@pytest.mark.parametrize(
    "image",
    [
        "",
        "-rm",
        "--help",
        "a b",
        "a\nb",
        "a;b",
        "a,name==x",
        "a//b",
        "a/",
        "a:",
        "a@",
        "ä",
        "$(x)",
        "../x",
        "a" * 600,
    ],
)
def test_what_is_no_reference_never_becomes_a_word_of_a_command_line(image: str) -> None:
    with pytest.raises(ImageNameError):
        normalise(image)


@given(
    st.from_regex(
        r"[a-z0-9]{1,5}(\.io|:5000)?(/[a-z0-9]{1,4}){0,3}(:[a-z0-9]{1,4})?(@sha256:[0-9a-f]{4})?",
        fullmatch=True,
    )
)
def test_a_completed_name_is_complete(image: str) -> None:
    once = normalise(image)
    assert normalise(once) == once
    registry, _, path = once.partition("/")
    assert path
    assert "." in registry or ":" in registry or registry == "localhost"
    assert "@" in path or ":" in path.rpartition("/")[2]
