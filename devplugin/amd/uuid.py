"""Names of GPUs and partitions: AMD SMI's UUID by arithmetic, ours where there is no serial, ROCr's.

AMD SMI makes its UUID from the PCI device id and the 64-bit serial that `unique_id` holds, so no
library is needed (amd.md 2.5, checked there against amdsmi's source and real examples). Which id goes
where: decisions 10 to 12.
"""

from __future__ import annotations

import re

_SMI = re.compile(r"([0-9a-f]{2})ff([0-9a-f]{4}-0000-1000-80[0-9a-f]{2}-[0-9a-f]{12})")
_SMI_PARTITION = re.compile(r"([0-9a-f]{2})0[0-7]([0-9a-f]{4}-0000-1000-80[0-9a-f]{2}-[0-9a-f]{12})")
_OWN_PARTITION = re.compile(r"(AMD-.+-[0-9a-f]{4,8}-[0-9a-f]{2}-[01][0-9a-f]-[0-7])-p[0-9]{1,2}")
_BDF = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")
_MODE_SUFFIX = re.compile(r"#(?:spx|dpx|tpx|qpx|cpx)\Z")


def smi_uuid(unique_id: int, device_id: int) -> str:
    """AMD SMI's UUID of a whole GPU, from its 64-bit `unique_id` and 16-bit PCI device id.

    ``TTffDDDD-0000-1000-80SS-AAAABBBBBBBB`` with TT, SS, AAAA, BBBBBBBB the serial from its top byte
    down, DDDD the device id and ``ff`` the function byte for "the whole device".
    """
    serial = f"{unique_id & 0xFFFF_FFFF_FFFF_FFFF:016x}"
    return f"{serial[:2]}ff{device_id & 0xFFFF:04x}-0000-1000-80{serial[2:4]}-{serial[4:]}"


def partition_id(whole: str, number: int) -> str:
    """The id of partition `number` of the GPU with id `whole`: the function byte set to it (decision 10).

    An id of ours (decision 11) has no such byte and gets ``-p<number>``: its function digit is the real
    one and must stay apart from the functions of neighbours.
    """
    if (found := _SMI.fullmatch(whole)) is not None:
        return f"{found[1]}{number:02x}{found[2]}"
    return f"{whole}-p{number}"


def whole_id(identifier: str) -> str:
    """The id of the GPU that a registered id belongs to: what `partition_id` was made from, or itself."""
    if (found := _SMI_PARTITION.fullmatch(identifier)) is not None:
        return f"{found[1]}ff{found[2]}"
    own = _OWN_PARTITION.fullmatch(identifier)
    return own[1] if own is not None else identifier


def own_id(node_name: str, bdf: str) -> str:
    """The id of a GPU without serial: ``AMD-<node>-<domain>-<bus>-<device>-<function>`` (decision 11).

    ``:`` ``,`` and ``;`` are grammar in HAMi's annotations, so only hyphens separate.
    """
    return f"AMD-{node_name or 'node'}-{bdf.replace(':', '-').replace('.', '-')}"


def strip_mode(text: str) -> str:
    """An annotation's id without the mode suffix that older versions wrote (decision 10)."""
    return _MODE_SUFFIX.sub("", text)


def rocr_name(unique_id: int) -> str:
    """ROCr's name of an agent with a non-zero `unique_id`: ``GPU-`` and 16 hex digits (amd.md 2.2)."""
    return f"GPU-{unique_id:016x}"


def normal_bdf(text: str) -> str:
    """A PCI address in the kernel's spelling.

    Blanks are cut, letters lowered, and KFD's four-colon form ``0000:83:00:0`` becomes ``0000:83:00.0``;
    what is no address comes back trimmed and unchanged otherwise (amd.md 14.1, 14.9).
    """
    plain = text.strip()
    lowered = plain.lower()
    head, colon, last = lowered.rpartition(":")
    if "." not in lowered and colon and _BDF.fullmatch(f"{head}.{last}"):
        return f"{head}.{last}"
    return lowered if _BDF.fullmatch(lowered) else plain


def is_bdf(text: str) -> bool:
    """Whether a directory name is a PCI address as sysfs spells it."""
    return _BDF.fullmatch(text) is not None
