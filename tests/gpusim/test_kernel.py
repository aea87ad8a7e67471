"""The table of kernel and driver differences: each row has a source; decision 5 gets what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim.errors import GpusimError
from gpusim.kernel import ROWS, UnknownReleaseError, behaviour, explain, parse_driver, parse_kernel, row_names

KERNELS = (
    "5.4.0-90-generic",
    "6.5.0",
    "6.8.0-79-generic",
    "6.8.0-136-generic",
    "6.11.0-26",
    "6.12.9",
    "6.14",
    "7.0.0",
)
DRIVERS = ("in-tree", "dkms-5.13", "dkms-6.12.12", "dkms-6.14.14", "dkms-6.16.13")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("6.8.0-136-generic", (6, 8, 0, 136)),
        ("6.14", (6, 14, 0, 0)),
        ("7.0.0", (7, 0, 0, 0)),
        ("6.12.48", (6, 12, 48, 0)),
        ("5.14.0-503.11.1.el9_5.x86_64", (5, 14, 0, 503)),
        ("6.14.0-rc2", (6, 14, 0, 0)),
        ("6.6.87.2-microsoft-standard-WSL2", (6, 6, 87, 0)),
    ],
)
def test_a_kernel_release_is_read_with_its_abi_number(text: str, version: tuple[int, ...]) -> None:
    assert parse_kernel(text) == version


@pytest.mark.parametrize(
    ("text", "version"), [("in-tree", None), ("dkms-6.14.14", (6, 14, 14)), ("dkms-6.16", (6, 16, 0))]
)
def test_a_driver_release_is_read(text: str, version: tuple[int, ...] | None) -> None:
    assert parse_driver(text) == version


@pytest.mark.parametrize(
    "kernel", ["", "six", "6", "6.", "v6.8", "6.8.0 -136", "6.8.0-", "-6.8", "6.8/..", "6.8\n"]
)
def test_nonsense_is_no_kernel(kernel: str) -> None:
    with pytest.raises(GpusimError, match="not a release"):
        behaviour(kernel, "in-tree")


@pytest.mark.parametrize(
    "driver", ["", "dkms", "dkms-6", "in tree", "6.14.14", "dkms-6.14.14-1", "DKMS-6.14"]
)
def test_nonsense_is_no_driver(driver: str) -> None:
    with pytest.raises(GpusimError, match="neither in-tree nor dkms"):
        behaviour("6.8", driver)


@given(st.text(max_size=12))
def test_any_text_is_a_release_or_refused_with_our_own_error(text: str) -> None:
    try:
        version = parse_kernel(text)
    except UnknownReleaseError:
        return
    assert len(version) == 4


def test_releases_no_source_describes_are_refused_and_their_neighbours_not() -> None:
    with pytest.raises(UnknownReleaseError, match=r"6\.0 to 6\.4"):
        behaviour("6.2.0-39-generic", "in-tree")
    assert not behaviour("6.2.0-39-generic", "dkms-6.14.14").kfd_legacy
    assert behaviour("5.15.0", "in-tree").kfd_legacy


def test_every_row_has_a_source_and_a_known_tag_and_every_field_has_a_row() -> None:
    assert tuple(row.name for row in ROWS) == row_names()
    for row in ROWS:
        for step in row.steps:
            assert step.tag in {"cap", "src", "inf"}, row.name
            pages = ("kernel.md", "kfd.md", "decision", "mi355x-8gpu", "rdna2-rx6900xt", "apu-strixpoint")
            assert any(page in step.source for page in pages), row.name
        first = row.steps[0]
        assert (first.in_tree, first.dkms, first.kernel, first.before) == ((), (), (), ()), row.name


def test_every_row_can_take_each_of_its_values() -> None:
    seen = {row.name: set() for row in ROWS}
    for kernel in (*KERNELS, "6.12.61", "6.15", "6.17", "6.18", "6.18.3", "6.19", "7.2"):
        for driver in (*DRIVERS, "dkms-6.10.5", "dkms-6.18.4"):
            for name, value, _, _ in explain(kernel, driver):
                seen[name].add(value)
    for row in ROWS:
        assert seen[row.name] == {step.value for step in row.steps}, row.name


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_the_explanation_tells_what_the_behaviour_has(kernel: str, driver: str) -> None:
    rules = behaviour(kernel, driver)
    for name, value, _, source in explain(kernel, driver):
        assert getattr(rules, name) == value
        assert source


def test_the_out_of_tree_driver_on_6_8_has_underscores_and_no_dmem() -> None:
    rules = behaviour("6.8.0-136-generic", "dkms-6.14.14")
    assert rules.xcp_separator == "_"
    assert rules.extended_minors
    assert not rules.dmem_controller
    assert not rules.dmem_region
    assert rules.gfx950
    assert rules.kfd_unique_id == "shared"
    assert rules.module_version == "6.14.14"


def test_an_older_update_of_6_8_has_64_minors_per_type() -> None:
    assert not behaviour("6.8.0-79-generic", "dkms-6.14.14").extended_minors
    assert not behaviour("6.8.12", "in-tree").extended_minors  # a mainline stable is no Ubuntu update
    assert behaviour("6.8.0-106-generic", "in-tree").extended_minors


def test_the_out_of_tree_driver_on_6_14_registers_its_vram() -> None:
    rules = behaviour("6.14", "dkms-6.14.14")
    assert rules.dmem_controller
    assert rules.dmem_region
    assert rules.kfd_unique_id == "shared"
    assert rules.busy_rule == "machine"
    assert rules.available_compute == "dynamic"
    assert (rules.kfd_sdma_mask, rules.kfd_pcie_minimum, rules.kfd_queue_reset) == (True, 0, True)
    assert not rules.kfd_capability2


def test_in_tree_6_14_has_the_controller_without_a_region() -> None:
    assert behaviour("6.14", "in-tree").dmem_controller
    assert not behaviour("6.14", "in-tree").dmem_region
    assert behaviour("6.15", "in-tree").dmem_region


def test_in_tree_6_8_does_not_know_gfx950() -> None:
    rules = behaviour("6.8.0-136-generic", "in-tree")
    assert not rules.gfx950
    assert rules.module_version is None
    assert rules.xcp_separator == "."
    assert not rules.xcp_freed_on_unplug
    assert rules.auto_half == "QPX"
    assert rules.vf_compute_files == "absent"


def test_in_tree_7_0_prints_an_id_per_partition_and_the_gpus_in_spx() -> None:
    rules = behaviour("7.0", "in-tree")
    assert rules.kfd_unique_id == "xcd-but-spx"
    assert rules.busy_rule == "device"
    assert rules.kfd_capability2
    assert rules.kfd_cwsr


@pytest.mark.parametrize(
    ("kernel", "driver", "rule"),
    [
        ("6.17.9", "in-tree", "shared"),
        ("6.18.0", "in-tree", "xcd"),
        ("6.18.1", "in-tree", "xcd"),
        ("6.18.2", "in-tree", "xcd-but-spx"),
        ("6.8.0-136", "dkms-6.16.13", "xcd"),
    ],
)
def test_unique_id_follows_the_drivers_history(kernel: str, driver: str, rule: str) -> None:
    assert behaviour(kernel, driver).kfd_unique_id == rule


@pytest.mark.parametrize(
    ("kernel", "driver", "legal"),
    [
        # One line per column of kernel.md 2.3, on 8 XCCs: mode → accepted NPS.
        ("6.8", "in-tree", {"SPX": {1}, "DPX": {1, 2, 3, 4, 6}, "QPX": {1, 4}, "CPX": {1, 4}}),
        ("6.12", "in-tree", {"SPX": {1}, "DPX": {1, 2}, "QPX": {1, 4}, "CPX": {1, 4}}),
        ("6.16", "in-tree", {"SPX": {1}, "DPX": {1, 2}, "QPX": {1, 4}, "CPX": {1, 4}}),
        ("6.8", "dkms-6.16.13", {"SPX": {1}, "DPX": {1, 2}, "QPX": {1, 4}, "CPX": {1, 2, 4, 8}}),
        ("6.8", "dkms-6.14.14", {"SPX": {1}, "DPX": {1, 2}, "QPX": {1, 4}, "CPX": {1, 4}}),
    ],
)
def test_each_column_of_legal_modes(kernel: str, driver: str, legal: dict[str, set[int]]) -> None:
    rule = behaviour(kernel, driver).nps_rule
    for mode, nps in legal.items():
        assert {n for n in (1, 2, 3, 4, 6, 8) if rule.allows(mode, n, 8)} == nps, mode


def test_six_xccs_and_vfs_have_their_own_exceptions() -> None:
    assert behaviour("6.8", "in-tree").nps_rule.allows("TPX", 3, 6)
    assert not behaviour("6.16", "in-tree").nps_rule.allows("TPX", 3, 6)
    assert behaviour("6.16", "in-tree").nps_rule.allows("TPX", 4, 6)
    assert behaviour("6.16", "in-tree").nps_rule.allows("CPX", 2, 8, vf=True)
    assert not behaviour("6.16", "in-tree").nps_rule.allows("CPX", 2, 8)
