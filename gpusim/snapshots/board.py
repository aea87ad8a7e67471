"""The GPUs of a capture: which KFD nodes and which PCI device are one, and what each says of itself.

One question for every fact of `GpuSpec`; `infer` puts the answers together. Rules: kernel.md 1.4-1.6
(location, partitions, memory shares, gpu_id), kfd.md 1 (caches) and 3 step 10 (bitmaps from L1 entries).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpusim.amd.kfd_ids import crc16, gpu_id, legacy_gpu_id, parse_bdf, partition_bytes
from gpusim.amd.product import Product
from gpusim.amd.products import PRODUCTS
from gpusim.snapshots.reading import Capture, Kfd, KfdNode, Pci, first, number

AMD = 0x1002
Say = Callable[[str], None]
"""Takes a sentence for the fixture's comments."""

_PARTITION_BITS = 7
_LAST_LOCATION, _LAST_DOMAIN = 0xFFFF, 0xFFFF_FFFF
"""The largest bus, device and function in one number (kernel.md 1.4), and what a PCI address has room for."""
_DISPLAYS = (0x03, 0x12)
"""PCI base classes of GPUs: displays and processing accelerators (kernel.md 3)."""
_NPS = re.compile(r"NPS(\d)")
_ANY_NPS = (1, 2, 4)


@dataclass(slots=True)
class Board:
    """One GPU of the capture."""

    bdf: str
    product: Product
    nodes: list[KfdNode] = field(default_factory=list)
    """Its KFD nodes, in list order."""
    pci: Pci | None = None
    mode: str = "SPX"
    nps: int = 1

    @property
    def parts(self) -> int:
        """Partitions of the whole GPU, as KFD's numbers tell: all XCCs over those of a node."""
        xccs = self.nodes[0].values.get("num_xcc") if self.nodes else None
        return self.product.xccs // xccs if xccs else 1

    def part(self, node: KfdNode) -> int:
        """Partition number of one of its nodes (kernel.md 1.5: in the function bits of location_id)."""
        own = parse_bdf(self.bdf)[2] & _PARTITION_BITS
        return (node.values.get("location_id", 0) & _PARTITION_BITS) ^ own if self.parts > 1 else 0

    @property
    def first_minor(self) -> int | None:
        """Render minor of partition 0, from the PCI device or counted back from a partition's."""
        if self.pci is not None and self.pci.render is not None:
            return self.pci.render
        minors = [
            minor - self.part(node) for node in self.nodes if (minor := node.values.get("drm_render_minor"))
        ]
        return min(minors, default=None)

    def file_id(self, capture: Capture) -> int | None:
        """The PCI file unique_id; 0 when it reads empty, None when there is none."""
        text = first(capture, self.pci, "unique_id") if self.pci else None
        return None if text is None else number(text, 16) or 0


def boards(capture: Capture, kfd: Kfd, devices: Mapping[str, Pci], say: Say) -> list[Board]:
    """The GPUs amdgpu drives or could drive, in no particular order."""
    found: dict[str, Board] = {}
    for node in kfd.gpus:
        _join(found, node, devices, say)
    for device in devices.values():
        board = found.get(device.bdf)
        if board is None and _may_be_gpu(capture, device) and (product := _product(capture, device, say)):
            board = found[device.bdf] = Board(device.bdf, product)
        if board is not None:
            board.pci = device
    for board in found.values():
        _modes(capture, kfd, board, say)
    return list(found.values())


def _join(found: dict[str, Board], node: KfdNode, devices: Mapping[str, Pci], say: Say) -> None:
    values = node.values
    rows = [row for row in PRODUCTS.values() if row.device_id == values.get("device_id")]
    if not rows:
        say(
            f"KFD node {node.index} is device 0x{values.get('device_id', 0):04x}, of which no row tells: "
            "left out"
        )
        return
    location, xccs = values.get("location_id", 0), values.get("num_xcc", rows[0].xccs)
    if location > _LAST_LOCATION or values.get("domain", 0) > _LAST_DOMAIN:
        say(f"KFD node {node.index}: its location_id or domain is no PCI address: left out")
        return
    if xccs < 1 or rows[0].xccs % xccs:
        say(
            f"KFD node {node.index}: num_xcc does not divide the {rows[0].xccs} XCCs of {rows[0].name}: "
            "all are assumed"
        )
        xccs = rows[0].xccs
        node = replace(node, values={**values, "num_xcc": xccs})
    partition = rows[0].partitionable and xccs < rows[0].xccs
    devfn = location & 0xFF & ~(_PARTITION_BITS if partition else 0)
    tail = f"{location >> 8:02x}:{devfn >> 3:02x}.{devfn & 7}"
    bdf = f"{values.get('domain', 0):04x}:{tail}"
    if "domain" not in values:  # 5.x prints none (kfd.md 1)
        bdf = next((one for one in devices if one.endswith(f":{tail}")), bdf)
    board = found.get(bdf)
    if board is not None and not partition:
        say(f"KFD node {node.index} has the address of node {board.nodes[0].index}: left out as a copy of it")
        return
    if board is None:
        board = found[bdf] = Board(bdf, rows[0])
    board.nodes.append(node)


def _may_be_gpu(capture: Capture, device: Pci) -> bool:
    if device.vendor not in (AMD, None) or (device.vendor is None and device.driver != "amdgpu"):
        return False
    kind = number(first(capture, device, "class"), 16)
    return kind >> 16 in _DISPLAYS if kind is not None else device.driver == "amdgpu"


def _product(capture: Capture, device: Pci, say: Say) -> Product | None:
    """Row of a device by its id; without one by the modes it offers."""
    if device.device is not None:
        rows = [row for row in PRODUCTS.values() if row.device_id == device.device]
        if not rows and device.driver == "amdgpu":
            say(f"{device.bdf} is device 0x{device.device:04x}, of which no row tells: left out")
        return rows[0] if rows else None
    modes = first(capture, device, "available_compute_partition")
    memory = first(capture, device, "available_memory_partition")
    rows = [row for row in PRODUCTS.values() if not row.vf and _offers(row, modes, memory)]
    if not rows:
        say(f"{device.bdf} has no recorded device id: left out")
        return None
    say(
        f"no device id is recorded: {rows[0].name} is the first product with these partition modes"
        + (f" (as {', '.join(row.name for row in rows[1:])})" if rows[1:] else "")
    )
    return rows[0]


def _offers(row: Product, modes: str | None, memory: str | None) -> bool:
    if modes is None or not row.partitionable or not set(modes.split(", ")) <= set(row.modes()):
        return False
    return memory is None or memory == ", ".join(f"NPS{nps}" for nps in row.nps_modes)


def _modes(capture: Capture, kfd: Kfd, board: Board, say: Say) -> None:
    """Compute and memory mode: the partition files, else node counts and bank sizes."""
    product = board.product
    names = {product.partitions(mode): mode for mode in reversed(product.modes())}
    board.mode = names.get(board.parts, "SPX")
    text = first(capture, board.pci, "current_compute_partition") if board.pci else None
    if text in product.modes():
        board.mode = text
    said = _NPS.fullmatch(
        (first(capture, board.pci, "current_memory_partition") if board.pci else None) or ""
    )
    board.nps = int(said[1]) if said else _bank_nps(capture, kfd, board, say)


def _bank_nps(capture: Capture, kfd: Kfd, board: Board, say: Say) -> int:
    banks = {node.index: kfd.bank(node).get("size_in_bytes") for node in board.nodes}
    if board.parts == 1 or not any(banks.values()):
        if board.parts > 1:
            say("neither partition files nor memory banks are recorded: NPS1 is assumed")
        return 1
    total = vram(capture, kfd, board) or board.product.vram_bytes

    def fits(nps: int) -> bool:
        return all(
            banks[node.index] in (None, partition_bytes(total, nps, board.parts, board.part(node)))
            for node in board.nodes
        )

    return next((nps for nps in _ANY_NPS if fits(nps)), 1)


def vram(capture: Capture, kfd: Kfd, board: Board) -> int | None:
    """mem_info_vram_total, or what the banks of all partitions make; None: not recorded."""
    told = number(first(capture, board.pci, "mem_info_vram_total")) if board.pci else None
    if told is not None:
        return told
    banks = [size for node in board.nodes if (size := kfd.bank(node).get("size_in_bytes"))]
    if not banks or board.product.bank_is_gtt or len(banks) < board.parts:
        return None
    usual = board.product.vram_bytes
    for nps in _ANY_NPS:
        if usual and banks == [partition_bytes(usual, nps, board.parts, p) for p in range(board.parts)]:
            return usual  # shares are rounded to pages, so a sum may fall short
    return sum(banks)


def gtt(capture: Capture, kfd: Kfd, board: Board) -> int | None:
    """mem_info_gtt_total; a small APU's bank is that too (kfd.md 1)."""
    told = number(first(capture, board.pci, "mem_info_gtt_total")) if board.pci else None
    if told is None and board.product.bank_is_gtt and board.nodes:
        return kfd.bank(board.nodes[0]).get("size_in_bytes")
    return told


def vram_used(capture: Capture, board: Board) -> int | None:
    """VRAM in use when the capture was taken."""
    told = number(first(capture, board.pci, "mem_info_vram_used")) if board.pci else None
    if told is None and board.nodes:
        told = number(capture.text(f"{board.nodes[0].path}/mem_banks/0/used_memory"))
    return told


def unique_id(capture: Capture, board: Board, say: Say) -> int | None:
    """The PCI file's, else KFD's where all nodes share it; 0: none; None: not recorded."""
    own = board.file_id(capture)
    if own is not None:
        return own
    printed = {node.values["unique_id"] for node in board.nodes if "unique_id" in node.values}
    if len(printed) > 1:
        say(
            f"{board.bdf}: KFD prints ids of dies, and the GPU's own unique_id is not recorded: made from "
            "the seed"
        )
        return None
    return printed.pop() if printed else None


def hive_id(board: Board) -> int | None:
    """The xGMI hive; 0: none, also where partitions of one GPU form their own (kernel.md 1.5)."""
    printed = next((n.values["hive_id"] for n in board.nodes if "hive_id" in n.values), None)
    _, bus, devfn = parse_bdf(board.bdf)
    return 0 if board.parts > 1 and printed == bus << 8 | devfn else printed


def firmware(capture: Capture, board: Board) -> tuple[int | None, int | None]:
    """Versions of the compute and the SDMA firmware, from KFD or fw_version/."""
    if board.nodes:
        values = board.nodes[0].values
        return values.get("fw_version"), values.get("sdma_fw_version")
    if board.pci is None:
        return None, None
    compute, sdma = (first(capture, board.pci, f"fw_version/{n}_fw_version") for n in ("mec", "sdma"))
    return number(compute, 16), number(sdma, 16)


def fused(kfd: Kfd, board: Board, say: Say) -> dict[int, tuple[int, ...]]:
    """XCC → bitmaps where they differ from the product's, from the L1 data caches: one for each active CU."""
    product = board.product
    kind = product.caches[0]
    arrays = product.engines * product.arrays
    found: dict[int, tuple[int, ...]] = {}
    for node in board.nodes:
        base, cus = node.values.get("simd_id_base", 0), set[int]()
        for cache in kfd.caches(node):
            if (cache.get("level"), cache.get("type")) != (kind.level, kind.type) or cache.get(
                "size"
            ) != kind.kib:
                break
            cus.add(cache.get("processor_id_low", 0) - base)
        if not cus:
            _say_fused(node, board, say)
            continue
        xccs = node.values.get("num_xcc", product.xccs)
        for xcc in range(xccs):
            start = xcc * arrays * product.cus_per_array
            bitmaps = tuple(
                sum(
                    1 << cu
                    for cu in range(product.cus_per_array)
                    if start + a * product.cus_per_array + cu in cus
                )
                for a in range(arrays)
            )
            if bitmaps != product.bitmaps:
                found[board.part(node) * xccs + xcc] = bitmaps
    return found


def _say_fused(node: KfdNode, board: Board, say: Say) -> None:
    product, simds = board.product, node.values.get("simd_count", 0)
    usual = product.simd_per_cu * (product.total_cus() // board.parts)
    if simds != usual:
        say(
            f"{board.bdf}: {simds} SIMDs are not the {usual} of a {product.name}; which CUs are fused off is "
            "not recorded (no caches)"
        )


def subsystem(kfd: Kfd, board: Board, say: Say) -> tuple[int, int] | None:
    """The PCI files', else one of AMD's that gives the recorded gpu_id; None: the product's."""
    if board.pci is not None and board.pci.subsystem is not None:
        return board.pci.subsystem
    if not board.nodes:
        return None
    node = board.nodes[0]
    wanted, memory = node.gpu_id, kfd.bank(node).get("size_in_bytes")
    if not wanted or memory is None:
        return None
    product = board.product
    xccs = product.xccs // board.parts
    usual = product.subsystem_device or product.device_id
    legacy = "gfx_target_version" not in node.values

    def made(device: int) -> int:
        if legacy:
            return legacy_gpu_id(board.bdf, (AMD, device), product.device_id, memory, ())
        place = board.part(node) * xccs, xccs
        return gpu_id(board.bdf, (AMD, device), product.device_id, memory, place, ())

    if made(usual) == wanted:
        return None
    device = _hashed(made, wanted, range(1 << 16)) if legacy else _solved(made, wanted)
    if device is None:
        say(f"{board.bdf}: no subsystem gives gpu_id {wanted}")
        return None
    say(
        f"{board.bdf}: subsystem 1002:{device:04x} is not recorded; it is one that gives gpu_id {wanted}, "
        "which chance does too"
    )
    return AMD, device


def _hashed(made: Callable[[int], int], wanted: int, devices: Iterable[int]) -> int | None:
    return next((device for device in devices if made(device) == wanted), None)


def _solved(made: Callable[[int], int], wanted: int) -> int | None:
    """The device for which a CRC is `wanted`: a CRC is linear, so a bit of the id flips a fixed set."""
    steps = [crc16(b"\0" * 6 + (1 << bit).to_bytes(2, "little") + b"\0" * 24) for bit in range(16)]
    flips = [0] * (1 << 16)
    start = made(0)
    for device in range(1, 1 << 16):
        low = device & -device
        flips[device] = flips[device ^ low] ^ steps[low.bit_length() - 1]
        if start ^ flips[device] == wanted:
            return device
    return None
