"""Small ELF files with just the version tables a libc has: made by hand, byte by byte.

Layout of headers and of the GNU version tables: the System V ABI and its GNU extension (Linux Standard
Base, symbol versioning).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

SHT_NULL, SHT_STRTAB, SHT_VERDEF, SHT_VERNEED = 0, 3, 0x6FFFFFFD, 0x6FFFFFFE
MACHINES = {"x86_64": 62, "aarch64": 183}


class _Strings:
    """A string table that grows."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def elf(
    defines: Sequence[str] = (),
    needs: Sequence[str] = (),
    *,
    machine: str = "x86_64",
    count: int | None = None,
    stuck: bool = False,
) -> bytes:
    """A 64-bit little-endian shared object that defines and needs these symbol versions.

    Args:
        defines: versions in ``.gnu.version_d``, as ``GLIBC_2.34``.
        needs: versions in ``.gnu.version_r``, all of one library.
        machine: its processor.
        count: how many definitions its section header claims; None: the truth.
        stuck: every definition says that the next one is itself.
    """
    strings, names = _Strings(), _Strings()
    verdef = b""
    for index, version in enumerate(defines):
        last = index == len(defines) - 1
        following = 0 if last or stuck else 28
        verdef += struct.pack("<HHHHIII", 1, 0, index + 1, 1, 0, 20, following)
        verdef += struct.pack("<II", strings.add(version), 0)
    verneed = b""
    if needs:
        verneed = struct.pack("<HHIII", 1, len(needs), strings.add("ld-linux.so"), 16, 0)
        for index, version in enumerate(needs):
            following = 0 if index == len(needs) - 1 else 16
            verneed += struct.pack("<IHHII", 0, 0, index + 2, strings.add(version), following)
    sections = [(".dynstr", SHT_STRTAB, strings.data, 0, 0)]
    if defines:
        sections.append((".gnu.version_d", SHT_VERDEF, verdef, 1, len(defines) if count is None else count))
    if needs:
        sections.append((".gnu.version_r", SHT_VERNEED, verneed, 1, 1))
    offsets = [names.add(name) for name, *_ in sections]
    offsets.append(names.add(".shstrtab"))
    sections.append((".shstrtab", SHT_STRTAB, names.data, 0, 0))
    return _assemble(sections, offsets, MACHINES[machine])


def _assemble(
    sections: Sequence[tuple[str, int, bytes, int, int]], names: Sequence[int], machine: int
) -> bytes:
    """File header, the sections' bytes, the section headers."""
    body = b""
    headers = struct.pack("<IIQQQQIIQQ", 0, SHT_NULL, 0, 0, 0, 0, 0, 0, 0, 0)
    for name, (_, kind, data, link, info) in zip(names, sections, strict=True):
        body += bytes(-len(body) % 8)
        headers += struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, 64 + len(body), len(data), link, info, 4, 0)
        body += data
    body += bytes(-len(body) % 8)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    shape = (3, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(sections) + 1, len(sections))
    return ident + struct.pack("<HHIQQQIHHHHHH", *shape) + body + headers


def glibc(minor: int, *, machine: str = "x86_64") -> bytes:
    """A libc.so.6 of glibc 2.`minor`: its base name, some older versions, its own, and the private one."""
    older = [f"GLIBC_2.{n}" for n in range(3, minor + 1)]
    return elf(["libc.so.6", "GLIBC_2.2.5", *older, "GLIBC_PRIVATE"], ["GLIBC_2.3"], machine=machine)
