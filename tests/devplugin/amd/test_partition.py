"""Idle GPUs are switched at the start, the others left alone and told (amd.md 13; decisions 28, 33; B22)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from devplugin.amd.discovery import discover
from devplugin.amd.partition import kfd_processes, switch, wanted
from devplugin.amd.settings import Settings
from devplugin.amd.taken import VOCABULARY
from devplugin.amd.vendor import Amd
from devplugin.answers import Prepared
from devplugin.hami import Pod
from gpusim.machine import Machine
from gpusim.process import DeviceRules
from gpusim.testing.machines import BUSES, node

BDFS = [f"0000:{bus}:00.0" for bus in BUSES]
NEW = {"kernel": "6.17", "driver": "in-tree"}


def asked(mode: str) -> Settings:
    return Settings(node_name="n1", mode="partition", compute_partition=mode)


def machine_of(count: int = 2, product: str = "MI355X", **fields: Any) -> Machine:
    return Machine(node(product, count, **fields))


def go(machine: Any, mode: str, pods: Sequence[Pod] = ()) -> Prepared:
    settings = asked(mode)
    return switch(machine, discover(machine, settings), settings, pods)


def modes(machine: Machine) -> list[str]:
    return [gpu.mode for gpu in machine.driver.gpus.values()]


def pod(name: str, *ids: str, phase: str = "Running") -> Pod:
    text = "".join(f"{one},AMD,1024,16:" for one in ids) + ";"
    return Pod("ns", name, f"uid-{name}", "n1", phase, {VOCABULARY.allocated: text})


def ids(machine: Machine) -> list[str]:
    return [gpu.id for gpu in discover(machine, asked("spx")).gpus]


def test_idle_gpus_are_switched_and_the_others_said_to_be_there_already() -> None:
    machine = machine_of(3)
    machine.switch(BDFS[1], "QPX")
    result = go(machine, "qpx")
    assert modes(machine) == ["QPX"] * 3
    assert result.done == tuple(
        f"compute partition of {bdf}: {text}"
        for bdf, text in (
            (BDFS[0], "switched: from spx to qpx"),
            (BDFS[2], "switched: from spx to qpx"),
            (BDFS[1], "already: qpx"),  # in KFD's order: its nodes are the youngest
        )
    )
    assert result.troubles == ()
    assert result.effects == ()
    assert result.changed
    found = discover(machine, asked("qpx"))
    assert [len(gpu.partitions) for gpu in found.gpus] == [4, 4, 4]
    again = go(machine, "qpx")
    assert not again.changed
    assert all("already: qpx" in line for line in again.done)


@pytest.mark.parametrize(
    "settings", [Settings(mode="cu", compute_partition="qpx"), Settings(mode="partition")]
)
def test_only_partition_mode_with_a_named_partition_switches(settings: Settings) -> None:
    machine = machine_of()
    inventory = discover(machine, settings)
    assert not wanted(inventory, settings)
    assert switch(machine, inventory, settings, ()) == Prepared()
    assert modes(machine) == ["SPX", "SPX"]


def test_a_gpu_that_a_pod_holds_is_left_alone_and_the_pod_is_named() -> None:
    machine = machine_of()
    first, second = ids(machine)
    result = go(
        machine, "qpx", [pod("a", first), pod("b", first, phase="Pending"), pod("c", second, phase="Failed")]
    )
    assert modes(machine) == ["SPX", "QPX"]
    assert result.troubles == (
        f"compute partition of {BDFS[0]}: busy: stays spx, in use by pod ns/a, pod ns/b",
    )
    (event,) = result.effects
    assert event.reason == "AMDGPUSwitchRefused"
    assert event.name == f"n1.amdgpuswitchrefused.{first}"
    assert "pod ns/a, pod ns/b" in event.message


def test_a_pod_with_one_partition_holds_the_whole_gpu() -> None:
    machine = machine_of(gpu={"mode": "QPX"})
    inventory = discover(machine, asked("spx"))
    result = go(machine, "spx", [pod("a", inventory.gpus[0].ids[2])])
    assert modes(machine) == ["QPX", "SPX"]
    assert "busy: stays qpx, in use by pod ns/a" in result.troubles[0]


def test_a_kfd_process_of_one_gpu_keeps_the_others_free_on_new_drivers() -> None:
    machine = machine_of(**NEW)
    process = machine.process(DeviceRules.only((machine.driver.kfd_major, 0), (226, 128)))
    machine.open("/dev/kfd", process)
    result = go(machine, "qpx")
    assert modes(machine) == ["SPX", "QPX"]
    assert result.troubles == (
        f"compute partition of {BDFS[0]}: busy: stays spx, in use by KFD process {process.pid}",
    )


def test_on_older_drivers_any_kfd_process_is_in_the_way_of_all_and_the_kernel_says_so() -> None:
    machine = machine_of()
    process = machine.process(DeviceRules.only((machine.driver.kfd_major, 0), (226, 128)))
    machine.open("/dev/kfd", process)
    result = go(machine, "qpx")
    assert modes(machine) == ["SPX", "SPX"]
    assert result.troubles[0].endswith(f"busy: stays spx, in use by KFD process {process.pid}")
    assert result.troubles[1].endswith(
        f"busy: stays spx, the kernel answers EBUSY: KFD is in use by process {process.pid}"
    )
    assert len(result.effects) == 2
    machine.exit(process)
    assert go(machine, "qpx").changed


def test_a_process_on_the_host_may_use_every_gpu() -> None:
    machine = machine_of(3, **NEW)
    machine.open("/dev/kfd", process := machine.process())
    assert kfd_processes(machine).keys() == {process.pid}
    assert not go(machine, "qpx").changed


def test_a_plain_render_client_does_not_keep_a_gpu() -> None:
    machine = machine_of()
    machine.open("/dev/dri/renderD128", machine.process())
    go(machine, "qpx")
    assert modes(machine) == ["QPX", "QPX"]


def test_what_a_gpu_cannot_be_is_unsupported() -> None:
    assert go(machine_of(1), "tpx").troubles == (
        f"compute partition of {BDFS[0]}: unsupported: tpx is not offered, only spx, dpx, qpx, cpx",
    )
    assert go(machine_of(1, "RX9070XT"), "qpx").troubles == (
        f"compute partition of {BDFS[0]}: unsupported: this GPU cannot change its partition",
    )
    vf = go(machine_of(1, "MI300X-VF", kernel="6.15", driver="in-tree"), "qpx")
    assert vf.troubles == (
        f"compute partition of {BDFS[0]}: unsupported: this GPU cannot change its partition",
    )
    assert vf.effects == ()


def test_a_refusal_names_the_kernels_errno_and_the_other_gpus_go_on() -> None:
    # Up to 6.12 the list also has modes that the present memory mode does not allow (kernel.md 2.2).
    machine = Machine(node("MI300X", 2, kernel="6.8.0-79-generic", driver="in-tree"))
    machine.gpu(BDFS[0]).nps = 4
    result = go(machine, "dpx")
    assert result.troubles == ()  # 6.8 takes DPX under NPS4
    machine = Machine(node("MI300X", 2, kernel="6.12", driver="in-tree"))
    machine.gpu(BDFS[0]).nps = 4
    result = go(machine, "dpx")
    assert result.troubles == (
        f"compute partition of {BDFS[0]}: refused: stays spx, the kernel answers EINVAL",
    )
    assert modes(machine) == ["SPX", "DPX"]
    assert result.changed


def test_a_gpu_in_reset_is_refused_and_a_read_only_sysfs_too() -> None:
    machine = machine_of()
    settings = asked("qpx")
    inventory = discover(machine, settings)
    machine.reset(BDFS[0])
    result = switch(machine, inventory, settings, ())
    assert result.troubles == (f"compute partition of {BDFS[0]}: refused: EPERM",)
    assert modes(machine) == ["SPX", "QPX"]
    view = machine_of().view(readonly=True)
    result = go(view, "qpx")
    assert [line.rpartition(" ")[2] for line in result.troubles] == ["EROFS", "EROFS"]
    assert not result.changed


def test_a_mode_file_of_another_opinion_counts_before_kfd() -> None:
    # 6.8.0-136: the file says QPX, KFD has one whole node (decision 5): there is nothing to switch.
    machine = machine_of(kernel="6.8.0-136-generic", kfd_partitions="hidden", gpu={"mode": "QPX"})
    result = go(machine, "qpx")
    assert all("already: qpx" in line for line in result.done)


def test_kfd_is_looked_at_and_never_opened() -> None:
    class Watched:
        def __init__(self, machine: Machine) -> None:
            self.machine = machine

        def __getattr__(self, name: str) -> Any:
            return getattr(self.machine, name)

        def probe(self, path: str) -> None:
            raise AssertionError(path)

        def read(self, path: str) -> bytes:
            assert path != "/dev/kfd"
            return self.machine.read(path)

    assert go(Watched(machine_of()), "qpx").changed


def test_the_vendor_says_what_partition_it_is_about_to_make() -> None:
    assert Amd().describe(asked("qpx")) == "operating mode: partition, compute partition: qpx"
    assert Amd().describe(Settings(mode="cu", compute_partition="qpx")) == "operating mode: cu"


def test_gpus_of_the_inventory_are_all_that_is_touched() -> None:
    machine = machine_of()
    settings = Settings(mode="partition", compute_partition="qpx", exclude=(BDFS[0],))
    inventory = discover(machine, settings)
    switch(machine, inventory, settings, ())
    assert modes(machine) == ["SPX", "QPX"]


def test_a_process_that_ends_meanwhile_is_no_trouble() -> None:
    machine = machine_of()
    machine.open("/dev/kfd", process := machine.process())

    class Ending:
        def __getattr__(self, name: str) -> Any:
            return getattr(machine, name)

        def list(self, path: str) -> Sequence[str]:
            if path.endswith(f"/proc/{process.pid}"):
                raise OSError(errno.ENOENT, "gone")
            return machine.list(path)

    assert kfd_processes(Ending()) == {}
