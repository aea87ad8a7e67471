"""Reading and writing fixtures: what they may say, and what a refusal tells."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from gpusim import fixture, fixturekeys
from gpusim.amd.check import check
from gpusim.amd.products import PRODUCTS
from gpusim.fixture import BadFixture, dump, load, loads, names
from gpusim.spec import CardSpec, Cpus, GpuSpec, NodeSpec, NpuSpec, PpuSpec, SpecError

QPX = """
about: two GPUs in QPX
kernel: 6.14
driver: dkms-6.14.14
gpus:
  product: MI355X
  bdf: [0000:75:00.0, 0000:05:00.0]
  numa: [0, 1]
  mode: QPX
"""

UNEVEN = "cpus: {nodes: 3, distance: {sockets: 2, within: 12, between: 32}}\n"


def refusal(text: str) -> BadFixture:
    with pytest.raises(BadFixture) as caught:
        loads(text, path="x.yaml")
    assert caught.value.path == "x.yaml"
    assert str(caught.value).startswith("x.yaml")
    return caught.value


def with_gpu(line: str) -> str:
    return QPX + f"  {line}\n"


def test_a_single_value_stands_for_all_gpus_and_a_list_for_one_each() -> None:
    spec = loads(QPX)
    assert [(g.bdf, g.numa, g.mode) for g in spec.gpus] == [
        ("0000:75:00.0", 0, "QPX"),
        ("0000:05:00.0", 1, "QPX"),
    ]


def test_a_list_of_mappings_says_the_same_as_the_short_form() -> None:
    long = """
kernel: "6.14"
driver: dkms-6.14.14
gpus:
  - {product: MI355X, bdf: "0000:75:00.0", mode: QPX}
  - {product: MI355X, bdf: "0000:05:00.0", numa: 1, mode: QPX}
"""
    assert loads(long) == loads(QPX)


def test_what_is_not_said_is_the_default_of_the_spec() -> None:
    assert loads("kernel: 6.14\n", name="empty") == NodeSpec("empty", "6.14")


def test_every_field_of_the_spec_has_a_key() -> None:
    assert {f.name for f in fields(GpuSpec)} == set(fixturekeys.GPU_KEYS)
    assert {f.name for f in fields(NpuSpec)} == set(fixturekeys.NPU_KEYS)
    assert {f.name for f in fields(PpuSpec)} == set(fixturekeys.PPU_KEYS)
    assert {f.name for f in fields(CardSpec)} == set(fixturekeys.CARD_KEYS)
    assert {f.name for f in fields(Cpus)} == {*fixturekeys.CPU_KEYS, "distance"}
    apart = {"cpus", "gpus", "npus", "ppus", "cards"}
    assert {f.name for f in fields(NodeSpec)} == {*fixturekeys.NODE_KEYS, *apart}


def test_plain_scalars_are_no_trap() -> None:
    """6.10 is no number 6.1, 0000:05:00.0 no sexagesimal one, and no is a name like any other."""
    spec = loads("name: no\nkernel: 6.10\ngpus: {product: MI300X, bdf: 0000:05:00.0}\n")
    assert (spec.name, spec.kernel, spec.gpus[0].bdf) == ("no", "6.10", "0000:05:00.0")


def test_sizes_take_a_unit_and_ids_hexadecimal() -> None:
    gpu = loads(with_gpu("unique_id: [0xc6802ac130ee4484, 7]\n  vram_used: 2 GiB")).gpus[0]
    assert (gpu.unique_id, gpu.vram_used) == (0xC6802AC130EE4484, 2 << 30)


def test_distances_by_socket_are_the_full_matrix() -> None:
    cpus = loads("kernel: 6.14\ncpus: {nodes: 4, distance: {sockets: 2, within: 12, between: 32}}").cpus
    assert cpus.distance == ((10, 12, 32, 32), (12, 10, 32, 32), (32, 32, 10, 12), (32, 32, 12, 10))


def test_null_is_said_where_a_thing_is_absent() -> None:
    gpu = loads(with_gpu("bound: null").replace("[0, 1]", "[0, null]")).gpus[1]
    assert (gpu.numa, gpu.bound) == (None, None)


@pytest.mark.parametrize(
    ("text", "key", "line", "why"),
    [
        (QPX.replace("QPX\n", "QPS\n"), "$.gpus.mode", 9, "found QPS, allowed: SPX, DPX, TPX, QPX, CPX"),
        (QPX.replace("QPX\n", "qpx\n"), "$.gpus.mode", 9, "did you mean QPX?"),
        (QPX.replace("product", "produkt"), "$.gpus.produkt", 6, "unknown key (did you mean product?)"),
        (QPX.replace("kernel", "kernal"), "$.kernal", 3, "did you mean kernel?"),
        (QPX + "wobble: 3\n", "$.wobble", 10, "unknown key, allowed: name, kernel"),
        (QPX.replace("  product: MI355X\n", ""), "$.gpus", 6, "the key product is missing"),
        (QPX.replace("MI355X", "MI355"), "$.gpus.product", 6, "did you mean MI355X?"),
        (QPX.replace("[0, 1]", "[0]"), "$.gpus.numa", 8, "found 1 values for 2 addresses"),
        (QPX.replace("[0, 1]", '[0, "1"]'), "$.gpus.numa[1]", 8, "without quotes"),
        (QPX.replace("[0, 1]", "[0, [1]]"), "$.gpus.numa[1]", 8, "found a list of 1"),
        (QPX.replace("0000:05:00.0", "0000:05:00.8"), "$.gpus.bdf[1]", 7, "a PCI address"),
        (QPX.replace("0000:05", "0000:0A"), "$.gpus.bdf[1]", 7, "in lower case"),
        (QPX.replace("dkms-6.14.14", "dkms"), "$.driver", 4, "in-tree, or dkms- and a version"),
        (QPX.replace("6.14\n", "six\n", 1), "$.kernel", 3, "found six"),
        (QPX + "bmc: yes\n", "$.bmc", 10, "found yes, allowed: true or false"),
        (QPX + "kernel: 6.8\n", "$", 10, "the key 'kernel' stands twice"),
        (with_gpu("mode: SPX"), "$", 10, "the key 'mode' stands twice"),
        (with_gpu("fused: {0: [0x1ff, zz]}"), "$.gpus.fused.0[1]", 10, "found zz"),
        (with_gpu("fused: {x: [0x1ff]}"), "$.gpus.fused", 10, "a mapping from XCC number"),
        (with_gpu("vram_used: 3MB"), "$.gpus.vram_used", 10, "KiB, MiB, GiB or TiB"),
        (with_gpu("subsystem: 4098"), "$.gpus.subsystem", 10, "1002:75a3"),
        (QPX + UNEVEN, "$.cpus.distance.sockets", 10, "3 nodes do not spread evenly over 2"),
        (QPX + "cpus: {distance: [[10, 20]]}\n", "$.cpus.distance", 10, "2 by 2"),
        (QPX + "cpus: [1]\n", "$.cpus", 10, "found a list of 1, allowed: a mapping"),
        (QPX + "cards: {}\n", "$.cards", 10, "a list of displays"),
        (QPX + "cards:\n - {driver: ast}\n", "$.cards[0]", 11, "the key bdf is missing"),
        ("gpus: [3]\nkernel: 6.14", "$.gpus[0]", 1, "found 3, allowed: a mapping"),
        ("gpus: 3\nkernel: 6.14", "$.gpus", 1, "a list of GPUs, or one mapping for all"),
        ("driver: in-tree\n", "$", 1, "the key kernel is missing"),
        ("- 1\n", "$", 1, "found a list of 1"),
        ("", "$", None, "the document is empty"),
        ("kernel: [\n", "$", 2, "not YAML"),
        ("kernel: 6.14\n---\nkernel: 6.8\n", "$", 2, "another document"),
        ("kernel: !!python/name:os.system x\n", "$", 1, "tags such as"),
        ("kernel: &a [*a]\n", "$", 1, "an alias points into itself"),
        ("? [1]\n: 2\n", "$", 1, "a key must be a single word"),
        ("[" * 5000, "$", 1, "nest"),
    ],
)  # fmt: skip
def test_a_refusal_names_file_line_key_what_was_found_and_what_is_allowed(
    text: str, key: str, line: int | None, why: str
) -> None:
    error = refusal(text)
    assert (error.key, error.line) == (key, line), str(error)
    assert why in error.why


@pytest.mark.parametrize(
    ("text", "key", "why"),
    [
        (with_gpu("nps: 2"), "$.gpus.mode", "QPX"),
        (with_gpu("nps: [1, 2]"), "$.gpus.mode", "QPX"),
        (QPX.replace("mode: QPX", "mode: [SPX, TPX]"), "$.gpus.mode[1]", "TPX"),
        (QPX.replace("[0, 1]", "[0, 7]"), "$.gpus.numa[1]", "7"),
        (QPX.replace("0000:05", "0000:75"), "$.gpus.bdf[1]", "0000:75:00.0"),
        (with_gpu("nps: 4"), "$.gpus.nps", "NPS4"),
        (with_gpu("vram_bytes: 1"), "$.gpus.vram_bytes", "from 1 MiB to 64 TiB, not 1 bytes"),
        (with_gpu("vram_bytes: [1GiB, 65TiB]"), "$.gpus.vram_bytes[1]", "from 1 MiB to 64 TiB"),
        (with_gpu("vram_bytes: 16MiB"), "$.gpus.vram_used", "between 0 and the GPU's 16777216 bytes"),
        (with_gpu("xgmi_physical: 3"), "$.gpus.xgmi_physical", "already that of gpus[0]"),
    ],
)
def test_an_impossible_node_is_refused_at_the_place_where_the_fixture_says_it(
    text: str, key: str, why: str
) -> None:
    error = refusal(text)
    assert error.key.startswith(key)
    assert error.line is not None
    assert why in error.why


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (QPX.replace("[0, 1]", f"[0, {'9' * 5000}]"), "$.gpus.numa[1]"),
        (with_gpu(f"vram_bytes: {'9' * 5000}TiB"), "$.gpus.vram_bytes"),
        (with_gpu(f"vram_bytes: {'9' * 5000}"), "$.gpus.vram_bytes"),
        (with_gpu(f"unique_id: 0x{'f' * 5000}"), "$.gpus.unique_id"),
        (with_gpu(f"fused:\n    ? {'9' * 5000}\n    : 0"), "$.gpus.fused"),
        (QPX + f"seed: {'9' * 5000}\n", "$.seed"),
        (QPX + f"cpus: {{distance: {'9' * 5000}}}\n", "$.cpus.distance"),
        (QPX.replace("6.14\n", f"6.{'9' * 5000}\n", 1), "$.kernel"),
        (QPX.replace("dkms-6.14.14", f"dkms-6.{'9' * 5000}"), "$.driver"),
    ],
)
def test_a_number_longer_than_python_reads_is_refused_at_its_place(text: str, key: str) -> None:
    error = refusal(text)
    assert (error.key, error.line is None) == (key, False)


def test_keys_and_check_allow_the_same() -> None:
    for key, low, high in (("pcie_generation", 1, 5), ("minors_per_type", 64, 64)):
        loads(QPX + f"{key}: {low}\n")
        loads(QPX + f"{key}: {high}\n")
        for value in (low - 1, high + 1):
            assert "allowed: " in refusal(QPX + f"{key}: {value}\n").why


def test_an_impossible_gpu_of_a_list_is_named_by_its_number() -> None:
    text = "kernel: 6.14\ndriver: dkms-6.14.14\ngpus:\n"
    text += (
        ' - {product: MI355X, bdf: "0000:01:00.0"}\n - {product: RX9070XT, bdf: "0000:02:00.0", mode: CPX}\n'
    )
    error = refusal(text)
    assert (error.key, error.line) == ("$.gpus[1].mode", 5)


def test_aliases_cannot_make_a_small_file_large() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40))
    assert refusal(bomb).key == "$.a0"


def test_a_name_finds_the_shipped_fixture_and_a_path_the_file(tmp_path: Path) -> None:
    by_name = load("mi355x/qpx-6.14")
    assert by_name.name == "mi355x/qpx-6.14"
    assert load(fixture.SHIPPED / "mi355x" / "qpx-6.14.yaml") == by_name
    assert load("fixtures/mi355x/qpx-6.14.yaml") == by_name
    own = tmp_path / "mine.yaml"
    own.write_text(QPX)
    assert load(own).name == "mine"


def test_an_unknown_name_tells_near_ones() -> None:
    with pytest.raises(BadFixture, match=re.escape("near: mi355x/qpx-6.14")) as caught:
        load("mi355x/qpx-6.15")
    assert caught.value.path == "mi355x/qpx-6.15"
    with pytest.raises(BadFixture, match="is a directory"):
        load(fixture.SHIPPED)


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    odd = tmp_path / "odd.yaml"
    odd.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFixture, match="not UTF-8"):
        load(odd)


def test_a_dump_says_only_what_is_particular() -> None:
    text = dump(loads(QPX, name="two"))
    assert text.splitlines() == [
        "name: two",
        'kernel: "6.14"',
        "driver: dkms-6.14.14",
        "gpus:",
        "  product: MI355X",
        '  bdf: ["0000:75:00.0", "0000:05:00.0"]',
        "  numa: [0, 1]",
        "  mode: QPX",
    ]


U64 = st.integers(0, 2**64 - 1)


@st.composite
def nodes(draw: st.DrawFn) -> NodeSpec:
    """Any possible node; shrinks to one GPU in SPX of one host."""
    count = draw(st.integers(1, 4))
    nodes = draw(st.integers(1, 3))
    distance = st.integers(0, 255)
    row = st.tuples(*[distance] * nodes)
    cpus = Cpus(
        vendor=draw(st.sampled_from(["amd", "intel"])),
        nodes=nodes,
        threads_per_node=draw(st.integers(1, 512)),
        first_apic_ids=tuple(draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3))),
        distance=draw(distance | st.tuples(*[row] * nodes)),
        max_mhz=draw(st.integers(0, 6000)),
        bytes_per_node=tuple(draw(st.lists(st.integers(1, 2**50), min_size=1, max_size=2))),
    )
    gpus = [_gpu(draw, i, nodes) for i in range(count)]
    cards = [
        CardSpec("i915", f"0001:{i:02x}:00.0", draw(st.integers(0, 65535)), 7, draw(st.booleans()), i)
        for i in range(draw(st.integers(0, count)))
    ]
    spec = NodeSpec(
        name=draw(st.text(min_size=1)),
        kernel=draw(st.sampled_from(["6.14", "6.8.0-136-generic", "7.0", "6.12.30+deb13"])),
        driver=draw(st.sampled_from(["dkms-6.14.14", "in-tree", "dkms-6.16.13"])),
        gpus=tuple(gpus),
        cpus=cpus,
        bmc=draw(st.booleans()),
        cards=tuple(cards),
        kfd_partitions=draw(st.sampled_from(["listed", "hidden", "truncated"])),
        seed=draw(U64),
        pcie_generation=draw(st.integers(1, 5)),
        large_bar=draw(st.booleans()),
        p2p=draw(st.booleans()),
        platform_oem=draw(U64),
        platform_id=draw(U64),
        platform_rev=draw(U64),
        minors_per_type=draw(st.sampled_from([None, 64])),
        cgroup_driver=draw(st.sampled_from(["systemd", "cgroupfs"])),
        dmem_regions=draw(st.sampled_from([None, True, False])),
    )
    try:
        check(spec)
    except SpecError:
        assume(False)
    return spec


def _gpu(draw: st.DrawFn, index: int, nodes: int) -> GpuSpec:
    product = PRODUCTS[draw(st.sampled_from(["MI355X", *sorted(PRODUCTS)]))]
    mode = st.sampled_from(["SPX", "CPX"]) if product.partitionable else st.just("SPX")
    arrays = product.engines * product.arrays
    bitmap = st.integers(0, 2**product.cus_per_array - 1)
    chosen: dict[str, Any] = {
        "numa": st.integers(-1, nodes - 1) | st.none(),
        "unique_id": st.none() | U64,
        "hive_id": st.none() | U64,
        "boot_mode": st.none() | mode,
        "bound": st.sampled_from(["amdgpu", "vfio-pci", None]),
        "subsystem": st.none() | st.tuples(st.integers(0, 65535), st.integers(0, 65535)),
        "fw_version": st.none() | st.integers(0, 2**32 - 1),
        "sdma_fw_version": st.none() | st.integers(0, 2**32 - 1),
        "gtt_bytes": st.none() | st.integers(1, 2**50),
        "vram_used": st.integers(0, 2**20),
        "xgmi_physical": st.none() | st.integers(0, 7),
        "fused": st.dictionaries(st.integers(0, product.xccs - 1), st.tuples(*[bitmap] * arrays), max_size=2),
    }
    said = draw(st.sets(st.sampled_from(sorted(chosen)), max_size=5))
    return GpuSpec(
        product=product.name,
        bdf=f"{draw(st.integers(0, 2**32 - 1)):04x}:{0x10 + index:02x}:00.0",
        mode=draw(mode),
        **{key: draw(chosen[key]) for key in sorted(said)},
    )


@given(nodes())
def test_what_is_written_reads_back_as_the_same_node(spec: NodeSpec) -> None:
    assert loads(dump(spec)) == spec


@given(
    st.sampled_from(fixture.names()),
    st.integers(0),
    st.text("[]{}:,&*!|>-?'\"#% \n0azQ", max_size=4),
    st.integers(0, 8),
)
def test_a_damaged_fixture_reads_or_is_refused_and_never_fails_otherwise(
    name: str, at: int, put: str, cut: int
) -> None:
    text = fixture.find(name).read_text()
    at %= len(text)
    try:
        assert isinstance(loads(text[:at] + put + text[at + cut :]), NodeSpec)
    except BadFixture as error:
        assert error.key.startswith("$")
        assert error.why


@given(st.text())
def test_any_text_reads_or_is_refused(text: str) -> None:
    try:
        loads(text)
    except BadFixture as error:
        assert error.why


def test_a_yaml_library_without_libyaml_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {name: load(name) for name in names()}
    monkeypatch.setattr("gpusim.yamlnode._LOADER", yaml.SafeLoader)
    assert {name: load(name) for name in names()} == quick
