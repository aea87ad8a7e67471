"""KFD's text format: amd.md 14.1, kernel.md 1.2 and 1.8, B06."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.topology import NODES, TopologyError, parse_properties, read_topology
from devplugin.linux import LinuxHost

from ..small_nodes import cpu_node, gpu_node, kfd_node, machine

NAMES = st.text("abcdefghijklmnopqrstuvwxyz_0123456789", min_size=1, max_size=30)
VALUES = st.integers(0, 2**64 - 1)


@given(st.dictionaries(NAMES, VALUES, max_size=60))
def test_every_line_reads_back_by_its_exact_name(values: dict[str, int]) -> None:
    parsed = parse_properties("".join(f"{name} {value}\n" for name, value in values.items()).encode())
    assert {name: parsed.get(name) for name in values} == values
    assert parsed.get("Not a name") is None


@given(st.binary(max_size=400))
def test_no_bytes_make_the_parser_stumble(raw: bytes) -> None:
    assert parse_properties(raw).get("simd_count") is None or b"simd_count" in raw.replace(b"\0", b"")


def test_a_name_is_not_found_inside_a_longer_name() -> None:
    assert parse_properties(b"cu_per_simd_count 7\nsimd_count_x 8\n").get("simd_count") is None


def test_of_two_lines_with_one_name_the_first_counts() -> None:
    assert parse_properties(b"simd_count 4\nsimd_count 8\n").get("simd_count") == 4


def test_nul_padding_of_captures_is_dropped() -> None:
    assert parse_properties(b"simd_count 4\nsimd_per_cu 2\0\0\0\0").get("simd_per_cu") == 2


@pytest.mark.parametrize("text", ["-4", "0x10", "4 5", "", "four", "18446744073709551616", "9" * 40])
def test_what_is_no_unsigned_64_bit_decimal_is_no_value(text: str) -> None:
    assert parse_properties(f"simd_count {text}\n".encode()).get("simd_count") is None


def test_a_line_over_64_kib_is_an_error_and_not_a_missing_line() -> None:
    with pytest.raises(TopologyError, match="line too long"):
        parse_properties(b"x" * 131072 + b"\nsimd_count 4\n")


def test_a_long_file_of_short_lines_is_fine() -> None:
    assert parse_properties(b"padding 1\n" * 20000 + b"simd_count 4\n").get("simd_count") == 4


def test_b06_a_cpu_is_no_gpu_and_the_gfx_version_is_a_line_not_a_file() -> None:
    host = machine(cpu_node(0), gpu_node(1, 128, 0x500, 304))
    topology = read_topology(host)
    assert topology.cpus == 1
    assert [(n.index, n.render_minor, n.gfx, n.cus) for n in topology.gpus] == [(1, 128, 90402, 304)]
    assert not any(path.endswith("gfx_target_version") for _, path in host.asked)


def test_nodes_come_in_numeric_order_and_other_names_are_passed_over() -> None:
    host = machine(*(gpu_node(i, 120 + i, i << 8, 38) for i in (10, 9, 8)), {f"{NODES}/extra/properties": ""})
    assert [n.index for n in read_topology(host).gpus] == [8, 9, 10]


def test_a_node_the_device_cgroup_forbids_does_not_hide_the_later_ones() -> None:
    host = machine(cpu_node(0), *(gpu_node(i, 127 + i, i << 8, 38) for i in (1, 2, 3)))
    host.tree[f"{NODES}/2/properties"] = errno.EPERM
    host.tree[f"{NODES}/2/gpu_id"] = errno.EPERM
    topology = read_topology(host)
    assert [n.index for n in topology.gpus] == [1, 3]
    assert [(u.index, u.reason) for u in topology.unreadable] == [(2, f"{NODES}/2/properties: EPERM")]


def test_an_unreadable_node_with_gpu_id_0_is_a_cpu() -> None:
    host = machine(cpu_node(0))
    del host.tree[f"{NODES}/0/properties"]
    assert read_topology(host).cpus == 1
    assert read_topology(host).unreadable == ()


@pytest.mark.parametrize("text", ["", "\n", "garbage\n", "\0\0\0", "simd_count many\n"])
def test_a_node_that_says_nothing_is_told_as_unreadable(text: str) -> None:
    topology = read_topology(machine({f"{NODES}/4/properties": text}))
    assert [u.index for u in topology.unreadable] == [4]


def test_without_the_driver_there_is_no_topology_and_a_reason() -> None:
    assert read_topology(machine()).missing == f"{NODES}: ENOENT"


def test_legacy_nodes_without_newer_lines_are_read() -> None:
    host = machine(kfd_node(1, simd_count=256, simd_per_cu=4, drm_render_minor=128, location_id=6400))
    (node,) = read_topology(host).gpus
    assert (node.cus, node.domain, node.slot, node.xccs, node.gfx) == (64, None, None, None, 0)


@pytest.mark.snapshots
def test_topology_parsing_of_the_recorded_vega10(snapshots: Path) -> None:
    host = LinuxHost(str(snapshots / "vega10-single-legacy-kernel"))
    topology = read_topology(host)
    assert len(topology.gpus) == 2
    assert {n.render_minor: f"{n.unique_id:016x}" for n in topology.gpus} == {
        128: "c34ec50444dd0a6c",
        129: "c34ec50444dd0a6d",
    }
    assert [n.slot for n in topology.gpus] == [None, None]
    bank = parse_properties(host.read(f"{NODES}/1/mem_banks/0/properties"))
    assert (bank.get("size_in_bytes"), bank.get("flags")) == (17163091968, 0)
    second = parse_properties(host.read(f"{NODES}/2/properties"))
    assert (second.get("simd_count"), second.get("simd_id_base")) == (256, 2147487744)
    with pytest.raises(TopologyError, match="asdf"):
        second.require("asdf")


@pytest.mark.snapshots
def test_computing_queues_of_the_recorded_mi300x(snapshots: Path) -> None:
    topology = read_topology(LinuxHost(str(snapshots / "mi300x-8gpu-cpx")))
    queues = {n.index: n.compute_queues for n in topology.gpus}
    assert queues[32] == 24
    assert 9999 not in queues
    assert (topology.cpus, len(topology.gpus)) == (2, 63)
    assert [n.render_minor for n in topology.gpus] == list(range(128, 191))


def test_mi308_render_minors_fall_on_their_gpus() -> None:
    """The 32 nodes of the recorded MI308X server, from the numbers of amd.md 14.1."""
    gpus = [(0, 0x0A), (0, 0x80), (0, 0xA4), (0, 0xC8), (1, 0x0B), (1, 0x81), (1, 0xA5), (1, 0xC9)]
    nodes = [
        gpu_node(2 + 4 * g + p, 128 + 8 * g + p, bus << 8 | p, 20, domain=domain, num_xcc=1, device_id=0x74A2)
        for g, (domain, bus) in enumerate(gpus)
        for p in range(4)
    ]
    topology = read_topology(machine(cpu_node(0), cpu_node(1), *nodes))
    assert {n.render_minor: n.slot for n in topology.gpus} == {
        128 + 8 * g + p: (domain, bus, 0) for g, (domain, bus) in enumerate(gpus) for p in range(4)
    }
    assert [n.index for n in topology.gpus] == list(range(2, 34))
