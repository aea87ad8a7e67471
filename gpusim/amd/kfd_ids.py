"""Arithmetic of KFD identities: gpu_id, memory shares, ids of dies; tested with recorded numbers.

Sources: kernel.md 1.4 (CRC-16, vectors), kfd.md 1 (hash of the 5.x kernels), kernel.md 1.6 (NPS split);
drivers/gpu/drm/amd/amdkfd/kfd_topology.c (`kfd_generate_gpu_id`).
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from functools import lru_cache

PAGE = 4096
_MIB16 = 16 << 20
_MASK64 = (1 << 64) - 1


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0xA001 if value & 1 else value >> 1
        table.append(value)
    return tuple(table)


_CRC = _crc_table()


@lru_cache(maxsize=4096)
def crc16(data: bytes) -> int:
    """CRC-16 of the kernel: reflected polynomial 0xA001, start 0."""
    crc = 0
    for byte in data:
        crc = (crc >> 8) ^ _CRC[(crc ^ byte) & 0xFF]
    return crc


@lru_cache(maxsize=1024)
def parse_bdf(bdf: str) -> tuple[int, int, int]:
    """``0000:75:00.0`` → domain, bus, devfn."""
    domain, bus, rest = bdf.split(":")
    device, function = rest.split(".")
    return int(domain, 16), int(bus, 16), int(device, 16) << 3 | int(function, 16)


def gpu_id(  # noqa: PLR0917 - the words of the hash, in its order
    bdf: str,
    subsystem: tuple[int, int],
    device_id: int,
    memory: int,
    xccs: tuple[int, int],
    taken: Collection[int],
) -> int:
    """KFD gpu_id of a node.

    Args:
        bdf: PCI address of the GPU.
        subsystem: PCI subsystem vendor and device.
        device_id: PCI device id.
        memory: the node's local memory, bytes.
        xccs: index of the node's first XCC, and how many it has.
        taken: ids of the nodes that exist; the next free number is used (kernel.md 1.4).
    """
    domain, bus, devfn = parse_bdf(bdf)
    words = struct.pack(
        "<8I",
        devfn,
        subsystem[0] | subsystem[1] << 16,
        domain,
        device_id,
        bus,
        memory & 0xFFFFFFFF,
        memory >> 32,
        xccs[0] | xccs[1] << 16,
    )
    return free_id(crc16(words), taken)


def legacy_gpu_id(
    bdf: str, subsystem: tuple[int, int], device_id: int, memory: int, taken: Collection[int]
) -> int:
    """The same of the 5.x kernels: no domain and no XCC in it (kfd.md 1; one capture, weak evidence)."""
    _, bus, devfn = parse_bdf(bdf)
    value = 0
    for word in (devfn, *subsystem, device_id, bus, memory & 0xFFFFFFFF, memory >> 32):
        value ^= (word * 0x61C88647 & 0xFFFFFFFF) >> 16
    return free_id(value, taken)


def free_id(wanted: int, taken: Collection[int]) -> int:
    """`wanted`, or the next number modulo 65536 that is neither 0 nor taken."""
    while wanted == 0 or wanted in taken:
        wanted = wanted + 1 & 0xFFFF
    return wanted


def partition_bytes(total: int, nps: int, parts: int, part: int) -> int:
    """Local memory of partition `part` of `parts` (kernel.md 1.6, NPS split).

    In NPS1 all partitions share one pool and report equal shares. Otherwise the GPU has `nps` memory
    partitions, the last one 16 MiB smaller, and each is divided among its compute partitions.

    Args:
        total: mem_info_vram_total of the GPU, bytes.
        nps: number of memory partitions.
        parts: number of compute partitions.
        part: which one.
    """
    if nps == 1:
        return total // parts // PAGE * PAGE
    memory = (total + _MIB16) // nps
    if part * nps // parts == nps - 1:
        memory -= _MIB16
    return memory // max(1, parts // nps) // PAGE * PAGE


def invented(seed: int, *path: int) -> int:
    """A stable 64-bit number that is never 0, different for every path (splitmix64 over it)."""
    value = seed & _MASK64
    for step in path:
        value = (value ^ step) + 0x9E3779B97F4A7C15 & _MASK64
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
        value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK64
        value ^= value >> 31
    return value or 1


def die_id(unique_id: int, xcc: int) -> int:
    """The XCD serial newer drivers print instead of the GPU's unique_id (kernel.md 1.5), invented from it."""
    return invented(unique_id, 0x584344, xcc)
