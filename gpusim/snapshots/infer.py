"""The fixture that describes a capture: the inverse of the generator (kfd.md 3, step 10).

What cannot follow from rules is read back from what the rules made of it: addresses from locations, bitmaps
from L1 entries, NUMA nodes from link 0, the mode at boot from the generation and the SIMD ids, kernel and
driver from key sets. Every guess is said, as a comment of the fixture; nothing else of the capture is kept.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpusim import fixture
from gpusim.amd.gpufacts import gpu_facts
from gpusim.amd.pci import LINK_SPEED
from gpusim.amd.products import PRODUCTS
from gpusim.errors import GpusimError
from gpusim.kernel import MODES, behaviour
from gpusim.machine import Machine
from gpusim.snapshots import board as facts
from gpusim.snapshots import minors, releases
from gpusim.snapshots.board import Board, Say, boards
from gpusim.snapshots.evidence import traces, whole
from gpusim.snapshots.hostfacts import cpus, numa_nodes
from gpusim.snapshots.possible import loadable, possible
from gpusim.snapshots.reading import Capture, Kfd, first, number, partition_devices, pci_devices
from gpusim.snapshots.sources import Source
from gpusim.snapshots.xgmi import physical_numbers
from gpusim.spec import GpuSpec, NodeSpec, SpecError

_MODULE = "/sys/module/amdgpu"
_FIRST_MAJOR, _LAST_MAJOR = 234, 254
"""Where a machine's /dev/kfd gets its major from, by seed."""
_LANES = 16
_MBPS = {250: 1, 500: 2, 1000: 3, 2000: 4, 4000: 5}
"""PCIe generation by MB/s of one lane (kfd.md 1)."""
_PCIE = 2
_PRIVATE = 2
"""heap_type of memory that the BAR does not show (kernel.md 1.6)."""
_WIDTH = 116
_OPTIONAL = (
    "unique_id",
    "hive_id",
    "subsystem",
    "fw_version",
    "sdma_fw_version",
    "vram_bytes",
    "gtt_bytes",
    "xgmi_physical",
)


@dataclass(frozen=True, slots=True)
class Inferred:
    """What `infer` found.

    Attributes:
        spec: the node.
        notes: what was guessed, assumed or left out, a sentence each.
    """

    spec: NodeSpec
    notes: tuple[str, ...]

    def text(self) -> str:
        """The fixture: the notes as comments, then YAML."""
        said = [
            line
            for note in self.notes
            for line in textwrap.wrap(note, _WIDTH, initial_indent="# * ", subsequent_indent="#   ")
        ]
        head = ["# Inferred from a capture. What it does not tell, and what was concluded:", *said]
        return "\n".join([*(head if said else head[:0]), fixture.dump(self.spec)])


def infer(source: Source, name: str = "inferred") -> Inferred:
    """The description of the node that `source` shows.

    Args:
        source: a capture, complete or partial; texts may be padded with NUL.
        name: what the node is called.

    Raises:
        GpusimError: there is no GPU in it, or none of which a product row tells; the fixture could not be
            loaded again.
    """
    notes: dict[str, None] = {}
    found = _Inference(source, notes.setdefault).node(name)
    return Inferred(found, tuple(notes))


class _Inference:
    """One capture being read."""

    def __init__(self, source: Source, say: Say) -> None:
        self.say = say
        self.capture = Capture(source)
        self.kfd = Kfd(self.capture)
        self.devices = pci_devices(self.capture)
        self.xcps = partition_devices(self.capture)
        self._nameless: list[str] = []
        self.boards = minors.probe_order(boards(self.capture, self.kfd, self.devices, say))

    def node(self, name: str) -> NodeSpec:
        bmc, cards = minors.displays(self.boards, self.devices, self.xcps, self.say)
        if not self.boards and not any(card.vendor == facts.AMD for card in cards):
            raise GpusimError(self._nothing())
        kernel, driver = self._release()
        spec = NodeSpec(
            name,
            kernel,
            driver,
            cpus=cpus(self.capture, self.kfd, self.boards, self.devices, self.say),
            bmc=bmc,
            cards=cards,
            seed=self._seed(),
            pcie_generation=self._generation(),
            large_bar=self._large_bar(),
            p2p=self._p2p(),
            minors_per_type=minors.limit(self.boards, self.xcps, behaviour(kernel, driver)),
            kfd_partitions=self._listing(),
        )
        spec = self._platform(spec)
        places = numa_nodes(self.capture, self.kfd, self.boards, spec.cpus.nodes, self.say)
        numbers = physical_numbers(self.kfd, self.boards)
        gpus = tuple(
            self._gpu(board, numa, physical)
            for board, numa, physical in zip(self.boards, places, numbers, strict=True)
        )
        if self._nameless:
            self.say(f"unique_id of {', '.join(self._nameless)} is not recorded: made from the seed")
        spec = possible(replace(spec, gpus=gpus), self.say)
        spec = _booted(self._cgroups(_without_defaults(spec)), self.kfd, self.say)
        loadable(spec)
        return spec

    def _nothing(self) -> str:
        held = sorted({d.driver for d in self.devices.values() if d.driver})
        seen = f"its PCI devices belong to {', '.join(held)}" if held else "neither KFD nodes nor PCI devices"
        return (
            f"no GPU in this capture: {seen}; {self.kfd.root} lists {len(self.kfd.nodes)} nodes, no known GPU"
        )

    def _release(self) -> tuple[str, str]:
        kernel = self.capture.text("/proc/sys/kernel/osrelease")
        version = self.capture.text(f"{_MODULE}/version")
        driver = releases.module_version(version, self.capture.has(f"{_MODULE}/srcversion"))
        seen = traces(self.capture, self.kfd, self.boards, self.xcps)
        if self._lost():
            seen.append(releases.key("minors went beyond 64 of a type", False, lambda r: r.extended_minors))
        found = releases.choose(seen, kernel, driver)
        missing = [name for name, told in (("kernel", kernel), ("driver", driver)) if not told]
        if missing:
            fits = (
                f"it fits {len(seen) - len(found.against)} of {len(seen)} traces" if seen else "nothing tells"
            )
            self.say(
                f"{' and '.join(missing)} not recorded: {found.kernel} with driver {found.driver} stands for "
                f"others like it; {fits}"
            )
        for trace in found.against:
            self.say(f"{found.kernel} with driver {found.driver} does not explain this: {trace}")
        return found.kernel, found.driver

    def _lost(self) -> bool:
        return minors.lost(self.boards, self.xcps) > 0

    def _platform(self, spec: NodeSpec) -> NodeSpec:
        values = self.capture.values(f"{self.kfd.root}/system_properties")
        return replace(
            spec,
            platform_oem=values.get("platform_oem", spec.platform_oem),
            platform_id=values.get("platform_id", spec.platform_id),
            platform_rev=values.get("platform_rev", spec.platform_rev),
        )

    def _seed(self) -> int:
        """The seed that gives /dev/kfd its number; it also invents what the capture does not tell."""
        text = self.capture.text(f"{self.kfd.root.removesuffix('/topology')}/dev") or ""
        major = number(text.partition(":")[0])
        if major is None or not _FIRST_MAJOR <= major <= _LAST_MAJOR:
            return NodeSpec("", "").seed
        return major - _FIRST_MAJOR

    def _generation(self) -> int:
        """PCIe generation where the host is slower than a card."""
        usual = NodeSpec("", "").pcie_generation
        seen = []
        for board in self.boards:
            told = self._link_generation(board)
            if told is not None and not board.product.apu and told < board.product.pcie_generation:
                seen.append(told)
        return min(seen, default=usual)

    def _link_generation(self, board: Board) -> int | None:
        for node in board.nodes[:1]:
            link = next(self.kfd.links(node), {})
            if link.get("type") == _PCIE and link.get("max_bandwidth"):
                return _MBPS.get(link["max_bandwidth"] // _LANES)
        text = (first(self.capture, board.pci, "max_link_speed") if board.pci else None) or ""
        return next((g for g, speed in LINK_SPEED.items() if text.startswith(f"{speed} ")), None)

    def _large_bar(self) -> bool:
        for board in self.boards:
            if board.product.apu:
                continue
            if board.nodes and (heap := self.kfd.bank(board.nodes[0]).get("heap_type")):
                return heap != _PRIVATE
            if board.pci is not None:
                total, shown = (
                    first(self.capture, board.pci, f"mem_info_{name}_total") for name in ("vram", "vis_vram")
                )
                if total and shown:
                    return total == shown
        return True

    def _p2p(self) -> bool:
        """CONFIG_HSA_AMD_P2P: links between GPUs that no hive joins; True where there could be none."""
        others = len(self.kfd.cpus) - 1
        able = [(b, n) for b in self.boards for n in b.nodes if not b.product.bank_is_gtt]
        for board, node in able:
            hive = node.values.get("hive_id", 0)
            apart = sum(
                other is not node and (not hive or other.values.get("hive_id") != hive) for _, other in able
            )
            count = node.values.get("p2p_links_count")
            if apart and count is not None and board.nodes:
                return count > others
        return True

    def _listing(self) -> str:
        """Whether KFD lists all partitions (decision 5)."""
        able = [b for b in self.boards if b.product.partitionable and b.nodes and b.mode != "SPX"]
        if able and all(board.parts == 1 for board in able):
            return "hidden"
        if able and all(b.parts > 1 and b.parts - 1 == len(b.nodes) for b in able) and not self._only_last():
            return "truncated"
        return "listed"

    def _only_last(self) -> bool:
        """Whether minors ran out, which also costs the last GPU its last partition."""
        return len(self.boards) == 1 and bool(self.xcps) and self._lost()

    def _gpu(self, board: Board, numa: int | None, physical: int | None) -> GpuSpec:
        capture, kfd, product = self.capture, self.kfd, board.product
        compute, sdma = facts.firmware(capture, board)
        driver = board.pci.driver if board.pci else "amdgpu"
        used = facts.vram_used(capture, board)
        return GpuSpec(
            product.name,
            board.bdf,
            numa=numa,
            unique_id=self._unique_id(board),
            hive_id=facts.hive_id(board),
            mode=board.mode,
            nps=board.nps,
            bound="amdgpu" if board.nodes else driver,
            subsystem=facts.subsystem(kfd, board, self.say),
            fw_version=compute,
            sdma_fw_version=sdma,
            vram_bytes=facts.vram(capture, kfd, board),
            gtt_bytes=facts.gtt(capture, kfd, board),
            vram_used=GpuSpec("", "").vram_used if used is None else used,
            xgmi_physical=physical,
            fused=facts.fused(kfd, board, self.say),
        )

    def _unique_id(self, board: Board) -> int | None:
        found = facts.unique_id(self.capture, board, self.say)
        if (
            found is None
            and board.pci is not None
            and whole(self.capture, board)
            and board.pci.driver == "amdgpu"
        ):
            return 0
        if found is None and (not board.nodes or "unique_id" not in board.nodes[0].values):
            self._nameless.append(board.bdf)
        return found

    def _cgroups(self, spec: NodeSpec) -> NodeSpec:
        root = "/sys/fs/cgroup"
        if self.capture.has(f"{root}/kubepods") and not self.capture.has(f"{root}/kubepods.slice"):
            spec = replace(spec, cgroup_driver="cgroupfs")
        capacity = self.capture.text(f"{root}/dmem.capacity")
        if capacity is not None and any(gpu.bound == "amdgpu" for gpu in spec.gpus):
            regions = "drm/" in capacity
            if regions != behaviour(spec.kernel, spec.driver).dmem_region:
                spec = replace(spec, dmem_regions=regions)
        return spec


def _without_defaults(spec: NodeSpec) -> NodeSpec:
    """`spec` without what the product, the host or the seed gives anyway."""
    for name in _OPTIONAL:
        for index, gpu in enumerate(spec.gpus):
            if getattr(gpu, name) is None:
                continue
            less = _with(spec, index, _unsaid(gpu, name))
            if all(_same(spec, less, at) for at in range(len(spec.gpus))):
                spec = less
    return spec


def _unsaid(gpu: GpuSpec, name: str) -> GpuSpec:
    changes: dict[str, Any] = {name: None}
    return replace(gpu, **changes)


def _with(spec: NodeSpec, index: int, gpu: GpuSpec) -> NodeSpec:
    return replace(spec, gpus=(*spec.gpus[:index], gpu, *spec.gpus[index + 1 :]))


def _same(one: NodeSpec, other: NodeSpec, index: int) -> bool:
    a, b = gpu_facts(one, index), gpu_facts(other, index)
    return all(getattr(a, name) == getattr(b, name) for name in _OPTIONAL)


def _booted(spec: NodeSpec, kfd: Kfd, say: Say) -> NodeSpec:
    """`spec` with the mode at boot that gives the recorded generation and SIMD ids (kernel.md 1.4)."""
    generation = number(kfd.capture.text(f"{kfd.root}/generation_id"))
    if generation is None or not kfd.gpus:
        return spec
    bases = [node.values.get("simd_id_base") for node in kfd.gpus]
    for candidate in _histories(spec):
        try:
            topology = Machine(candidate).driver.topology
        except SpecError:
            continue
        made = [node.simd_base for _, node in topology.gpu_nodes()]
        if topology.generation == generation and made == bases:
            return candidate
    say(
        f"generation_id {generation} and the first simd_id_base {bases[0]} tell of switches or reloads since "
        "boot that a fixture cannot tell; it describes a fresh boot in this mode"
    )
    return spec


def _histories(spec: NodeSpec) -> Iterator[NodeSpec]:
    """The node as it is, then with the last GPUs of the list switched from each mode at boot."""
    yield spec
    modes = {mode for gpu in spec.gpus for mode in _product_modes(gpu)}
    for mode in sorted(modes, key=MODES.index):
        for switched in _switched(spec.gpus, mode):
            yield replace(spec, gpus=switched)


def _switched(gpus: Sequence[GpuSpec], mode: str) -> Iterator[tuple[GpuSpec, ...]]:
    able = [index for index, gpu in enumerate(gpus) if gpu.mode != mode and mode in _product_modes(gpu)]
    for count in range(len(able), 0, -1):
        chosen = set(able[-count:])
        yield tuple(replace(g, boot_mode=mode) if i in chosen else g for i, g in enumerate(gpus))


def _product_modes(gpu: GpuSpec) -> tuple[str, ...]:
    """Compute modes of a GPU's product."""
    return PRODUCTS[gpu.product].modes()


def node_name(argument: str) -> str:
    """A name for the node, from what `opened` was given."""
    last = argument.rstrip("/").rpartition("/")[2]
    return re.sub(r"(\.yaml|\.yml|\.sock|\.pack)$", "", last) or "host"
