"""CU sets: the cases of amd.md 14.2, and decision 21."""

from __future__ import annotations

import pytest

from devplugin.amd.cumask import CuError, everything, first_fit, parse, text


def bits(*numbers: int) -> int:
    return sum(1 << n for n in numbers)


def test_four_of_320_cus_are_four_bits_and_the_lowest() -> None:
    assert first_fit(0, 320, 4, 1) == bits(0, 1, 2, 3)


def test_releasing_an_allocation_leaves_the_others_as_they_were() -> None:
    others = bits(2, 10, 11)
    held = first_fit(others, 320, 5, 1)
    assert held.bit_count() == 5
    assert (others | held) & ~held == others


def test_gaps_are_filled_before_new_ground() -> None:
    in_use = bits(2, 3, 4, 5)
    assert first_fit(in_use, 128, 4, 1) == bits(0, 1, 6, 7)


def test_work_group_processors_are_never_split_and_requests_round_up() -> None:
    first = first_fit(0, 32, 3, 2)
    second = first_fit(first, 32, 3, 2)
    assert (text(first), text(second)) == ("0-3", "4-7")


@pytest.mark.parametrize("count", range(1, 33))
def test_no_request_splits_a_pair(count: int) -> None:
    mask = first_fit(0, 32, count, 2)
    assert all((mask >> pair & 3) in {0, 3} for pair in range(0, 32, 2))
    assert mask.bit_count() == count + count % 2


def test_a_pair_with_one_cu_in_use_is_not_free() -> None:
    assert first_fit(bits(0, 3), 8, 2, 2) == bits(4, 5)


@pytest.mark.parametrize(
    ("total", "count", "unit"), [(4, 5, 2), (64, 0, 1), (64, -1, 1), (64, 65, 1), (0, 0, 1)]
)
def test_what_does_not_fit_is_an_error(total: int, count: int, unit: int) -> None:
    with pytest.raises(CuError):
        first_fit(0, total, count, unit)


def test_a_refusal_says_how_many_are_free_of_the_device_alone() -> None:
    with pytest.raises(CuError, match=r"3 of 8 .* 2 are free"):
        first_fit(bits(0, 1, 2, 3, 4, 5, 9), 8, 3, 1)


def test_three_of_64_are_exactly_three() -> None:
    assert first_fit(0, 64, 3, 1).bit_count() == 3


def test_a_unit_below_one_counts_as_one() -> None:
    assert first_fit(0, 8, 3, 0) == bits(0, 1, 2)


def test_a_whole_gpu_of_odd_total_gets_all_its_cus_although_pairs_rule() -> None:
    assert first_fit(0, 33, 33, 2) == everything(33)


def test_a_whole_gpu_is_not_to_be_had_while_one_cu_is_in_use() -> None:
    with pytest.raises(CuError, match="1 are in use"):
        first_fit(bits(7), 32, 32, 2)


def test_a_slice_never_uses_the_odd_cu_at_the_end() -> None:
    with pytest.raises(CuError):
        first_fit(everything(32), 33, 1, 2)


@pytest.mark.parametrize(
    ("given", "mask"),
    [
        ("0-3,8", bits(0, 1, 2, 3, 8)),
        ("0", 1),
        ("", 0),
        ("16-31", everything(32) & ~everything(16)),
        (" 1 , 3-5 ", bits(1, 3, 4, 5)),
        (",,2,", 4),
    ],
)
@pytest.mark.parametrize("total", [64, 128])
def test_id_lists_that_are_accepted(given: str, mask: int, total: int) -> None:
    assert parse(given, total) == mask


@pytest.mark.parametrize("given", ["5-2", "-1", "a-b", "1--2", "1-", "١", "0x1", "1.0", "1 2", "9" * 5000])
@pytest.mark.parametrize("total", [64, 128])
def test_id_lists_that_are_rejected(given: str, total: int) -> None:
    with pytest.raises(CuError):
        parse(given, total)


def test_a_range_is_in_bounds_of_the_larger_device_only() -> None:
    assert parse("0-63,64-127", 128) == everything(128)
    with pytest.raises(CuError, match="out of bounds"):
        parse("0-63,64-127", 64)


def test_cu_8_of_8_is_out_of_bounds() -> None:
    with pytest.raises(CuError, match="out of bounds"):
        parse("8", 8)


def test_the_empty_set_is_the_empty_text() -> None:
    assert text(0) == ""


def test_an_error_leaves_the_set_in_use_as_it_was() -> None:
    in_use = bits(1, 2)
    with pytest.raises(CuError):
        first_fit(in_use, 4, 3, 1)
    assert in_use == bits(1, 2)


def test_after_a_restart_the_next_four_of_eight_follow_the_recorded_ones() -> None:
    assert first_fit(parse("0-3", 8), 8, 4, 1) == 0xF0
