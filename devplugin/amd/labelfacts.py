"""What the node's files say of its GPUs, as far as labels tell it (amd.md 12).

Labels describe hardware, offered or not: so this asks KFD, which lists every GPU and partition a runtime
can use, and takes from the PCI directory only what KFD does not know. A GPU without serial, driver version
or partition files still gets the rest of its labels. Never raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from devplugin.amd.discovery import nodes_by_gpu
from devplugin.amd.pcidev import BOUND, bound_gpus, read_text
from devplugin.amd.topology import Node, read_bank, read_topology
from devplugin.host import Host

_SIZE = re.compile(r"[0-9]{1,20}")
MODULE = "/sys/module/amdgpu"
"""Where ``/sys/class/drm/card<N>/device/driver/module`` leads for every GPU of the driver."""


@dataclass(frozen=True, slots=True)
class Agent:
    """One KFD GPU node with a render node: a GPU, or a partition of one."""

    gfx: int
    """gfx_target_version; 0 when the kernel has no such line."""
    device_id: int | None
    simds: int
    cus: int
    bank_bytes: int | None
    """KFD's own number, not the registered share (decision 7)."""
    product_name: str = ""
    """The PCI file's text; empty where there is none (VF, APU, most consumer cards)."""


@dataclass(frozen=True, slots=True)
class LabelFacts:
    """Everything labels are made of."""

    agents: tuple[Agent, ...] = ()
    """In KFD order."""
    configurations: tuple[str, ...] = ()
    """``cpx_nps4`` of each GPU that has both modes and may change them (decisions 13, 15)."""
    compute_partitioning: bool | None = None
    """Whether the first GPU has available_compute_partition; None without any PCI GPU."""
    memory_partitioning: bool | None = None
    driver_version: str = ""
    """Only out-of-tree drivers have one (kernel.md)."""
    driver_source: str = ""
    notes: tuple[str, ...] = ()
    """Lines for the log, stable between looks."""


def read_label_facts(host: Host) -> LabelFacts:
    """Look at the node; a few files per GPU."""
    topology = read_topology(host)
    notes = [node.reason for node in topology.unreadable]
    if topology.missing:
        notes.append(topology.missing)
    # The first 5.x kernels have no domain line (kfd.md 1); a label needs no more than that it is a GPU.
    nodes = [replace(node, domain=node.domain or 0) for node in topology.gpus if node.render_minor > 0]
    placed, _, _ = nodes_by_gpu(host, nodes, bound_gpus(host)[0])
    home = {node.index: bdf for bdf, members in placed.items() for node in members}
    agents = tuple(_agent(host, node, home.get(node.index)) for node in nodes)
    first = next(iter(placed), None)
    configurations: list[str] = []
    for bdf, members in placed.items():
        configurations += _configuration(host, bdf)
        notes += _counted_twice(
            host, bdf, [agent for agent, node in zip(agents, nodes, strict=True) if node in members]
        )
    return LabelFacts(
        agents=agents,
        configurations=tuple(configurations),
        compute_partitioning=None
        if first is None
        else _has(host, f"{BOUND}/{first}/available_compute_partition"),
        memory_partitioning=None
        if first is None
        else _has(host, f"{BOUND}/{first}/available_memory_partition"),
        driver_version=_text(host, f"{MODULE}/version"),
        driver_source=_text(host, f"{MODULE}/srcversion"),
        notes=tuple(notes),
    )


def _agent(host: Host, node: Node, bdf: str | None) -> Agent:
    return Agent(
        gfx=node.gfx,
        device_id=node.device_id,
        simds=node.simds,
        cus=node.cus,
        bank_bytes=read_bank(host, node.index),
        product_name=_text(host, f"{BOUND}/{bdf}/product_name") if bdf else "",
    )


def _configuration(host: Host, bdf: str) -> tuple[str, ...]:
    """``<compute>_<memory>`` of a GPU that can be partitioned, else nothing."""
    if not _has(host, f"{BOUND}/{bdf}/available_compute_partition"):
        return ()
    compute = _text(host, f"{BOUND}/{bdf}/current_compute_partition").lower()
    memory = _text(host, f"{BOUND}/{bdf}/current_memory_partition").lower()
    return (f"{compute}_{memory}",) if compute and memory else ()


def _counted_twice(host: Host, bdf: str, agents: Sequence[Agent]) -> tuple[str, ...]:
    """A driver that reports a GPU's whole memory for each of its partitions is said aloud (case B11)."""
    total = sum(agent.bank_bytes or 0 for agent in agents)
    vram = _text(host, f"{BOUND}/{bdf}/mem_info_vram_total")
    if len(agents) < 2 or not _SIZE.fullmatch(vram) or total <= int(vram):
        return ()
    return (f"{bdf}: its {len(agents)} partitions report {total} bytes together, the GPU has {vram}",)


def _has(host: Host, path: str) -> bool:
    try:
        host.stat(path)
    except OSError:
        return False
    return True


def _text(host: Host, path: str) -> str:
    """A short file's text; empty where it cannot be read."""
    try:
        return read_text(host, path)
    except OSError:
        return ""
