"""The keys of a fixture: for each one how it is written, and what a refusal calls it.

One row a key, in the order of `gpusim.spec`; the meaning of each key stands there. Integers may be
hexadecimal, sizes may carry a unit (``300MiB``), addresses and kernel releases need no quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from gpusim.amd.partition import MODES
from gpusim.amd.products import PRODUCTS
from gpusim.ascend.chips import CHIPS
from gpusim.ascend.health import WORDS
from gpusim.ppu import health as ppuhealth
from gpusim.ppu import products as ppuproducts
from gpusim.yamlnode import Fields, Items, Node, Scalar, describe, flow, quoted

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,20}) ?([KMGT]iB)")
_U64 = (1 << 64) - 1
_U32 = (1 << 32) - 1


class Refused(Exception):  # noqa: N818 - inside the reader only
    """A value that cannot stand where it stands: why, its line, and the key below the one being read."""

    def __init__(self, why: str, line: int, key: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.line = line
        self.key = key


@dataclass(frozen=True, slots=True)
class Codec:
    """How one value is read from a node and written as a YAML scalar or flow collection."""

    what: str
    """The sentence part after "allowed:"."""
    decode: Callable[[Node], Any]
    encode: Callable[[Any], str]


def refusal(node: Node, allowed: str, hint: str = "") -> Refused:
    """Found, allowed, and what may have been meant."""
    return Refused(f"found {describe(node)}, allowed: {allowed}{hint}", node.line)


def did_you_mean(word: str, known: list[str]) -> str:
    """A hint with the nearest known word, or nothing."""
    near = get_close_matches(word, known, n=1, cutoff=0.6) or [k for k in known if k.lower() == word.lower()]
    return f" (did you mean {near[0]}?)" if near else ""


def text(what: str, pattern: str = r"(?s).+", hint: str = "") -> Codec:
    """A string, quoted or not, that matches `pattern` whole."""
    wanted = re.compile(pattern)

    def decode(node: Node) -> str:
        if not isinstance(node, Scalar) or node.null or not wanted.fullmatch(node.text):
            raise refusal(node, what, hint)
        return node.text

    return Codec(what, decode, quoted)


def choice(values: list[str], what: str = "") -> Codec:
    """One of `values`."""
    what = what or ", ".join(values)

    def decode(node: Node) -> str:
        if not isinstance(node, Scalar) or node.text not in values:
            word = node.text if isinstance(node, Scalar) else ""
            raise refusal(node, what, did_you_mean(word, values))
        return node.text

    return Codec(what, decode, quoted)


def integer(low: int, high: int, what: str = "", *, hexadecimal: bool = False) -> Codec:
    """A whole number from `low` to `high`."""
    what = what or f"a whole number from {low} to {high}"

    def decode(node: Node) -> int:
        number = node.integer() if isinstance(node, Scalar) else None
        if number is None:
            quote = " (without quotes)" if isinstance(node, Scalar) and not node.plain else ""
            raise refusal(node, what + quote)
        if not low <= number <= high:
            raise refusal(node, what)
        return number

    return Codec(what, decode, hex if hexadecimal else str)


def _decode_size(node: Node) -> int:
    if isinstance(node, Scalar) and node.plain:
        number = node.integer()
        if number is None and (match := _SIZE.fullmatch(node.text)):
            number = int(match[1]) * _UNITS[match[2]]
        if number is not None and 0 <= number <= _U64:
            return number
    raise refusal(node, SIZE.what)


def _encode_size(size: int) -> str:
    for unit, factor in reversed(_UNITS.items()):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


SIZE = Codec("a number of bytes, or one with KiB, MiB, GiB or TiB", _decode_size, _encode_size)


def _decode_flag(node: Node) -> bool:
    if isinstance(node, Scalar) and node.plain and node.text in ("true", "false"):
        return node.text == "true"
    raise refusal(node, FLAG.what)


FLAG = Codec("true or false", _decode_flag, lambda value: "true" if value else "false")


def optional(codec: Codec, nothing: str) -> Codec:
    """`codec`, or null for None; `nothing` says what null means."""

    def decode(node: Node) -> Any:
        if isinstance(node, Scalar) and node.null:
            return None
        return codec.decode(node)

    what = f"{codec.what}, or null ({nothing})"
    return Codec(what, decode, lambda value: "null" if value is None else codec.encode(value))


def several(codec: Codec) -> Codec:
    """A list of `codec`, or one alone; a tuple that is not empty."""
    what = f"{codec.what}; or a list of such"

    def decode(node: Node) -> tuple[Any, ...]:
        if isinstance(node, Items) and node.items:
            return tuple(below(f"[{i}]", codec, item) for i, item in enumerate(node.items))
        if isinstance(node, Scalar):
            return (codec.decode(node),)
        raise refusal(node, what)

    return Codec(what, decode, lambda values: flow([codec.encode(value) for value in values]))


def below(key: str, codec: Codec, node: Node) -> Any:
    """Decode `node`, which stands at `key` below the value being read."""
    try:
        return codec.decode(node)
    except Refused as refused:
        raise Refused(refused.why, refused.line, key + refused.key) from None


_PAIR = text("vendor and device in hexadecimal, for instance 1002:75a3", r"[0-9a-f]{4}:[0-9a-f]{4}")


def _decode_pair(node: Node) -> tuple[int, int]:
    vendor, _, device = _PAIR.decode(node).partition(":")
    return int(vendor, 16), int(device, 16)


PAIR = Codec(_PAIR.what, _decode_pair, lambda pair: f'"{pair[0]:04x}:{pair[1]:04x}"')

_BITMAPS = several(integer(0, _U32, "a bitmap of CUs, for instance 0x1ff", hexadecimal=True))


def _decode_fused(node: Node) -> Mapping[int, tuple[int, ...]]:
    if not isinstance(node, Fields):
        raise refusal(node, FUSED.what)
    decoded = {}
    for key, value in node.fields.items():
        index = node.keys[key].integer()
        if index is None or index < 0:
            raise refusal(node.keys[key], FUSED.what)
        if index in decoded:
            raise Refused(f"XCC {index} stands twice", node.keys[key].line, f".{key}")
        decoded[index] = below(f".{key}", _BITMAPS, value)
    return decoded


def _encode_fused(fused: Mapping[int, tuple[int, ...]]) -> str:
    return "{" + ", ".join(f"{xcc}: {_BITMAPS.encode(maps)}" for xcc, maps in fused.items()) + "}"


FUSED = Codec("a mapping from XCC number to its bitmaps, one per shader array", _decode_fused, _encode_fused)

_COUNT = integer(0, 16)


def _decode_counts(node: Node) -> Mapping[str, int]:
    if not isinstance(node, Fields):
        raise refusal(node, COUNTS.what)
    return {key: below(f".{key}", _COUNT, value) for key, value in node.fields.items()}


def _encode_counts(counts: Mapping[str, int]) -> str:
    return "{" + ", ".join(f"{quoted(name)}: {count}" for name, count in counts.items()) + "}"


COUNTS = Codec("a mapping from template to a number of vNPUs", _decode_counts, _encode_counts)

_NAMES = text("names of fields of ppu-smi with spaces between", r"([a-z._]+( [a-z._]+)*)?")
FIELDS = Codec(
    _NAMES.what, lambda node: tuple(_NAMES.decode(node).split()), lambda names: quoted(" ".join(names))
)

_DISTANCE = integer(0, 255)
_WITHIN_ITSELF = 10
_ROW = several(_DISTANCE)


def distance(node: Node, nodes: int) -> int | tuple[tuple[int, ...], ...]:
    """NUMA distances: one number, the full matrix, or ``{sockets: 2, within: 12, between: 32}``.

    Args:
        node: what the fixture says.
        nodes: how many NUMA nodes with CPUs there are.
    """
    if isinstance(node, Scalar):
        return int(_DISTANCE.decode(node))
    if isinstance(node, Items):
        rows = tuple(below(f"[{i}]", _ROW, row) for i, row in enumerate(node.items))
        if len(rows) != nodes or any(len(row) != nodes for row in rows):
            raise Refused(f"the distance matrix must be {nodes} by {nodes}, as nodes says", node.line)
        return rows
    wanted = ["sockets", "within", "between"]
    if sorted(node.fields) != sorted(wanted):
        raise refusal(node, "a number, a matrix, or sockets, within and between")
    sockets, within, between = (below(f".{key}", _DISTANCE, node.fields[key]) for key in wanted)
    if not sockets or nodes % sockets:
        raise Refused(f"{nodes} nodes do not spread evenly over {sockets} sockets", node.line, ".sockets")
    each = nodes // sockets

    def apart(a: int, b: int) -> int:
        if a == b:
            return _WITHIN_ITSELF
        return int(within if a // each == b // each else between)

    return tuple(tuple(apart(a, b) for b in range(nodes)) for a in range(nodes))


def encode_distance(value: int | tuple[tuple[int, ...], ...]) -> str:
    """A number, or the matrix as a flow list of rows."""
    return str(value) if isinstance(value, int) else flow([_ROW.encode(row) for row in value])


_BY_SEED = "made from the seed"
_BY_PRODUCT = "the product's"

_BDF = text(
    "a PCI address such as 0000:75:00.0, in lower case", r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]"
)
_DRIVER = text("the name of a driver", r"[a-z0-9_-]+")

GPU_KEYS: Mapping[str, Codec] = {
    "product": choice(sorted(PRODUCTS)),
    "bdf": _BDF,
    "numa": optional(integer(-1, 4095, "a NUMA node, -1 when firmware does not say"), "no numa_node file"),
    "unique_id": optional(integer(0, _U64, "a 64-bit number, 0 for none", hexadecimal=True), _BY_SEED),
    "hive_id": optional(integer(0, _U64, "a 64-bit number, 0 for no hive", hexadecimal=True), _BY_SEED),
    "mode": choice([*MODES]),
    "boot_mode": optional(choice([*MODES]), "as mode"),
    "nps": integer(1, 8, "NPS as a number: 1, 2, 3, 4, 6 or 8"),
    "bound": optional(_DRIVER, "no driver"),
    "subsystem": optional(PAIR, _BY_PRODUCT),
    "fw_version": optional(integer(0, _U32), _BY_PRODUCT),
    "sdma_fw_version": optional(integer(0, _U32), _BY_PRODUCT),
    "vram_bytes": optional(SIZE, _BY_PRODUCT),
    "gtt_bytes": optional(SIZE, _BY_PRODUCT),
    "vram_used": SIZE,
    "xgmi_physical": optional(integer(0, 255), _BY_PRODUCT),
    "fused": FUSED,
}

CARD_KEYS: Mapping[str, Codec] = {
    "driver": _DRIVER,
    "bdf": _BDF,
    "vendor": integer(0, 0xFFFF, "a PCI vendor such as 0x8086", hexadecimal=True),
    "device": integer(0, 0xFFFF, "a PCI device such as 0x2000", hexadecimal=True),
    "render": FLAG,
    "before": integer(0, 4096),
    "subsystem": optional(PAIR, "the device's own"),
}
"""A display of another vendor."""

NPU_KEYS: Mapping[str, Codec] = {
    "chip": choice([*CHIPS]),
    "bdf": _BDF,
    "card": optional(integer(0, 1 << 20), "counted on"),
    "phy": optional(integer(0, 63), "the logic id"),
    "uuid": optional(text("five words of eight hexadecimal digits joined by -"), _BY_SEED),
    "health": choice([*WORDS]),
    "used_mib": optional(integer(0, 1 << 20), "as an idle chip"),
    "busy": integer(0, 100),
    "share": FLAG,
    "vnpus": COUNTS,
}

PPU_KEYS: Mapping[str, Codec] = {
    "product": choice([*ppuproducts.PRODUCTS]),
    "bdf": _BDF,
    "numa": integer(-1, 4095, "a NUMA node, -1 when firmware does not say"),
    "minor": optional(integer(0, 255), "its place among the PPUs"),
    "uuid": optional(text("GPU- and the five groups of a UUID in lower case"), _BY_SEED),
    "health": choice([*ppuhealth.WORDS]),
    "used_mib": optional(integer(0, 1 << 20), "as an idle card"),
    "busy": integer(0, 100),
    "unknown": FIELDS,
}

CPU_KEYS: Mapping[str, Codec] = {
    "vendor": choice(["amd", "intel"]),
    "nodes": integer(1, 4096),
    "threads_per_node": integer(1, 4096),
    "first_apic_ids": several(integer(0, _U32)),
    "max_mhz": integer(0, 100_000),
    "bytes_per_node": several(SIZE),
    "dmi_width": integer(0, 1024),
    "dmi_mhz": integer(0, 100_000),
}
"""All but ``distance``, which needs to know `nodes`."""

NODE_KEYS: Mapping[str, Codec] = {
    "name": text("a name"),
    "kernel": text("a kernel release such as 6.8.0-136-generic", r"[0-9]+\.[0-9]+[A-Za-z0-9.+_~-]*"),
    "driver": text("in-tree, or dkms- and a version (dkms-6.14.14)", r"in-tree|dkms-[0-9]+(\.[0-9]+)*"),
    "bmc": FLAG,
    "kfd_partitions": choice(["listed", "hidden", "truncated"]),
    "seed": integer(0, _U64),
    "pcie_generation": integer(1, 5),
    "large_bar": FLAG,
    "p2p": FLAG,
    "platform_oem": integer(0, _U64),
    "platform_id": integer(0, _U64),
    "platform_rev": integer(0, _U64),
    "minors_per_type": optional(integer(64, 64, "64"), "by kernel"),
    "cgroup_driver": choice(["systemd", "cgroupfs"]),
    "dmem_regions": optional(FLAG, "by driver and kernel"),
    "npu_driver": text("a version such as 25.5.1"),
    "npu_smi": several(text("a path of npu-smi")),
    "npu_smi_status": integer(0, 255),
    "ppu_driver": text("a version such as 1.4.0"),
    "ppu_loaded": FLAG,
    "ppu_smi": several(text("a path of ppu-smi")),
    "ppu_smi_status": integer(0, 255),
    "ppu_sdk": choice(["lib64", "lib"]),
}
"""All but ``cpus``, ``gpus``, ``npus``, ``ppus`` and ``cards``, which have keys of their own."""

PROSE: Mapping[str, Codec] = {
    "about": text("what this node is, in words"),
    "source": text("where its facts come from, in words"),
}
"""Read, and kept in the file only."""
