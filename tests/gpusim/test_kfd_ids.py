"""gpu_id, memory shares and invented ids: the vectors of kernel.md and the rules between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.amd.kfd_ids import (
    crc16,
    die_id,
    free_id,
    gpu_id,
    invented,
    legacy_gpu_id,
    parse_bdf,
    partition_bytes,
)

MI355X = 309220868096
MIB = 1 << 20


def test_the_crc_is_the_usual_one() -> None:
    assert crc16(b"123456789") == 0xBB3D  # CRC-16/ARC check value


@pytest.mark.parametrize(
    ("parts", "ids"),
    [
        (1, [17010]),
        (2, [29047, 16758]),
        (4, [51444, 28917, 63733, 16628]),
        (8, [13364, 51253, 35893, 28724, 1077, 63540, 48180, 16437]),
    ],
)
def test_gpu_ids_of_an_mi355x_in_every_mode(parts: int, ids: list[int]) -> None:
    found = []
    for part in range(parts):
        memory = partition_bytes(MI355X, 1, parts, part)
        xccs = (part * 8 // parts, 8 // parts)
        found.append(gpu_id("0000:75:00.0", (0x1002, 0x75A3), 0x75A3, memory, xccs, ()))
    assert found == ids


def test_gpu_id_of_the_captured_apu() -> None:
    assert gpu_id("0000:c1:00.0", (0x17AA, 0x3801), 0x150E, 16441004032, (0, 1), ()) == 59419


def test_gpu_id_of_the_captured_5x_kernel() -> None:
    assert legacy_gpu_id("0000:19:00.0", (0x1002, 0x6C75), 0x6860, 17163091968, ()) == 13261


@pytest.mark.parametrize(
    ("wanted", "taken", "given_id"),
    [(5, (), 5), (0, (), 1), (5, (5, 6), 7), (65535, (65535,), 1), (65534, (65534, 65535, 1), 2)],
)
def test_a_taken_gpu_id_moves_to_the_next_free_one_and_never_to_0(
    wanted: int, taken: tuple[int, ...], given_id: int
) -> None:
    assert free_id(wanted, taken) == given_id


@given(st.integers(0, 65535), st.sets(st.integers(0, 65535), max_size=64))
def test_a_gpu_id_is_16_bits_not_0_and_free(wanted: int, taken: set[int]) -> None:
    found = free_id(wanted, taken)
    assert 0 < found < 65536
    assert found not in taken


@pytest.mark.parametrize(("parts", "mib"), [(1, 294896), (2, 147448), (4, 73724), (8, 36862)])
def test_partitions_of_an_mi355x_share_its_pool_equally_in_nps1(parts: int, mib: int) -> None:
    assert {partition_bytes(MI355X, 1, parts, part) // MIB for part in range(parts)} == {mib}


@pytest.mark.parametrize(
    ("parts", "sizes"),
    [
        (2, [154618822656, 154602045440]),
        (4, [77309411328] * 2 + [77301022720] * 2),
        (8, [38654705664] * 4 + [38650511360] * 4),
    ],
)
def test_the_last_memory_partition_of_nps2_is_16_mib_smaller(parts: int, sizes: list[int]) -> None:
    assert [partition_bytes(MI355X, 2, parts, part) for part in range(parts)] == sizes


def test_the_captured_mi308x_in_nps4() -> None:
    total = 206141652992
    assert [partition_bytes(total, 4, 4, part) for part in range(4)] == [51539607552] * 3 + [51522830336]


@given(
    st.integers(1 << 20, 1 << 40).map(lambda mib: mib * 4096),
    st.sampled_from([(1, 1), (1, 2), (1, 4), (1, 8), (1, 3), (2, 2), (2, 4), (2, 8), (4, 4), (4, 8)]),
)
def test_shares_are_whole_pages_and_never_more_than_the_card(total: int, layout: tuple[int, int]) -> None:
    nps, parts = layout
    shares = [partition_bytes(total, nps, parts, part) for part in range(parts)]
    assert all(share % 4096 == 0 for share in shares)
    assert total - 4096 * parts * 2 < sum(shares) <= total


def test_an_address_is_taken_apart() -> None:
    assert parse_bdf("0001:c1:02.3") == (1, 0xC1, 0x13)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 63), st.integers(0, 63))
def test_invented_ids_are_64_bits_stable_and_differ_by_path(seed: int, a: int, b: int) -> None:
    first, second = invented(seed, a), invented(seed, b)
    assert 0 < first < 1 << 64
    assert first == invented(seed, a)
    assert (first == second) == (a == b)
    assert (die_id(first, a) == die_id(first, b)) == (a == b)
