"""One GPU put together from its KFD nodes, its PCI directory and its device nodes.

Says of every partition whether it can be offered, and else names the first path that is missing, in this
order: PCI directory and its DRM entries, the GPU's VRAM, the partition's own DRM entry, `/dev/kfd`, the
render node. `/dev/kfd` is looked at and never opened: while it is open nothing on the node can be
switched by drivers up to 6.16 (decision 28). Rules: decisions 1 to 6, 10 to 12, 14, 20.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from devplugin.amd.inventory import Gpu, Partition, Skipped
from devplugin.amd.partitioning import MODES, Cut, cut
from devplugin.amd.pcidev import (
    BOUND,
    PLATFORM,
    Drm,
    PciFacts,
    Platform,
    UnusableError,
    read_drm,
    read_facts,
    read_text,
)
from devplugin.amd.products import clean_name, product
from devplugin.amd.topology import NODES, Node, read_bank
from devplugin.amd.uuid import own_id, partition_id, rocr_name, smi_uuid
from devplugin.host import Host, words

_MAX_CUS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Assembled:
    """What became of one GPU."""

    gpu: Gpu | None
    skipped: tuple[Skipped, ...]
    warnings: tuple[str, ...]
    unlisted: int = 0
    """Partitions without KFD node."""
    disagreement: str | None = None
    """Where mode file and KFD differ; the same text for every GPU in that state."""


class Assembler:
    """What all GPUs of one pass share; `assemble` makes one of them.

    Args:
        host: The node.
        node_name: For ids of GPUs without serial.
        nodes: All KFD GPU nodes of the machine.
        previous: GPUs of the last pass by BDF, for one that cannot be read just now: in reset, or hung.
        unlisted_at: Where a node that is not listed would stand: KFD's directory, or unreadable files.
    """

    def __init__(
        self,
        host: Host,
        node_name: str,
        nodes: Sequence[Node],
        previous: Mapping[str, Gpu],
        unlisted_at: str,
    ) -> None:
        """Look at /dev once."""
        self._host = host
        self._node_name = node_name
        self._previous = previous
        self._unlisted_at = unlisted_at
        self._platform = Platform(host)
        self._kfd_problem = _no_device_node(host, "/dev/kfd")
        self._cards = _names(host, "/dev/dri")
        self._shared_minors = repeated(node.render_minor for node in nodes)
        self._shared_ids = repeated(node.unique_id for node in nodes)

    def assemble(self, bdf: str, nodes: Sequence[Node]) -> Assembled:
        """The GPU at `bdf`, which is bound to amdgpu, with these KFD nodes (not empty)."""
        drm: Drm | None = None
        try:
            drm = read_drm(self._host, f"{BOUND}/{bdf}")
            facts = read_facts(self._host, bdf)
        except UnusableError as error:
            numbers = _numbers(nodes, drm)
            labels = [bdf] if len(nodes) == 1 else [f"{bdf}/{number}" for number in numbers]
            return Assembled(None, tuple(Skipped(label, str(error)) for label in labels), ())
        facts = self._remembered(bdf, facts, nodes)
        numbers = _numbers(nodes, drm)
        banks = [read_bank(self._host, node.index) for node in nodes]
        first, bank = nodes[0], banks[0]
        known = product(first.device_id)
        how = cut(
            facts.compute,
            facts.has_mode_file or facts.changeable,
            numbers,
            xccs=first.xccs,
            shares=round(facts.vram_bytes / bank) if bank and bank <= facts.vram_bytes else None,
            product=known,
        )
        warnings = list(facts.warnings)
        host_memory = bank is not None and bank > facts.vram_bytes
        if host_memory:
            warnings.append(self._pool(bdf, facts))
        skipped: list[Skipped] = []
        partitions: list[Partition] = []
        for number, node, size in sorted(
            zip(numbers, nodes, banks, strict=True), key=lambda item: (item[0], item[1].index)
        ):
            try:
                if numbers.count(number) > 1:
                    raise UnusableError(f"{_path(node)}: several nodes are partition {number} of {bdf}")
                partitions.append(self._partition(bdf, number, node, drm, size))
            except UnusableError as error:
                skipped.append(Skipped(label_of(bdf, number, how.ways), str(error)))
        unlisted = sorted(set(range(how.ways)) - set(numbers))
        skipped += (self._unlisted(bdf, number, how, facts.compute) for number in unlisted)
        try:
            whole_id = self._id(bdf, facts, nodes, how.ways)
        except UnusableError as error:
            skipped += (Skipped(label_of(bdf, p.number, how.ways), str(error)) for p in partitions)
            partitions = []
        gpu = None
        if partitions:
            gpu = Gpu(
                bdf=bdf,
                id=whole_id,
                device_id=first.device_id,
                market_name=(known.market_name if known else self._product_name(bdf)) or "amd-gpu",
                vram_bytes=facts.vram_bytes,
                compute=how.compute,
                memory=facts.memory,
                changeable=facts.changeable,
                numa=facts.numa,
                gfx=first.gfx,
                compute_queues=first.compute_queues,
                total_xccs=how.total_xccs,
                partitions=tuple(partitions),
                whole=how.ways == 1,
                ids=tuple(
                    whole_id if how.ways == 1 else partition_id(whole_id, p.number) for p in partitions
                ),
                ways=how.ways,
                host_memory=host_memory,
            )
        return Assembled(gpu, tuple(skipped), tuple(warnings), len(unlisted), how.warning)

    def _remembered(self, bdf: str, facts: PciFacts, nodes: Sequence[Node]) -> PciFacts:
        """The facts, with modes of the last pass where the files are there and name none (kernel.md 2.1, 7).

        In reset they answer EPERM, on a hung GPU UNKNOWN: neither changes what the GPU is cut into, and a
        GPU offered under another name meanwhile would be another device to kubelet. KFD still decides.
        """
        before = self._previous.get(bdf)
        if before is None or before.device_id != nodes[0].device_id:
            return facts
        if facts.has_mode_file and facts.compute not in MODES and len(nodes) == len(before.partitions):
            facts = replace(facts, compute=before.compute)
        if facts.has_memory_file and not facts.memory:
            facts = replace(facts, memory=before.memory)
        return facts

    def _partition(self, bdf: str, number: int, node: Node, drm: Drm, bank: int | None) -> Partition:
        """One node's device (decisions 1, 2, 20)."""
        minor = node.render_minor
        if not minor:
            raise UnusableError(f"{_path(node)}: drm_render_minor is 0: no render node")
        if minor in self._shared_minors:
            raise UnusableError(f"{_path(node)}: renderD{minor} is named by several KFD nodes")
        if not 0 < node.cus <= _MAX_CUS:
            raise UnusableError(
                f"{_path(node)}: simd_count {node.simds}, simd_per_cu {node.simds_per_cu}: no CUs"
            )
        if minor in drm.renders:
            key, card = bdf, drm.card
        elif (found := self._platform.find(minor)) is not None:
            key, card = found
        else:
            where = f"{BOUND}/{bdf}" if number == 0 else f"{PLATFORM}/amdgpu_xcp*"
            raise UnusableError(self._platform.problem or f"{where}/drm/renderD{minor}: ENOENT")
        if self._kfd_problem:
            raise UnusableError(self._kfd_problem)
        if (problem := _no_device_node(self._host, f"/dev/dri/renderD{minor}")) is not None:
            raise UnusableError(problem)
        own_name = node.unique_id and node.unique_id not in self._shared_ids
        return Partition(
            number=number,
            key=key,
            node=node.index,
            render_minor=minor,
            card=card if f"card{card}" in self._cards else None,
            cus=node.cus,
            xccs=node.xccs,
            bank_bytes=bank,
            rocr_name=rocr_name(node.unique_id) if own_name else None,
        )

    def _unlisted(self, bdf: str, number: int, how: Cut, mode: str) -> Skipped:
        """A partition of the mode that KFD has no node for is told, never offered (decisions 4, 5)."""
        said = mode or how.compute or f"{how.ways}-way mode"
        return Skipped(
            label_of(bdf, number, how.ways),
            f"no KFD node for partition {number} of {said}: {self._unlisted_at}",
        )

    def _id(self, bdf: str, facts: PciFacts, nodes: Sequence[Node], ways: int) -> str:
        """The registered id of the whole GPU (decisions 10, 11).

        A GPU without serial has neither the PCI file nor a number in KFD. Where only the file is absent,
        KFD's number stands in if it can only be the GPU's own; partitions print their own from 6.18 on
        (kernel.md 1.5). A file that cannot be read says nothing. In doubt the GPU is left out: another id
        would make the scheduler forget who holds it.
        """
        if facts.unique_id_problem:
            if bdf in self._previous:
                return self._previous[bdf].id
            raise UnusableError(facts.unique_id_problem)
        unique_id = facts.unique_id
        if unique_id is None:
            told = {node.unique_id for node in nodes}
            if len(told) > 1 or (ways > 1 and len(nodes) == 1 and told != {0}):
                raise UnusableError(f"{BOUND}/{bdf}/unique_id: ENOENT, and KFD tells no serial of the GPU")
            unique_id = told.pop() or None
        if unique_id is None or nodes[0].device_id is None:
            return own_id(self._node_name, bdf)
        return smi_uuid(unique_id, nodes[0].device_id)

    def _product_name(self, bdf: str) -> str:
        """The FRU's name, for a product the table does not have; many cards have none (kernel.md 3)."""
        try:
            return clean_name(read_text(self._host, f"{BOUND}/{bdf}/product_name"))
        except OSError:
            return ""

    def _pool(self, bdf: str, facts: PciFacts) -> str:
        """An APU's KFD bank is GTT: say which pool is registered and which is not (decision 6, B13)."""
        try:
            gtt = f"{int(read_text(self._host, f'{BOUND}/{bdf}/mem_info_gtt_total')) >> 20} MiB"
        except (OSError, ValueError):
            gtt = "of unknown size"
        return (
            f"{bdf}: APU: registered memory is mem_info_vram_total, {facts.vram_bytes >> 20} MiB; "
            f"mem_info_gtt_total, {gtt}, is host memory: not counted, and no dmem limit holds it"
        )


def label_of(bdf: str, number: int, ways: int) -> str:
    """The stable name of a device in `skipped`: ``<bdf>``, or ``<bdf>/<partition>`` of a partitioned GPU."""
    return bdf if ways == 1 else f"{bdf}/{number}"


def repeated(items: Iterable[int]) -> Set[int]:
    """What occurs more than once."""
    once: set[int] = set()
    twice: set[int] = set()
    for item in items:
        (twice if item in once else once).add(item)
    return twice


def _numbers(nodes: Sequence[Node], drm: Drm | None) -> list[int]:
    """Partition numbers: the function bits where a GPU has several nodes (decision 3).

    A single node is the GPU or its partition 0, unless its render node is not the PCI device's own: then
    it is another partition, and the rest of its GPU is not listed.
    """
    if len(nodes) == 1 and (drm is None or not drm.renders or nodes[0].render_minor in drm.renders):
        return [0]
    return [node.function for node in nodes]


def _no_device_node(host: Host, path: str) -> str | None:
    """Why a device node cannot be handed to a container, without opening it; None when it can.

    On a rendered or mounted tree device nodes are plain files.
    """
    try:
        kind = host.stat(path).kind.name
    except OSError as error:
        return f"{path}: {words(error)}"
    return None if kind in ("CHARACTER", "FILE") else f"{path}: no device node"


def _names(host: Host, path: str) -> Set[str]:
    try:
        return frozenset(host.list(path))
    except OSError:
        return frozenset()


def _path(node: Node) -> str:
    return f"{NODES}/{node.index}/properties"
