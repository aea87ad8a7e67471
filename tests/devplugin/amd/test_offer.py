"""kubelet's lists and resource names: amd.md 4.3 and 14.7, decision 13 and 15, B19, B20, B43."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.inventory import Gpu, Inventory, Partition
from devplugin.amd.notices import notices
from devplugin.amd.offer import is_resource_name, naming_notices, offers
from devplugin.amd.settings import Settings


def gpu(
    key: str,
    compute: str = "",
    memory: str = "",
    *,
    numa: int = 0,
    ways: int = 1,
    changeable: bool | None = None,
) -> Gpu:
    """A GPU in as few words as the case gives."""
    at = sum(map(ord, key)) * 8
    return Gpu(
        bdf=key,
        id=f"id-{key}",
        device_id=0x75A3,
        market_name="AMD Instinct MI355X",
        vram_bytes=309220868096,
        compute=compute,
        memory=memory,
        changeable=bool(compute) if changeable is None else changeable,
        numa=numa,
        gfx=90500,
        compute_queues=24,
        total_xccs=8,
        partitions=tuple(
            Partition(
                p,
                key if p == 0 else f"xcp_{key}_{p}",
                at + p,
                128 + at + p,
                None,
                256 // ways,
                8 // ways,
                None,
                None,
            )
            for p in range(ways)
        ),
        whole=ways == 1,
        ids=(f"id-{key}",) if ways == 1 else tuple(f"id-{key}-{p}" for p in range(ways)),
        ways=ways,
    )


def names(gpus: Sequence[Gpu], **choices: object) -> dict[str, list[str]]:
    found = offers(Inventory(gpus=tuple(gpus)), Settings(**choices))  # type: ignore[arg-type]
    return {name: [device.id for device in offer.devices] for name, offer in found.items()}


A = gpu("a", "spx", "nps1", numa=0)
B = gpu("b", "cpx", "nps4", numa=1)


def test_kubelet_list_of_two_types_split_3() -> None:
    single = names([A, B], split_count=3)
    assert single == {"amd.com/gpu": ["a#0", "a#1", "a#2", "b#0", "b#1", "b#2"]}
    mixed = offers(Inventory(gpus=(A, B)), Settings(split_count=3, naming="mixed"))
    assert [(d.id, d.numa) for d in mixed["amd.com/cpx_nps4"].devices] == [(f"b#{n}", (1,)) for n in range(3)]


def test_hard_devices_by_type() -> None:
    q = gpu("b", "qpx", "nps1")
    assert names([A, q], mode="partition", naming="mixed") == {
        "amd.com/qpx_nps1": ["b#qpx"],
        "amd.com/spx_nps1": ["a#spx"],
    }
    assert names([A, q], mode="partition") == {"amd.com/gpu": ["a#spx", "b#qpx"]}


RDNA = gpu("r")
SPX = gpu("s", "spx", "nps1")
QPX = gpu("q", "qpx", "nps1", ways=4)
VF = gpu("v", "spx", "nps1", changeable=False)


@pytest.mark.parametrize(
    ("gpus", "naming", "resources"),
    [
        ([], "single", []),
        ([], "mixed", []),
        ([RDNA], "single", ["amd.com/gpu"]),
        ([RDNA], "mixed", ["amd.com/gpu"]),
        ([SPX], "single", ["amd.com/gpu"]),
        ([SPX], "mixed", ["amd.com/spx_nps1"]),
        ([SPX, QPX], "single", ["amd.com/gpu"]),
        ([SPX, QPX], "mixed", ["amd.com/qpx_nps1", "amd.com/spx_nps1"]),
        ([SPX, RDNA], "mixed", ["amd.com/gpu", "amd.com/spx_nps1"]),
        ([SPX, VF], "mixed", ["amd.com/gpu", "amd.com/spx_nps1"]),
        ([gpu("x", "spx", "")], "mixed", ["amd.com/gpu"]),
    ],
)
def test_resource_names(gpus: list[Gpu], naming: str, resources: list[str]) -> None:
    assert list(names(gpus, naming=naming)) == resources


def test_views_agree_in_both_modes() -> None:
    """amd.md 14.7, with all partitions of the GPU (decision 1)."""
    cpx = gpu("c", "cpx", "nps1", ways=8)
    cu = names([cpx, SPX, RDNA])["amd.com/gpu"]
    assert cu == [f"{key}#{slot}" for key in "crs" for slot in range(10)]
    partition = names([cpx, SPX, RDNA], mode="partition")["amd.com/gpu"]
    hard = ["c#cpx", *(f"xcp_c_{p}#cpx" for p in range(1, 8)), "s#spx"]
    assert sorted(partition) == sorted([*hard, *(f"r#{slot}" for slot in range(10))])


@pytest.mark.parametrize(
    ("of", "cu", "partition"),
    [
        (SPX, ["s#0"], ["s#spx"]),
        (QPX, ["q#0"], ["q#qpx", "xcp_q_1#qpx", "xcp_q_2#qpx", "xcp_q_3#qpx"]),
        (gpu("w", "qpx", "nps1"), ["w#0"], ["w#qpx"]),
        (RDNA, ["r#0"], ["r#0"]),
        (VF, ["v#0"], ["v#0"]),
    ],
)
def test_schedulable_in_each_mode(of: Gpu, cu: list[str], partition: list[str]) -> None:
    assert names([of], split_count=1) == {"amd.com/gpu": cu}
    assert names([of], split_count=1, mode="partition") == {"amd.com/gpu": partition}


def six_and_two() -> list[Gpu]:
    return [gpu(f"{n:02d}", "spx", "nps1") for n in range(6)] + [
        gpu(f"{n:02d}", "cpx", "nps1", ways=8) for n in (6, 7)
    ]


def test_b20_mixed_names_six_spx_and_sixteen_cpx_apart() -> None:
    found = names(six_and_two(), mode="partition", naming="mixed")
    assert {name: len(ids) for name, ids in found.items()} == {"amd.com/cpx_nps1": 16, "amd.com/spx_nps1": 6}


def test_b20_single_offers_all_22_as_one_resource_with_one_warning() -> None:
    found = names(six_and_two(), mode="partition")
    assert {name: len(ids) for name, ids in found.items()} == {"amd.com/gpu": 22}
    (told,) = naming_notices(Inventory(gpus=tuple(six_and_two())), Settings(mode="partition"))
    assert "cpx_nps1, spx_nps1" in told


def test_b20_an_all_cpx_node_is_63_under_either_name() -> None:
    last = gpu("07", "cpx", "nps4", ways=8)
    last = replace(last, partitions=last.partitions[:7], ids=last.ids[:7])
    gpus = [*(gpu(f"{n:02d}", "cpx", "nps4", ways=8) for n in range(7)), last]
    assert {n: len(i) for n, i in names(gpus, mode="partition", naming="mixed").items()} == {
        "amd.com/cpx_nps4": 63
    }
    assert {n: len(i) for n, i in names(gpus, mode="partition").items()} == {"amd.com/gpu": 63}


def test_homogeneous_types_need_no_warning() -> None:
    for gpus in ([RDNA, RDNA], [SPX, SPX], [SPX, RDNA], [SPX, VF]):
        assert naming_notices(Inventory(gpus=tuple(gpus)), Settings()) == ()
    assert len(naming_notices(Inventory(gpus=(A, B)), Settings())) == 1


def test_a_purely_mixed_node_is_warned_that_hami_drops_it() -> None:
    (told,) = naming_notices(Inventory(gpus=(SPX,)), Settings(naming="mixed"))
    assert "amd.com/gpu" in told
    assert naming_notices(Inventory(gpus=(SPX, RDNA)), Settings(naming="mixed")) == ()


def test_unknown_numa_is_left_out_towards_kubelet() -> None:
    (offer,) = offers(Inventory(gpus=(gpu("n", numa=-1), gpu("m", numa=0))), Settings(split_count=1)).values()
    assert [(d.id, d.numa) for d in offer.devices] == [("m#0", (0,)), ("n#0", ())]


def test_all_slots_of_an_unhealthy_gpu_are_unhealthy() -> None:
    (offer,) = offers(Inventory(gpus=(replace(QPX, healthy=False), SPX)), Settings(mode="partition")).values()
    assert [d.healthy for d in offer.devices] == [False, True, False, False, False]


def test_b19_the_list_depends_on_discovery_alone() -> None:
    """64 partitions without a single link: listed all the same."""
    gpus = [gpu(f"{n:02d}", "cpx", "nps1", ways=8) for n in range(8)]
    assert len(names(gpus, mode="partition")["amd.com/gpu"]) == 64


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("amd.com", False),
        ("amd.com/", False),
        ("gpu", False),
        ("amd.com/cpx_nps4", True),
        ("amd.com/CPX NPS4", False),
        ("amd.com/gpu", True),
        ("/gpu", False),
        ("amd..com/gpu", False),
        ("amd.com/gpu/x", False),
        ("amd.com/_gpu", False),
        ("amd.com/" + "x" * 64, False),
    ],
)
def test_b43_resource_names_kubelet_refuses(name: str, good: bool) -> None:
    assert is_resource_name(name) is good


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "spx", "dpx", "qpx", "cpx"]),
            st.sampled_from(["", "nps1", "nps4"]),
            st.booleans(),
        ),
        max_size=8,
    ),
    st.sampled_from(["single", "mixed"]),
    st.sampled_from(["cu", "partition"]),
)
def test_every_device_is_offered_exactly_once_under_a_valid_name(
    kinds: list[tuple[str, str, bool]], naming: str, mode: str
) -> None:
    ways = {"": 1, "spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}
    gpus = [
        gpu(f"{n:02d}", c, m, ways=ways[c], changeable=bool(c) and free)
        for n, (c, m, free) in enumerate(kinds)
    ]
    found = names(gpus, naming=naming, mode=mode)
    ids = [identifier for listed in found.values() for identifier in listed]
    assert len(ids) == len(set(ids))
    expected = sum(g.ways if mode == "partition" and g.partitionable else 10 for g in gpus)
    assert len(ids) == expected
    assert all(is_resource_name(name) for name in found)


def test_a_partitioned_gpu_shared_as_a_whole_is_told_once() -> None:
    told = [line for line in notices(Inventory(gpus=(QPX, SPX)), Settings()) if "partitioned" in line]
    assert len(told) == 1
    assert "256 CUs" in told[0]
    assert not [
        line for line in notices(Inventory(gpus=(QPX,)), Settings(mode="partition")) if "partitioned" in line
    ]
