"""The dmem controller without a machine around it: charges, counters, limits (kernel.md 4.2 and 4.3)."""

from __future__ import annotations

import errno

import pytest

from gpusim.dmem import Css, Dmem, LimitError
from gpusim.dmem_parse import UNLIMITED


def plain() -> Dmem:
    return Dmem(many_lines=True, bare_region="EINVAL", oops=lambda why: None)


def test_a_charge_is_taken_at_every_level_or_at_none() -> None:
    dmem = plain()
    region = dmem.register("drm/x/vram", 100)
    middle = Css(dmem.root)
    leaf = Css(middle)
    dmem.write(middle, "max", b"drm/x/vram 10")
    dmem.charge(leaf, region, 10)  # exactly the limit
    with pytest.raises(LimitError) as caught:
        dmem.charge(leaf, region, 1)
    assert caught.value.errno == errno.EAGAIN
    assert caught.value.pool is middle.pools[region]
    assert [css.pools[region].usage for css in (leaf, middle, dmem.root)] == [10, 10, 10]


def test_peak_remembers_a_charge_that_failed_further_up() -> None:
    """page_counter_try_charge raises the watermark on its way up and does not lower it when it backs out."""
    dmem = plain()
    region = dmem.register("drm/x/vram", 100)
    leaf = Css(dmem.root)
    inner = Css(leaf)
    dmem.write(leaf, "max", b"drm/x/vram 5")
    with pytest.raises(LimitError):
        dmem.charge(inner, region, 8)
    assert dmem.peak(inner) == "drm/x/vram 8\n"
    assert dmem.peak(leaf) == "drm/x/vram 0\n"
    assert dmem.current(inner) == "drm/x/vram 0\n"


def test_an_offline_groups_limits_are_gone_and_its_charges_stay_until_they_are_freed() -> None:
    dmem = plain()
    region = dmem.register("drm/x/vram", 100)
    leaf = Css(dmem.root)
    for which in ("max", "min", "low"):
        dmem.write(leaf, which, b"drm/x/vram 10")
    pool = dmem.charge(leaf, region, 10)
    dmem.offline(leaf)
    assert (pool.max, pool.min, pool.low) == (UNLIMITED, 0, 0)
    dmem.pool(leaf, dmem.register("drm/y/vram", 100))
    assert leaf.charged  # though nothing of the other region is
    assert dmem.current(dmem.root) == "drm/x/vram 10\ndrm/y/vram 0\n"
    dmem.uncharge(pool, 10)
    assert not leaf.charged
    assert dmem.current(dmem.root) == "drm/x/vram 0\ndrm/y/vram 0\n"


def test_min_and_low_may_be_below_use_and_max_may_not() -> None:
    dmem = plain()
    region = dmem.register("drm/x/vram", 100)
    leaf = Css(dmem.root)
    dmem.charge(leaf, region, 10)
    for which, left in (("min", "9"), ("low", "9"), ("max", "max")):
        dmem.write(leaf, which, b"drm/x/vram 9")
        assert dmem.limits(leaf, which) == f"drm/x/vram {left}\n"


def test_what_was_never_used_has_no_peak() -> None:
    dmem = plain()
    dmem.register("drm/x/vram", 100)
    assert dmem.peak(Css(dmem.root)) == "drm/x/vram 0\n"


def test_counters_of_regions_that_went_do_not_pile_up() -> None:
    dmem = plain()
    stays = dmem.register("drm/stays/vram", 100)
    leaf = Css(dmem.root)
    dmem.charge(leaf, stays, 1)
    for _ in range(20):
        goes = dmem.register("drm/goes/vram", 100)
        dmem.uncharge(dmem.charge(leaf, goes, 1), 1)
        assert len(leaf.pools) == 2
        dmem.unregister(goes)
    assert dmem.current(leaf) == "drm/stays/vram 1\n"


def test_regions_of_other_drivers_stand_beside_ours() -> None:
    """B52: an xe card's region is vram0; the name in dmem.capacity is the one that is taken."""
    dmem = plain()
    dmem.register("drm/0000:03:00.0/vram", 206141652992)
    dmem.register("drm/0000:0a:00.0/vram0", 8514437120)
    css = Css(dmem.root)
    assert dmem.capacity() == "drm/0000:03:00.0/vram 206141652992\ndrm/0000:0a:00.0/vram0 8514437120\n"
    dmem.write(css, "max", b"drm/0000:0a:00.0/vram0 1")
    for wrong in (b"drm/0000:0a:00.0/vram 1", b"drm/0000:03:00.0/vram0 1"):
        with pytest.raises(OSError) as caught:
            dmem.write(css, "max", wrong)
        assert caught.value.errno == errno.EINVAL
    assert dmem.limits(css, "max") == "drm/0000:03:00.0/vram max\ndrm/0000:0a:00.0/vram0 1\n"
