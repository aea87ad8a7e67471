"""The chip table: what A.3 of ascend_ppu_hami.md says."""

from __future__ import annotations

import pytest

from gpusim.ascend.chips import CHIPS

# chip → (MiB, AICore, AICPU, smallest template's MiB, shares), ascend_ppu_hami.md A.3
TABLE = {
    "910A": (32768, 30, 0, 2184, 15),
    "910B2": (65536, 24, 6, 8192, 8),
    "910B3": (65536, 20, 7, 16384, 4),
    "910B4-1": (65536, 20, 7, 16384, 4),
    "910B4": (32768, 20, 7, 8192, 4),
    "910C": (65536, 20, 7, 16384, 4),
    "310P3": (21527, 8, 7, 3072, 7),
}


def test_every_chip_of_the_table_is_there_and_no_other() -> None:
    assert set(CHIPS) == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_chip_has_the_numbers_of_the_table(name: str) -> None:
    chip, (mib, cores, cpus, smallest, shares) = CHIPS[name], TABLE[name]
    assert (chip.memory_mib, chip.ai_cores, chip.ai_cpus) == (mib, cores, cpus)
    least = min(t.memory_mib for t in chip.templates)
    assert (least, chip.memory_mib // least) == (smallest, shares)


@pytest.mark.parametrize("name", TABLE)
def test_no_template_is_larger_than_its_chip(name: str) -> None:
    chip = CHIPS[name]
    for template in chip.templates:
        assert 0 < template.memory_mib < chip.memory_mib
        assert 0 < template.ai_cores < chip.ai_cores
        assert template.ai_cpus <= chip.ai_cpus


def test_a_template_of_310p3_shows_less_than_it_is_named_for() -> None:
    chip = CHIPS["310P3"]
    vir02 = chip.template("vir02")
    assert vir02 is not None
    assert (vir02.memory_mib, chip.slice_mib(vir02)) == (6144, 5381)


@pytest.mark.parametrize("name", sorted(set(TABLE) - {"310P3"}))
def test_elsewhere_a_slice_shows_the_memory_it_is_named_for(name: str) -> None:
    chip = CHIPS[name]
    assert [chip.slice_mib(t) for t in chip.templates] == [t.memory_mib for t in chip.templates]


def test_a_template_is_asked_for_by_its_whole_name() -> None:
    assert CHIPS["910B4"].template("vir05_1c_16g") is None
    assert CHIPS["910B4-1"].template("vir05_1c_8g") is None
