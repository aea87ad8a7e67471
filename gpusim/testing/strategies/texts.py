"""Texts that programs write for each other: device annotations, and what is written to a dmem limit.

Grammar of annotations: ascend_ppu_hami.md D.5 with decision 16; of dmem limits: kernel.md 4.3.
"""

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from gpusim.cluster.pods import Placed, encode
from gpusim.testing.strategies.arguments import among, between, flag, words

_INT32 = 2**31 - 1
IDS = ("c6ff75a3-0000-1000-802a-c130ee448403", "AMD-node-0000-75-00-0", "0", "GPU!~")
"""Device ids as vendors write them, and narrow ones of the grammar."""
TYPES = ("AMD-Instinct-MI355X", "Ascend910B4", "PPU-x", "a type with blanks")


def annotations(
    *,
    ids: Iterable[str] = IDS,
    types: Iterable[str] = TYPES,
    max_containers: int = 3,
    max_devices: int = 2,
    max_mib: int = _INT32,
    max_cores: int = _INT32,
) -> st.SearchStrategy[str]:
    """Valid values of ``hami.io/<word>-devices-to-allocate``: every reader understands all of it.

    Args:
        ids: to choose from.
        types: to choose from.
        max_containers: at most so many slots, empty ones included.
        max_devices: at most so many devices in a slot.
        max_mib: of a device.
        max_cores: of a device.

    Shrinks to the empty text, then to one device of the first id with 0 MiB and 0 cores.

    Raises:
        InvalidArgument: nothing to choose from, a bound out of range.
    """
    between("0", 0, "max_containers", max_containers)
    return _slots(
        ids, types, max_containers, max_devices=max_devices, max_mib=max_mib, max_cores=max_cores
    ).map(encode)


def _slots(
    ids: Iterable[str],
    types: Iterable[str],
    max_containers: int,
    *,
    max_devices: int = 2,
    max_mib: int = _INT32,
    max_cores: int = _INT32,
) -> st.SearchStrategy[list[list[Placed]]]:
    between("1", 1, "max_devices", max_devices, least=1)
    between("0", 0, "max_mib", max_mib, most=_INT32)
    between("0", 0, "max_cores", max_cores, most=_INT32)
    device = st.builds(
        Placed,
        st.sampled_from(words("ids", ids)),
        st.sampled_from(words("types", types)),
        st.integers(0, max_mib),
        st.integers(0, max_cores),
    )
    return st.lists(st.lists(device, max_size=max_devices), max_size=max_containers)


BREAKAGES = {
    "no comma": "{id}",
    "too few fields": "{id},{type},{mib}",
    "no id": ",{type},{mib},{cores}",
    "blank in the id": "a b,{type},{mib},{cores}",
    "line break in the id": "a\nb,{type},{mib},{cores}",
    "letters beyond ASCII": "gpu-é,{type},{mib},{cores}",
    "memory is a word": "{id},{type},all,{cores}",
    "memory is negative": "{id},{type},-1,{cores}",
    "memory is no integer": "{id},{type},1.5,{cores}",
    "memory has a blank": "{id},{type}, 1,{cores}",
    "memory beyond int32": "{id},{type},2147483648,{cores}",
    "memory with underscores": "{id},{type},1_0,{cores}",
    "memory in other digits": "{id},{type},٣,{cores}",
    "cores are a word": "{id},{type},{mib},all",
    "cores missing": "{id},{type},{mib},",
    "cores beyond int32": "{id},{type},{mib},99999999999",
}
"""How a device can be broken, and what it looks like then."""


def broken_annotations(
    *,
    ids: Iterable[str] = IDS[:2],
    breakages: Iterable[str] | None = None,
    max_containers: int = 3,
) -> st.SearchStrategy[str]:
    """Annotations with exactly one device that no reader may understand, among valid ones (decision 16).

    Args:
        ids: to choose from.
        breakages: keys of `BREAKAGES`, the simplest first; None: all.
        max_containers: at most so many valid slots around it.

    Shrinks to the broken device alone.

    Raises:
        InvalidArgument: an unknown word, nothing to choose from, a bound out of range.
    """
    between("0", 0, "max_containers", max_containers)
    names = words("ids", ids)
    kinds = among("breakages", breakages, BREAKAGES)
    around = _slots(names, TYPES[:2], max_containers)

    def text(
        kind: str, identifier: str, before: list[list[Placed]], after: list[list[Placed]], end: str
    ) -> str:
        broken = BREAKAGES[kind].format(id=identifier, type=TYPES[0], mib=1024, cores=50)
        return encode(before) + broken + end + encode(after)

    return st.builds(
        text, st.sampled_from(kinds), st.sampled_from(names), around, around, st.sampled_from((":;", ";"))
    )


_SPACE = st.sampled_from((b"", b" ", b"\t", b"\n", b"\v", b"\xa0"))
_BAD_VALUES = (
    b"1.5",
    b"-1",
    b"1KB",
    b"1 2",
    b"Max",
    b"max max",
    b"0x",
    b"08",
    b"0b1",
    b"+1",
    b"1_0",
    b"none",
)


def dmem_writes(
    *, regions: Sequence[str] = ("drm/0000:75:00.0/vram",), valid: bool | None = None, many: bool = False
) -> st.SearchStrategy[bytes]:
    """What may be written to dmem.max, .low or .min.

    Args:
        regions: as dmem.capacity names them.
        valid: only what a kernel takes that knows these regions (True), only what it refuses with EINVAL,
            or either.
        many: several lines in one write, as kernels before 7.2 take them; a later one takes one pair.

    Shrinks to the first region with the shortest value.

    Raises:
        InvalidArgument: nothing to choose from.
    """
    names = words("regions", regions)
    flag("valid", valid, either=True)
    flag("many", many)
    region = st.sampled_from([name.encode() for name in names])
    good = st.builds(_join, _SPACE, region, st.sampled_from((b" ", b"\t")), _values(), _SPACE)
    bad = st.one_of(
        st.builds(_join, _SPACE, st.just(b"drm/none/vram"), st.just(b" "), _values(), _SPACE),
        st.builds(_join, _SPACE, region, st.just(b" "), st.sampled_from(_BAD_VALUES), st.just(b"")),
    )
    if many:
        # A line's own surroundings must not hold its end.
        lines = st.lists(good.map(lambda line: line.strip(b"\n")), min_size=1, max_size=3)
        good = lines.map(b"\n".join)
        bad = st.tuples(st.lists(good, max_size=2), bad).map(lambda pair: b"\n".join((*pair[0], pair[1])))
    return {True: good, False: bad, None: st.one_of(good, bad)}[valid]


def _join(*parts: bytes) -> bytes:
    return b"".join(parts)


def _values() -> st.SearchStrategy[bytes]:
    """Numbers in every form that memparse reads whole, and ``max``."""
    number = st.integers(0, 2**63)
    suffix = st.sampled_from(("", "K", "m", "G", "t", "P", "E"))
    return st.one_of(
        st.builds(lambda n, s: f"{n}{s}".encode(), number, suffix),
        st.just(b"max"),
        st.builds(lambda n, s: f"0x{n:x}{s}".encode(), number, st.sampled_from(("", "K", "M"))),
        st.builds(lambda n: f"0{n:o}".encode(), number),
    )
