"""Nodes that cannot exist are refused with the place and the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpusim.amd.gpufacts import gpu_facts
from gpusim.machine import Machine
from gpusim.spec import CardSpec, Cpus, GpuSpec, NodeSpec, SpecError
from gpusim.testing.machines import node

INTEL = CardSpec("i915", "0000:02:00.0", 0x8086, 0x56C0)


def with_gpu(
    product: str = "MI355X", /, kernel: str = "6.15", driver: str = "in-tree", **gpu: Any
) -> NodeSpec:
    """Three GPUs, the last of which differs."""
    spec = node(product, 3, kernel=kernel, driver=driver)
    return replace(spec, gpus=(*spec.gpus[:2], replace(spec.gpus[2], **gpu)))


@pytest.mark.parametrize(
    ("spec", "path", "why"),
    [
        (with_gpu(mode="QPX", nps=2), "gpus[2].mode", "not legal while memory is in NPS2"),
        (with_gpu(mode="SPX", nps=2), "gpus[2].mode", "NPS2"),
        (with_gpu(mode="DPX", boot_mode="CPX", nps=2), "gpus[2].boot_mode", "NPS2"),
        (with_gpu(mode="TPX"), "gpus[2].mode", "TPX does not exist on the 8 XCCs"),
        (with_gpu("MI300A", mode="QPX"), "gpus[2].mode", "6 XCCs"),
        (with_gpu(boot_mode="TPX"), "gpus[2].boot_mode", "TPX"),
        (with_gpu(mode="spx"), "gpus[2].mode", "SPX, DPX, TPX, QPX, CPX"),
        (with_gpu(nps=4), "gpus[2].nps", "NPS1, NPS2"),
        (with_gpu("MI300A", nps=4, mode="CPX"), "gpus[2].nps", "NPS1"),
        (with_gpu("RX9070XT", mode="CPX"), "gpus[2].mode", "CPX is not for RX9070XT"),
        (with_gpu(product="MI999"), "gpus[2].product", "MI355X"),
        (with_gpu(bdf="0000:75:00.0"), "gpus[2].bdf", "already the address of gpus[0]"),
        (with_gpu(bdf="75:00.0"), "gpus[2].bdf", "0000:05:00.0"),
        (with_gpu(bdf="0000:7A:00.0"), "gpus[2].bdf", "no PCI address"),
        (with_gpu(bdf="0000:75:20.0"), "gpus[2].bdf", "no PCI address"),
        (with_gpu(numa=8), "gpus[2].numa", "0 to 7"),
        (with_gpu(numa=-2), "gpus[2].numa", "-2"),
        (with_gpu(bound="radeon"), "gpus[2].bound", "vfio-pci"),
        (with_gpu(unique_id=1 << 64), "gpus[2].unique_id", "64-bit"),
        (with_gpu(hive_id=-1), "gpus[2].hive_id", "64-bit"),
        (with_gpu(fused={8: (0xFF, 0xFF, 0xFF, 0xFF)}), "gpus[2].fused[8]", "0 to 7"),
        (with_gpu(fused={0: (0xFF,)}), "gpus[2].fused[0]", "4 shader arrays"),
        (with_gpu(fused={0: (0x3FF, 0, 0, 0)}), "gpus[2].fused[0]", "9 CUs"),
        (with_gpu(fused=dict.fromkeys(range(8), (0, 0, 0, 0))), "gpus[2].fused", "all CUs are fused off"),
        (with_gpu(xgmi_physical=gpu_facts(node(), 0).xgmi_physical), "gpus[2].xgmi_physical", "same hive"),
        (with_gpu(vram_bytes=0), "gpus[2].vram_bytes", "size"),
        (with_gpu(vram_bytes=(64 << 40) + 1), "gpus[2].vram_bytes", "64 TiB"),
        (with_gpu(vram_used=1 << 40), "gpus[2].vram_used", "309220868096"),
        (node(kernel="six"), "kernel", "six"),
        (node(driver="dkms"), "driver", "dkms"),
        (node(kernel="6.2", driver="in-tree"), "kernel", "6.2"),
        (node(kfd_partitions="gone"), "kfd_partitions", "listed, hidden, truncated"),
        (node(cgroup_driver="openrc"), "cgroup_driver", "systemd, cgroupfs"),
        (node(minors_per_type=65), "minors_per_type", "65"),
        (node(pcie_generation=6), "pcie_generation", "1 to 5"),
        (node(cards=(replace(INTEL, before=9),)), "cards[0].before", "8 GPUs"),
        (node(cards=(replace(INTEL, driver="amdgpu"),)), "cards[0].driver", "gpus"),
        (node(cards=(INTEL, INTEL)), "cards[1].bdf", "cards[0]"),
        (node(cards=(replace(INTEL, bdf="0000:95:00.0"),)), "cards[0].bdf", "gpus[7]"),
        (replace(node(), cpus=Cpus(nodes=0)), "cpus.nodes", "at least one"),
        (replace(node(), cpus=Cpus(nodes=8, vendor="arm")), "cpus.vendor", "amd, intel"),
        (replace(node(), cpus=Cpus(nodes=8, first_apic_ids=())), "cpus.first_apic_ids", "APIC"),
        (replace(node(), cpus=Cpus(nodes=8, bytes_per_node=(1, 0))), "cpus.bytes_per_node", "memory"),
        (replace(node(), cpus=Cpus(nodes=8, distance=((10, 32), (32, 10)))), "cpus.distance", "8 rows"),
    ],
)
def test_an_impossible_node_is_refused(spec: NodeSpec, path: str, why: str) -> None:
    with pytest.raises(SpecError) as refused:
        Machine(spec)
    assert refused.value.path == path
    assert why in refused.value.why
    assert str(refused.value) == f"{path}: {refused.value.why}"


@pytest.mark.parametrize(
    "spec",
    [
        with_gpu(mode="DPX", nps=2),
        with_gpu("MI300X", mode="CPX", nps=4),
        with_gpu("MI300A", mode="TPX"),
        with_gpu(numa=None),
        with_gpu(numa=-1),
        with_gpu(fused={3: (0x1FF, 0, 0x0FF, 1)}),
        node("MI355X-VF", 1, kernel="7.0", driver="in-tree", gpu={"nps": 2, "mode": "DPX"}),
        node(count=10),
        NodeSpec("empty", "6.14"),
        NodeSpec("old", "5.15", gpus=(GpuSpec("VEGA10", "0000:03:00.0"),)),
    ],
)
def test_an_unusual_node_is_possible(spec: NodeSpec) -> None:
    assert Machine(spec).list("/sys/class/drm")


def test_the_bmc_evades_a_gpu_at_its_usual_address() -> None:
    gpus = (GpuSpec("MI355X", "0000:03:00.0"),)
    machine = Machine(NodeSpec("node", "6.14", gpus=gpus, bmc=True))
    assert machine.driver.cards[0].spec.bdf == "0000:04:00.0"
