"""Limits of a container with PPUs: bare numbers, the card's own first, and no typo lifts one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.ppu.environment import BadLimitError, quotas, sm_limits

MIB = 1 << 20


def test_the_cards_own_variable_counts_before_the_one_for_all() -> None:
    environ = {
        "HGGC_DEVICE_MEMORY_LIMIT_1": "4096",
        "HGGC_DEVICE_MEMORY_LIMIT": "8192",
        "HGGC_DEVICE_SM_LIMIT": "30",
    }
    assert quotas(environ, 3) == (8192 * MIB, 4096 * MIB, 8192 * MIB)
    assert sm_limits({**environ, "HGGC_DEVICE_SM_LIMIT_0": "100"}, 2) == (100, 30)


def test_what_is_not_set_is_no_limit() -> None:
    assert (quotas({}, 2), sm_limits({}, 2)) == ((0, 0), (0, 0))


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "-1", "1Gi", "8192m", "1.0", "1_0", '"8192"', "١", "0x10", "9" * 21]
)
def test_a_value_that_cannot_be_read_is_refused_and_does_not_fall_back(text: str) -> None:
    environ = {"HGGC_DEVICE_MEMORY_LIMIT_0": text, "HGGC_DEVICE_MEMORY_LIMIT": "8192"}
    with pytest.raises(BadLimitError, match=r"HGGC_DEVICE_MEMORY_LIMIT_0=.*a bare whole number"):
        quotas(environ, 1)
    with pytest.raises(BadLimitError, match="HGGC_DEVICE_SM_LIMIT="):
        sm_limits({"HGGC_DEVICE_SM_LIMIT": text}, 1)


def test_more_than_there_can_be_is_refused() -> None:
    with pytest.raises(BadLimitError, match="from 0 to 100"):
        sm_limits({"HGGC_DEVICE_SM_LIMIT": "101"}, 1)
    with pytest.raises(BadLimitError):
        quotas({"HGGC_DEVICE_MEMORY_LIMIT": str(1 << 44)}, 1)
    assert quotas({"HGGC_DEVICE_MEMORY_LIMIT": str((1 << 44) - 1)}, 1)[0] < 1 << 64


@given(st.text(max_size=6))
def test_a_limit_is_read_as_its_number_or_refused(text: str) -> None:
    try:
        (found,) = quotas({"HGGC_DEVICE_MEMORY_LIMIT": text}, 1)
    except BadLimitError:
        assert not (text.isascii() and text.isdigit())
    else:
        assert found == int(text) * MIB
