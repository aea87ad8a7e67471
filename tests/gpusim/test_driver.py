"""Writes to the partition files: what is accepted, refused and changed (kernel.md 2.1-2.4)."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest

from gpusim.amd.partition import MODES, automatic, legal, listed, named
from gpusim.amd.products import MI300A, MI300X, MI355X
from gpusim.kernel import behaviour
from gpusim.machine import Machine
from gpusim.process import DeviceRules
from gpusim.testing.machines import node

BDF = "0000:75:00.0"
OTHER = "0000:05:00.0"
PCI = f"/sys/bus/pci/devices/{BDF}"
CURRENT = f"{PCI}/current_compute_partition"
MEMORY = f"{PCI}/current_memory_partition"
OLD = {"kernel": "6.8.0-79-generic", "driver": "in-tree"}


def one(
    product: str = "MI355X", count: int = 1, kernel: str = "6.15", driver: str = "in-tree", **gpu: Any
) -> Machine:
    return Machine(node(product, count, kernel=kernel, driver=driver, gpu=gpu))


def refused(machine: Machine, data: bytes, path: str = CURRENT) -> int | None:
    with pytest.raises(OSError) as error:
        machine.write(path, data)
    assert error.value.filename == path
    return error.value.errno


def minors(machine: Machine, bdf: str = BDF) -> list[int]:
    return [found.minor for _, found in machine.driver.topology.gpu_nodes(bdf)]


# Names


@pytest.mark.parametrize(
    ("data", "mode"),
    [
        (b"cpx", "CPX"),
        (b"CPX\n", "CPX"),
        (b"CPXanything", "CPX"),
        (b"cPx with words", "CPX"),
        (b"DPX", "DPX"),
        (b"qpx\n", "QPX"),
        (b"spx\0", "SPX"),
    ],
)
def test_three_letters_at_the_start_are_enough_and_all_bytes_are_taken(data: bytes, mode: str) -> None:
    machine = one()
    assert machine.write(CURRENT, data) == len(data)
    assert machine.read(CURRENT) == f"{mode}\n".encode()


@pytest.mark.parametrize(
    "data", [b" cpx", b"\n", b"CP", b"CP\n", b"xcpx", b"\0", b"UNKNOWN", b"\xff\xfe\xfd", b"8"]
)
def test_anything_else_is_einval_and_changes_nothing(data: bytes) -> None:
    machine = one(mode="DPX")
    assert refused(machine, data) == errno.EINVAL
    assert machine.read(CURRENT) == b"DPX\n"


def test_writing_nothing_is_no_write() -> None:
    machine = one()
    assert machine.write(CURRENT, b"") == 0
    assert machine.events[-1]["event"] == "probed"


# Hardware


@pytest.mark.parametrize(
    ("product", "refusals"),
    [("MI355X", {"TPX"}), ("MI300X", {"TPX"}), ("MI300A", {"DPX", "QPX"})],
)
def test_a_mode_the_xccs_do_not_allow_is_einval(product: str, refusals: set[str]) -> None:
    # DPX wants a multiple of 4 XCCs, TPX exactly 6, QPX exactly 8.
    for mode in MODES:
        machine = one(product)
        if mode in refusals:
            assert refused(machine, mode.encode()) == errno.EINVAL
            assert machine.read(CURRENT) == b"SPX\n"
        else:
            machine.switch(BDF, mode)
            assert machine.read(CURRENT) == f"{mode}\n".encode()


def test_an_odd_number_of_xccs_refuses_every_mode_even_the_present_one() -> None:
    machine = one()
    gpu = machine.gpu(BDF)
    gpu.facts = replace(gpu.facts, product=replace(MI355X, xccs=7))
    assert refused(machine, b"SPX") == errno.EINVAL
    assert listed(gpu.product, 1, machine.rules) == "Not supported"


# NPS: kernel.md 2.3, one line per release and memory mode


@pytest.mark.parametrize(
    ("product", "kernel", "driver", "nps", "start", "accepted"),
    [
        ("MI300X", "6.8.0-79-generic", "in-tree", 1, "SPX", {"SPX", "DPX", "QPX", "CPX"}),
        ("MI300X", "6.8.0-79-generic", "in-tree", 4, "CPX", {"DPX", "QPX", "CPX"}),
        ("MI300X", "6.12", "in-tree", 4, "CPX", {"QPX", "CPX"}),
        ("MI300X", "6.16", "in-tree", 1, "SPX", {"SPX", "DPX", "QPX", "CPX"}),
        ("MI300X", "6.16", "in-tree", 4, "CPX", {"QPX", "CPX"}),
        ("MI355X", "6.16", "in-tree", 2, "DPX", {"DPX"}),
        ("MI355X", "6.8.0-136-generic", "dkms-6.14.14", 2, "DPX", {"DPX"}),
        ("MI355X", "6.14", "dkms-6.16.13", 2, "DPX", {"DPX", "CPX"}),
        ("MI300A", "6.8.0-79-generic", "in-tree", 1, "SPX", {"SPX", "TPX", "CPX"}),
    ],
)
def test_modes_under_a_memory_mode(
    product: str, kernel: str, driver: str, nps: int, start: str, accepted: set[str]
) -> None:
    for mode in MODES:
        machine = one(product, kernel=kernel, driver=driver, nps=nps, mode=start)
        if mode in accepted:
            machine.switch(BDF, mode)
            assert machine.read(CURRENT) == f"{mode}\n".encode()
        else:
            assert refused(machine, mode.encode()) == errno.EINVAL
            assert machine.read(CURRENT) == f"{start}\n".encode()


def test_spx_while_memory_is_in_nps4_is_refused() -> None:
    # dump mi300x-partition-errors: NPS4 only goes with CPX there; set NPS1 first.
    assert refused(one("MI300X", nps=4, mode="CPX"), b"SPX") == errno.EINVAL


# Order of checks


def test_the_name_is_checked_before_the_busy_processes() -> None:
    machine = one()
    machine.open("/dev/kfd", machine.process())
    assert refused(machine, b"TPX") == errno.EINVAL


def test_the_present_mode_is_success_without_a_busy_check() -> None:
    machine = one(mode="QPX")
    machine.open("/dev/kfd", machine.process())
    before = machine.driver.topology
    assert machine.write(CURRENT, b"qpx\n") == 4
    assert machine.driver.topology is before


def test_nps_is_checked_before_the_busy_processes() -> None:
    machine = one(mode="DPX", nps=2)
    machine.open("/dev/kfd", machine.process())
    assert refused(machine, b"SPX") == errno.EINVAL


# Who blocks: kernel.md 2.1 and case B22 as decided


def only(minor: int, machine: Machine) -> DeviceRules:
    return DeviceRules.only((226, minor), (machine.driver.kfd_major, 0))


def test_any_open_kfd_blocks_and_everything_stays_as_it_was() -> None:
    # case B22: EBUSY; mode, KFD nodes unchanged; the holders are named.
    machine = one(count=2, mode="DPX")
    holder = machine.process()
    machine.open("/dev/kfd", holder)
    before = machine.describe()
    assert refused(machine, b"SPX") == errno.EBUSY
    assert machine.describe() == before
    assert machine.events[-1] == {
        "event": "switch refused",
        "gpu": BDF,
        "to": "SPX",
        "errno": "EBUSY",
        "holders": [holder.pid],
    }


def test_a_plain_render_client_does_not_block() -> None:
    # case B22 expected EBUSY here too; decided otherwise: kernel.md 2.1.
    machine = one(mode="DPX")
    machine.open("/dev/dri/renderD128", machine.process())
    machine.switch(BDF, "SPX")
    assert machine.read(CURRENT) == b"SPX\n"


def test_closing_the_last_kfd_frees_the_gpu() -> None:
    machine = one()
    process = machine.process()
    first, second = machine.open("/dev/kfd", process), machine.open("/dev/kfd", process)
    machine.close(first)
    assert refused(machine, b"CPX") == errno.EBUSY
    machine.close(second)
    machine.switch(BDF, "CPX")


def test_the_end_of_a_process_frees_the_gpu() -> None:
    machine = one()
    process = machine.process()
    machine.open("/dev/kfd", process)
    machine.exit(process)
    machine.switch(BDF, "CPX")


@pytest.mark.parametrize(
    ("kernel", "driver", "per_device"),
    [
        ("6.8.0-136-generic", "dkms-6.14.14", False),
        ("6.16", "in-tree", False),
        ("6.17", "in-tree", True),
        ("6.8.0-136-generic", "dkms-6.16.13", True),
    ],
)
def test_a_container_on_another_gpu_blocks_by_release(kernel: str, driver: str, per_device: bool) -> None:
    machine = one(count=2, kernel=kernel, driver=driver)
    elsewhere = machine.gpu(OTHER).drm[0].render
    assert elsewhere is not None
    machine.open("/dev/kfd", machine.process(devices=only(elsewhere, machine)))
    if per_device:
        machine.switch(BDF, "CPX")
    else:
        assert refused(machine, b"CPX") == errno.EBUSY
    assert refused(machine, b"CPX", f"/sys/bus/pci/devices/{OTHER}/current_compute_partition") == errno.EBUSY


def test_a_container_that_may_use_one_partition_blocks_its_gpu() -> None:
    machine = one(count=2, kernel="6.17", mode="QPX")
    machine.open("/dev/kfd", machine.process(devices=only(130, machine)))
    assert refused(machine, b"SPX") == errno.EBUSY


def test_a_minor_of_a_partition_that_does_not_exist_gives_no_context() -> None:
    machine = one(count=2, kernel="6.17", mode="DPX")
    machine.open("/dev/kfd", machine.process(devices=only(133, machine)))
    machine.switch(BDF, "SPX")


# Who may write


@pytest.mark.parametrize(
    ("view", "code"),
    [
        ({"uid": 1000}, errno.EACCES),
        ({"readonly": True}, errno.EROFS),
        ({"uid": 1000, "readonly": True}, errno.EACCES),
    ],
)
def test_others_cannot_write(view: dict[str, Any], code: int) -> None:
    machine = one()
    with pytest.raises(OSError) as error:
        machine.view(**view).write(CURRENT, b"CPX")
    assert error.value.errno == code
    assert machine.read(CURRENT) == b"SPX\n"


def test_a_gpu_without_an_xcp_manager_has_nothing_to_write_to() -> None:
    machine = one("RX9070XT")
    with pytest.raises(FileNotFoundError):
        machine.switch(BDF, "SPX")


def test_available_compute_partition_cannot_be_written_even_by_root() -> None:
    assert refused(one(), b"SPX", f"{PCI}/available_compute_partition") == errno.EACCES


# What a switch changes


def test_a_switch_moves_the_gpus_nodes_to_the_end_and_keeps_its_minors() -> None:
    machine = one(count=3)
    before = {bdf: gpu.drm for bdf, gpu in machine.driver.gpus.items()}
    assert [found.facts.bdf for _, found in machine.driver.topology.gpu_nodes()] == [
        BDF,
        OTHER,
        "0000:65:00.0",
    ]
    machine.switch(BDF, "DPX")
    nodes = list(machine.driver.topology.gpu_nodes())
    assert [found.facts.bdf for _, found in nodes] == [OTHER, "0000:65:00.0", BDF, BDF]
    assert [index for index, _ in nodes] == [8, 9, 10, 11]
    assert minors(machine) == [128, 129]
    assert {bdf: gpu.drm for bdf, gpu in machine.driver.gpus.items()} == before


def test_the_files_below_sys_follow_a_switch_at_once() -> None:
    machine = one(count=2)
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    assert machine.list(nodes) == sorted(str(n) for n in range(10))
    spx = machine.read(f"{nodes}/8/gpu_id")
    assert b"drm_render_minor 128\n" in machine.read(f"{nodes}/8/properties")
    machine.switch(BDF, "QPX")
    assert len(machine.list(nodes)) == 13
    assert b"drm_render_minor 136\n" in machine.read(f"{nodes}/8/properties")
    assert b"drm_render_minor 128\n" in machine.read(f"{nodes}/9/properties")
    assert machine.read(f"{nodes}/9/gpu_id") != spx


def test_partitions_open_and_close_with_the_mode() -> None:
    machine = one(mode="DPX")

    def valid() -> list[int]:
        found = []
        for minor in range(128, 136):
            machine.probe(f"/dev/dri/card{minor - 128}")  # a card of an invalid partition opens
            try:
                machine.probe(f"/dev/dri/renderD{minor}")
                found.append(minor)
            except OSError as error:
                assert error.errno == errno.ENOENT
        return found

    assert valid() == [128, 129]
    machine.switch(BDF, "CPX")
    assert valid() == list(range(128, 136))
    machine.switch(BDF, "SPX")
    assert valid() == [128]


def test_switching_all_gpus_in_order_restores_the_order() -> None:
    machine = one(count=8)
    for bdf in machine.driver.gpus:
        machine.switch(bdf, "CPX")
    owners = [found.facts.bdf for _, found in machine.driver.topology.gpu_nodes()]
    assert owners == [bdf for bdf in machine.driver.gpus for _ in range(8)]


def test_a_node_switched_since_boot_counts_its_first_nodes_too() -> None:
    # snapshot mi300x-8gpu-cpx: generation 80 = 1 + 8 SPX nodes + 8 removals + 63 nodes.
    spec = node("MI300X", bmc=True, gpu={"mode": "CPX", "boot_mode": "SPX"}, **OLD)
    assert Machine(spec).read("/sys/class/kfd/kfd/topology/generation_id") == b"80\n"


def test_the_event_of_a_switch_tells_both_modes() -> None:
    machine = one()
    machine.switch(BDF, "cpx")
    assert machine.events[-1] == {"event": "switched", "gpu": BDF, "from": "SPX", "to": "CPX"}


# Memory partition: kernel.md 2.4


@pytest.mark.parametrize("data", [b"NPS2", b"nps2\n", b"Nps2 please"])
def test_a_memory_mode_is_only_recorded(data: bytes) -> None:
    machine = one()
    assert machine.write(MEMORY, data) == len(data)
    assert machine.read(MEMORY) == b"NPS1\n"
    assert machine.driver.requested_nps == {BDF: 2}


@pytest.mark.parametrize("data", [b"NPS4", b"NPS", b" NPS2", b"2", b"\n", b"NPS9"])
def test_a_memory_mode_that_is_not_offered_is_einval(data: bytes) -> None:
    machine = one()
    assert refused(machine, data, MEMORY) == errno.EINVAL
    assert machine.driver.requested_nps == {}


def test_the_present_memory_mode_asks_for_nothing() -> None:
    machine = one()
    assert machine.write(MEMORY, b"NPS1\n") == 5
    assert machine.driver.requested_nps == {}


def test_the_last_writer_in_a_hive_wins_for_all() -> None:
    machine = one("MI300X", count=2)
    machine.write(MEMORY, b"NPS4")
    hive = machine.gpu(BDF).facts.hive_id
    assert hive
    assert machine.driver.requested_nps == {hive: 4}
    described = machine.describe()["gpus"]
    assert isinstance(described, list)
    assert [gpu["requested_nps"] for gpu in described] == [4, 4]


def test_a_read_only_memory_mode_refuses_root() -> None:
    assert refused(one("MI300X", kernel="6.12"), b"NPS4", MEMORY) == errno.EACCES


# Pure parts


def test_named_takes_bytes_only_as_far_as_three() -> None:
    assert [named(data) for data in (b"", b"S", b"SPX", b"spxx", b"s px")] == [None, None, "SPX", "SPX", None]


@pytest.mark.parametrize(
    ("kernel", "driver", "nps", "mode"),
    [
        ("6.8.0-79-generic", "in-tree", 1, "SPX"),
        ("6.8.0-79-generic", "in-tree", 2, "DPX"),
        ("6.8.0-79-generic", "in-tree", 4, "QPX"),
        ("6.12", "in-tree", 4, "CPX"),
        ("6.8.0-79-generic", "dkms-6.14.14", 4, "CPX"),
        ("6.12", "in-tree", 8, None),
    ],
)
def test_the_automatic_mode_follows_the_memory_mode(
    kernel: str, driver: str, nps: int, mode: str | None
) -> None:
    assert automatic(MI300X, nps, behaviour(kernel, driver)) == mode


def test_legality_needs_silicon_and_memory_mode() -> None:
    rules = behaviour("6.14", "in-tree")
    assert legal(MI300X, "CPX", 4, rules)
    assert not legal(MI300X, "SPX", 4, rules)
    assert not legal(MI300A, "QPX", 1, rules)
