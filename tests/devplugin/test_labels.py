"""Labels of real and simulated nodes, their names and values, and the clean-up (amd.md 12 and 14.10)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.labelfacts import Agent, LabelFacts, read_label_facts
from devplugin.amd.labels import GENERATORS, changes, family, is_managed, label_value, labels
from devplugin.linux import LinuxHost
from gpusim.amd.products import PRODUCTS
from gpusim.fixture import load
from gpusim.machine import Machine

from .small_nodes import cpu_node, gpu_node, machine, pci_gpu, xcp

GIB = 1 << 30
VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
"""A label's value by the Kubernetes API conventions; its name after the slash is the same, and not empty."""

ALL = tuple(GENERATORS)


def of(host: Any, *generators: str) -> dict[str, str]:
    return labels(read_label_facts(host), generators or ALL)


def legal(made: dict[str, str]) -> bool:
    return all(
        domain in ("amd.com", "beta.amd.com")
        and name
        and VALUE.fullmatch(name)
        and value
        and VALUE.fullmatch(value)
        for (domain, _, name), value in ((key.partition("/"), value) for key, value in made.items())
    )


# ------------------------------------------------------------------ whole nodes


def test_all_labels_of_a_dpx_node() -> None:
    """A partition counts like a GPU; KFD's own numbers, not the registered shares (cases B08, B11)."""
    made = of(Machine(load("mi355x/dpx-6.14")))
    assert made.pop("amd.com/gpu.driver-src-version")
    assert made == {
        "amd.com/gpu.compute-memory-partition": "dpx_nps1",
        "amd.com/gpu.compute-partitioning-supported": "true",
        "amd.com/gpu.cu-count": "128",
        "amd.com/gpu.device-id": "75a3",
        "amd.com/gpu.driver-version": "6.14.14",
        "amd.com/gpu.family": "AI",
        "amd.com/gpu.memory-partitioning-supported": "true",
        "amd.com/gpu.product-name": "AMD_Instinct_MI355X_OAM",
        "amd.com/gpu.simd-count": "512",
        "amd.com/gpu.vram": "144G",
        "beta.amd.com/gpu.cu-count": "128",
        "beta.amd.com/gpu.cu-count.128": "16",
        "beta.amd.com/gpu.device-id": "75a3",
        "beta.amd.com/gpu.device-id.75a3": "16",
        "beta.amd.com/gpu.family": "AI",
        "beta.amd.com/gpu.family.AI": "16",
        "beta.amd.com/gpu.product-name": "AMD_Instinct_MI355X_OAM",
        "beta.amd.com/gpu.product-name.AMD_Instinct_MI355X_OAM": "16",
        "beta.amd.com/gpu.simd-count": "512",
        "beta.amd.com/gpu.simd-count.512": "16",
        "beta.amd.com/gpu.vram": "144G",
        "beta.amd.com/gpu.vram.144G": "16",
    }


def test_several_values_are_counted_in_both_domains_and_have_no_single_label() -> None:
    made = of(Machine(load("mi355x/mixed-spx-cpx")), "vram", "compute-memory-partition")
    assert made == {
        "amd.com/gpu.vram.288G": "6",
        "amd.com/gpu.vram.36G": "16",
        "beta.amd.com/gpu.vram.288G": "6",
        "beta.amd.com/gpu.vram.36G": "16",
    }


@pytest.mark.parametrize(
    ("fixture", "vram", "count"),
    [
        ("mi355x/spx-6.14", "288G", "8"),
        ("mi355x/qpx-6.14", "72G", "32"),
        ("mi355x/cpx-6.14", "36G", "64"),
        ("mi355x/qpx-6.8", "288G", "8"),
    ],
)
def test_vram_is_what_kfd_says_of_each_node_it_lists(fixture: str, vram: str, count: str) -> None:
    made = of(Machine(load(fixture)), "vram")
    assert made["amd.com/gpu.vram"] == vram
    assert made[f"beta.amd.com/gpu.vram.{vram}"] == count


def test_b24_a_vf_has_no_partition_labels_and_says_that_it_supports_none() -> None:
    made = of(Machine(load("mi355x/vf")))
    assert "amd.com/gpu.compute-memory-partition" not in made
    assert made["amd.com/gpu.compute-partitioning-supported"] == "false"
    assert made["amd.com/gpu.memory-partitioning-supported"] == "false"
    assert made["amd.com/gpu.product-name"] == "AMD_Instinct_MI355X_VF", "from the table: a VF has no file"
    assert "amd.com/gpu.driver-version" not in made, "an in-tree driver has no version"


def test_b58_a_card_that_is_not_amds_and_a_vf_without_product_name_lose_no_other_label() -> None:
    host = machine(
        {"/sys/class/drm/card0/device/vendor": "0x1234\n"},
        cpu_node(0),
        gpu_node(1, 128, 0x8300, 304, device_id=0x74B5, bank=205604782080),
        pci_gpu("0000:83:00.0", 1, 128),
    )
    assert (
        of(host, "product-name", "vram", "device-id")["amd.com/gpu.product-name"] == "AMD_Instinct_MI300X_VF"
    )
    assert legal(of(host))
    assert of(host, "vram")["amd.com/gpu.vram"] == "191G"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("AMD Instinct MI300X OAM", "AMD_Instinct_MI300X_OAM"),
        ("", "AMD_Instinct_MI300X"),  # an empty file: the table
        ("()", None),
        (" Radeon (TM) RX/480 ", "Radeon_TM_RX_480"),
        ("_x_", "x"),
        ("ä", None),
        ("A" * 60, "A" * 46),
        ("A" * 45 + "  B", "A" * 45),
    ],
)
def test_b58_product_names_are_legal_values_or_none(text: str, value: str | None) -> None:
    host = machine(
        cpu_node(0), gpu_node(1, 128, 0x8300, 304), pci_gpu("0000:83:00.0", 1, 128, product_name=text)
    )
    made = of(host, "product-name")
    assert made.get("amd.com/gpu.product-name") == value
    assert legal(made)
    assert bool(made) == (value is not None)


def test_b11_partitions_that_all_report_the_whole_memory_are_told_in_the_log() -> None:
    def node(bank: int) -> LabelFacts:
        return read_label_facts(
            machine(
                cpu_node(0),
                gpu_node(1, 128, 0x0500, 128, bank=bank),
                gpu_node(2, 129, 0x0501, 128, bank=bank),
                pci_gpu("0000:05:00.0", 1, 128, mem_info_vram_total=309220868096),
                xcp("amdgpu_xcp_0", 2, 129),
            )
        )

    half, full = node(154610434048), node(309220868096)
    assert labels(half, ["vram"])["amd.com/gpu.vram"] == "144G"
    assert labels(full, ["vram"])["amd.com/gpu.vram"] == "288G"
    assert half.notes == ()
    assert full.notes == (
        "0000:05:00.0: its 2 partitions report 618441736192 bytes together, the GPU has 309220868096",
    )


def test_a_render_minor_is_matched_whole_and_0_is_none() -> None:
    """14.10: 128 is not 129, and a node without render node is no GPU (B06)."""
    host = machine(
        cpu_node(0),
        gpu_node(1, 129, 0x0501, 64),
        gpu_node(2, 0, 0x0600, 32),
        pci_gpu("0000:05:00.0", 1, 128, product_name="other"),
        pci_gpu("0000:05:00.1", 2, 129, product_name="mine"),
    )
    made = of(host, "product-name", "cu-count")
    assert made["amd.com/gpu.product-name"] == "mine"
    assert made["amd.com/gpu.cu-count"] == "64"
    assert made["beta.amd.com/gpu.cu-count.64"] == "1"


def test_without_a_driver_there_are_no_labels_and_a_line_says_why() -> None:
    facts = read_label_facts(machine())
    assert labels(facts, ALL) == {}
    assert facts.notes == ("/sys/class/kfd/kfd/topology/nodes: ENOENT",)


def test_a_node_kfd_hides_from_us_is_told_and_the_others_are_labelled() -> None:
    broken = machine(cpu_node(0), gpu_node(1, 128, 0x0500, 64), gpu_node(2, 129, 0x0600, 64))
    broken.tree["/sys/class/kfd/kfd/topology/nodes/2/properties"] = 1  # EPERM
    facts = read_label_facts(broken)
    assert labels(facts, ["cu-count"])["beta.amd.com/gpu.cu-count.64"] == "1"
    assert facts.notes == ("/sys/class/kfd/kfd/topology/nodes/2/properties: EPERM",)


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[2].glob("fixtures/*/*.yaml")), ids=lambda p: p.stem
)
def test_every_fixtures_labels_are_legal_and_each_count_adds_up(path: Path) -> None:
    host = Machine(load(str(path)))
    made = of(host)
    assert legal(made)
    agents = read_label_facts(host).agents
    for name in ("device-id", "vram", "simd-count", "cu-count", "family", "product-name"):
        counts = [int(value) for key, value in made.items() if key.startswith(f"beta.amd.com/gpu.{name}.")]
        # KFD of the 5.x kernels does not say the generation (kfd.md 1), so such a node has no family.
        told = [agent for agent in agents if agent.gfx or name != "family"]
        assert sum(counts) == len(told), name


# ------------------------------------------------------------------ captures


@pytest.mark.snapshots
@pytest.mark.parametrize(
    ("name", "values", "count"),
    [
        ("mi300x-8gpu-cpx", {"family": "AI", "device-id": "74a1", "cu-count": "38", "simd-count": "152"}, 63),
        ("mi300a-4apu-spx", {"family": "AI", "product-name": "AMD_Instinct_MI300A", "cu-count": "228"}, 4),
        (
            "apu-strixpoint-890m",
            {"family": "GC_11_5_0", "device-id": "150e", "vram": "15G", "cu-count": "12"},
            1,
        ),
        ("vega10-single-legacy-kernel", {"device-id": "6860", "vram": "16G", "cu-count": "64"}, 2),
    ],
)
def test_captured_nodes(snapshots: Path, name: str, values: dict[str, str], count: int) -> None:
    made = of(LinuxHost(str(snapshots / name)))
    assert legal(made)
    for key, value in values.items():
        assert made[f"amd.com/gpu.{key}"] == value
        assert made[f"beta.amd.com/gpu.{key}.{value}"] == str(count)


@pytest.mark.snapshots
def test_an_old_kernel_without_gfx_version_has_no_family_and_everything_else(snapshots: Path) -> None:
    made = of(LinuxHost(str(snapshots / "vega10-single-legacy-kernel")))
    assert not [key for key in made if ".family" in key]
    assert made["amd.com/gpu.vram"] == "16G", "17163091968 bytes are rounded to the nearest GiB"


@pytest.mark.snapshots
@pytest.mark.parametrize("name", ["gcn1-hd7870-radeon-driver", "rdna2-rx6900xt"])
def test_captures_without_kfd_have_no_labels(snapshots: Path, name: str) -> None:
    assert of(LinuxHost(str(snapshots / name))) == {}


# ------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("gfx", "name"),
    [
        (110000, "GC_11_0_0"),
        (100305, "YC"),
        (110003, "GC_11_0_1"),
        (100306, "GC_10_3_6"),
        (110500, "GC_11_5_0"),
        (120001, "GC_12_0_0"),
        (90402, "AI"),
        (90500, "AI"),
        (100300, "NV"),
        (100303, "VGH"),
        (0, None),
        (999999, None),
    ],
)
def test_families_by_gfx_version(gfx: int, name: str | None) -> None:
    assert family(gfx) == name


def test_every_product_that_can_be_simulated_has_a_family() -> None:
    assert {p.name for p in PRODUCTS.values() if family(p.gfx) is None} == set()


@given(st.text(max_size=100), st.integers(1, 63))
def test_any_text_becomes_a_legal_value_or_nothing(text: str, longest: int) -> None:
    value = label_value(text, longest)
    assert VALUE.fullmatch(value)
    assert len(value) <= longest
    assert label_value(value, longest) == value


TEXTS = st.text("aA0 _.-/()é", max_size=70)
AGENTS = st.builds(
    Agent,
    gfx=st.sampled_from([0, 90402, 120000]),
    device_id=st.one_of(st.none(), st.integers(0, 0xFFFF)),
    simds=st.integers(0, 2000),
    cus=st.integers(0, 500),
    bank_bytes=st.one_of(st.none(), st.integers(0, 300 * GIB)),
    product_name=TEXTS,
)
FACTS = st.builds(
    LabelFacts,
    agents=st.lists(AGENTS, max_size=4).map(tuple),
    configurations=st.lists(st.sampled_from(["spx_nps1", "cpx_nps4"]), max_size=3).map(tuple),
    compute_partitioning=st.one_of(st.none(), st.booleans()),
    memory_partitioning=st.one_of(st.none(), st.booleans()),
    driver_version=TEXTS,
    driver_source=TEXTS,
)


@given(FACTS, st.sets(st.sampled_from(ALL)))
def test_every_label_of_any_node_is_legal_and_ours(facts: LabelFacts, chosen: set[str]) -> None:
    made = labels(facts, chosen)
    assert legal(made)
    assert all(is_managed(name) for name in made)
    assert list(made) == sorted(made)
    for name in chosen:
        single = made.get(f"amd.com/gpu.{name}")
        several = [key for key in made if key.startswith(f"amd.com/gpu.{name}.")]
        assert single is None or not several


# ------------------------------------------------------------------ clean-up


def test_ours_are_twelve_properties_in_two_domains_and_what_is_below_them() -> None:
    assert len(GENERATORS) == 12
    for name in GENERATORS:
        for domain in ("amd.com", "beta.amd.com"):
            assert is_managed(f"{domain}/gpu.{name}")
            assert is_managed(f"{domain}/gpu.{name}.x")
    for foreign in (
        "amd.com/cpu",
        "amd.com/gpu",
        "amd.com/mi300x",
        "amd.com/gpu.vramx",
        "amd.com/gpu.vram-x",
        "amd.com/gpu.count",
        "gamma.amd.com/gpu.vram",
        "gpu.vram",
        "kubernetes.io/hostname",
    ):
        assert not is_managed(foreign)


def test_changes_remove_what_does_not_hold_and_keep_what_is_not_ours() -> None:
    have = {
        "amd.com/gpu.vram": "288G",
        "beta.amd.com/gpu.vram.64G": "8",
        "beta.amd.com/gpu.firmware.SMC.fw.42": "1",
        "amd.com/gpu.family": "AI",
        "amd.com/cpu": "x",
        "amd.com/gpu": "y",
        "amd.com/mi300x": "z",
    }
    want = {"amd.com/gpu.vram": "144G", "amd.com/gpu.family": "AI", "amd.com/gpu.cu-count": "128"}
    assert changes(have, want) == {
        "amd.com/gpu.vram": "144G",
        "amd.com/gpu.cu-count": "128",
        "beta.amd.com/gpu.vram.64G": None,
        "beta.amd.com/gpu.firmware.SMC.fw.42": None,
    }
    assert changes(want, want) == {}


KEYS = st.sampled_from(
    [
        "amd.com/gpu.vram",
        "amd.com/gpu.vram.1G",
        "beta.amd.com/gpu.family.AI",
        "amd.com/gpu",
        "amd.com/x",
        "x/y",
    ]
)
SMALL = st.dictionaries(KEYS, st.sampled_from(["1", "2"]))


@given(SMALL, SMALL)
def test_a_patched_node_has_what_is_wanted_and_all_that_is_not_ours(
    have: dict[str, str], want: dict[str, str]
) -> None:
    want = {name: value for name, value in want.items() if is_managed(name)}
    patched = dict(have)
    for name, value in changes(have, want).items():
        if value is None:
            del patched[name]
        else:
            assert patched.get(name) != value, "only differences are patched"
            patched[name] = value
    assert {name: value for name, value in patched.items() if is_managed(name)} == want
    foreign = {name: value for name, value in have.items() if not is_managed(name)}
    assert {name: value for name, value in patched.items() if not is_managed(name)} == foreign
