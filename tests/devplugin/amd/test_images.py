"""Which image a slot is for, whatever its writer counts (amd.md 5.2, decision 16, cases.md B35)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from devplugin.amd.images import images
from devplugin.hami import Claim, Pod

from .builders import claimed, pod

ONE = "g,AMD,1024,8:"
TWO = "g,AMD,1024,8:h,AMD,1024,8:"


def asks(
    text: str, counts: Mapping[str, int | None], *, init: tuple[str, ...] = (), pending: str | None = None
) -> Claim:
    """A claim of a pod whose container `x` has image ``x:1`` and asks for that many GPUs."""
    owner: Pod = replace(
        pod(text),
        containers=tuple(name for name in counts if name not in init),
        init_containers=init,
        images={name: f"{name}:1" for name in counts},
        limits={
            name: {"cpu": "2", "amd.com/gpumem": "1024", "amd.com/gpucores": "50"}
            | ({"amd.com/gpu": str(count)} if count else {})
            for name, count in counts.items()
        },
    )
    if pending is not None:
        owner = replace(owner, annotations={**owner.annotations, "hami.io/amd-devices-to-allocate": pending})
    return claimed(owner)


def test_the_only_container_is_meant() -> None:
    assert images(asks(f"{ONE};", {"a": 1})) == ("a:1",)


def test_a_slot_means_the_container_at_its_place() -> None:
    counts = {"a": 1, "b": None, "c": 1}
    assert images(asks(f"{ONE};;{ONE};", counts)) == ("a:1",)
    assert images(asks(f"{ONE};;{ONE};", counts, pending=f";;{ONE};")) == ("c:1",)


def test_init_containers_may_be_counted_or_left_out() -> None:
    counts = {"i": None, "a": None, "b": 1}
    assert images(asks(f";{ONE};", counts, init=("i",))) == ("b:1",)
    assert images(asks(f";;{ONE};", counts, init=("i",))) == ("b:1",)


def test_an_init_container_that_uses_the_gpu_is_the_one_at_its_place() -> None:
    assert images(asks(f"{ONE};;{TWO};", {"i": 1, "a": None, "b": 2}, init=("i",))) == ("i:1",)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f";;;;{ONE};", ("a:1", "b:1")),
        (f"{ONE};{ONE};{ONE};", ("a:1", "b:1")),
        (f"{TWO};{ONE};", ("a:1", "b:1", "c:1")),
    ],
)
def test_where_slots_and_containers_disagree_all_that_could_be_meant_are_named(
    text: str, found: tuple[str, ...]
) -> None:
    assert images(asks(text, {"a": 1, "b": 1, "c": None})) == found


def test_trailing_empty_slots_change_nothing() -> None:
    assert images(asks(f"{ONE};;;;", {"a": 1, "b": None})) == ("a:1",)


def test_kubelets_own_ids_have_no_image() -> None:
    assert images(Claim(("x#spx",), None, None, ())) == ()


def test_the_same_image_is_named_once() -> None:
    claim = asks(f";;;;{ONE};", {"a": 1, "b": 1})
    assert claim.pod is not None
    both = replace(claim.pod, images={"a": "x:1", "b": "x:1"})
    assert images(replace(claim, pod=both)) == ("x:1",)
