"""Names of GPUs and partitions: amd.md 2.5, 14.1 and decisions 10 to 12."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.uuid import is_bdf, normal_bdf, own_id, partition_id, rocr_name, smi_uuid, strip_mode

SERIALS = st.integers(1, 2**64 - 1)
BDFS = st.builds("{:04x}:{:02x}:{:02x}.{}".format, *map(st.integers, [0] * 4, [0xFFFF, 0xFF, 0x1F, 7]))
GRAMMAR = re.compile(r"[^:,;#]+")


@pytest.mark.parametrize(
    ("serial", "device", "uuid"),
    [
        (0x8E1BB56457ADDD1B, 0x74B5, "8eff74b5-0000-1000-801b-b56457addd1b"),
        (0x3321340866BA8C47, 0x7590, "33ff7590-0000-1000-8021-340866ba8c47"),
        (14279437984431637507, 0x75A3, "c6ff75a3-0000-1000-802a-c130ee448403"),
        (637966063454657373, 0x75A3, "08ff75a3-0000-1000-80da-82c12ef81b5d"),
        (0, 0x75A3, "00ff75a3-0000-1000-8000-000000000000"),
    ],
)
def test_amd_smis_uuid_is_arithmetic_over_serial_and_device_id(serial: int, device: int, uuid: str) -> None:
    assert smi_uuid(serial, device) == uuid


def test_a_partitions_id_has_its_number_where_the_whole_gpu_has_ff() -> None:
    assert partition_id("c6ff75a3-0000-1000-802a-c130ee448403", 2) == "c60275a3-0000-1000-802a-c130ee448403"


@given(SERIALS, st.integers(0, 0xFFFF), SERIALS, st.integers(0, 0xFFFF))
def test_no_two_partitions_of_any_two_gpus_share_an_id(a: int, device_a: int, b: int, device_b: int) -> None:
    wholes = {smi_uuid(a, device_a), smi_uuid(b, device_b)}
    ids = {partition_id(whole, number) for whole in wholes for number in range(8)} | wholes
    assert len(ids) == 9 * len(wholes)


@given(BDFS, BDFS)
def test_own_ids_are_distinct_and_hold_no_annotation_grammar(a: str, b: str) -> None:
    names = [own_id("node-1.example", a), *(partition_id(own_id("node-1.example", a), p) for p in range(8))]
    names += [own_id("node-1.example", b)] if a != b else []
    assert len(set(names)) == len(names)
    assert all(GRAMMAR.fullmatch(name) for name in names)


def test_b39_a_gpu_without_serial_is_named_after_its_node() -> None:
    assert own_id("worker-7", "0000:c1:00.0") == "AMD-worker-7-0000-c1-00-0"
    assert own_id("worker-7", "0000:c1:00.0") != own_id("worker-8", "0000:c1:00.0")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("GPU-466450b96fbde849#cpx", "GPU-466450b96fbde849"),
        ("uuid#spx", "uuid"),
        ("uuid#tpx", "uuid"),
        ("uuid#0", "uuid#0"),
        ("8eff74b5-0000-1000-801b-b56457addd1b", "8eff74b5-0000-1000-801b-b56457addd1b"),
    ],
)
def test_a_mode_suffix_of_older_versions_is_ignored_on_input(text: str, plain: str) -> None:
    assert strip_mode(text) == plain


def test_rocr_names_a_node_by_sixteen_hex_digits() -> None:
    assert rocr_name(637966063454657373) == "GPU-08da82c12ef81b5d"


@pytest.mark.parametrize(
    ("text", "bdf"),
    [
        (" 0000:83:00.0 ", "0000:83:00.0"),
        ("0000:83:00:0", "0000:83:00.0"),
        ("0000:06:00:0", "0000:06:00.0"),
        ("0000:06:00.0", "0000:06:00.0"),
        ("0000:0A:00.0", "0000:0a:00.0"),
        ("not-a-bdf", "not-a-bdf"),
    ],
)
def test_bdf_normalisation(text: str, bdf: str) -> None:
    assert normal_bdf(text) == bdf


@given(st.text(max_size=30))
def test_normalising_twice_is_normalising_once(text: str) -> None:
    assert normal_bdf(normal_bdf(text)) == normal_bdf(text)


@given(BDFS)
def test_every_address_of_the_kernel_is_recognised_and_kept(bdf: str) -> None:
    assert is_bdf(bdf)
    assert normal_bdf(bdf) == bdf
