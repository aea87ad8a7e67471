"""What identifies a board, a machine or a person in a capture: where it stands, and in which spellings.

A GPU's 64-bit serial is hexadecimal in the PCI file `unique_id`, decimal in KFD's `properties`, ``GPU-``
and 16 digits for ROCr, and spread over a UUID for AMD SMI (amd.md 2.5); an identifier is therefore looked
for by value, not by place. Numbers below 2**32 are places and counts (a hive id that is a PCI address,
kernel.md 1.6), not identifiers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from gpusim.snapshots.pack import Capture, Kind

HEX_FILES = frozenset({"unique_id"})
"""Files that hold a 64-bit identifier in hexadecimal."""

DECIMAL_FILES = frozenset({"xgmi_device_id", "xgmi_hive_id"})
"""Files that hold one in decimal."""

KFD_FIELDS = ("unique_id", "hive_id")
"""Lines of KFD's ``properties`` that hold one in decimal."""

TEXT_FILES = frozenset(
    ["serial_number", "fru_id", "product_serial", "board_serial", "chassis_serial", "product_uuid", "wwid"]
)
"""Files that hold a serial number as text: the board's EEPROM (kernel.md 3), DMI."""

SHORTEST = 6
"""Signs of a serial number that is looked for everywhere; a shorter one is replaced where it is listed."""

SMALLEST = 1 << 32
_ALL_ONES = (1 << 64) - 1  # what a device that fell off the bus reads

_KFD = re.compile(rf"^({'|'.join(KFD_FIELDS)}) (\d+)$", re.MULTILINE)
SMI = re.compile(
    r"\b([0-9a-fA-F]{2})([0-9a-fA-F]{2})([0-9a-fA-F]{4})-0000-1000-80([0-9a-fA-F]{2})-([0-9a-fA-F]{12})\b"
)
UUID = re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b")
_PREFIXED = re.compile(rf"(?:[A-Za-z]+-)?{UUID.pattern}")
"""A UUID, or one after a word as ``GPU-`` is of a PPU: the word says what it is, not which."""
BARE_SMI = re.compile(SMI.pattern.replace(")-", ")-?").replace("0-1", "0-?1").replace("0-8", "0-?8"))
"""The same with or without its dashes: for numbers that are known, since so short a form proves nothing."""
_BARE_UUID = re.compile(r"[0-9a-fA-F]{32}")
MAC = re.compile(
    r"(?<![0-9a-fA-F:-])[0-9a-fA-F]{2}([:-])[0-9a-fA-F]{2}(?:\1[0-9a-fA-F]{2}){4}(?![0-9a-fA-F:-])"
)
DASHES = re.compile("[ -]")
_LABELLED = re.compile(
    r"^[ \t|]*(?:[\w ]*serial(?:[ _]?(?:number|num|no)\b\.?|[ _]?#)?|SN|[VN]?Die ?ID|[\w ]*UUID)"
    r"[ \t]*[:=][ \t]*[\"']?(\S.*?)[\"']?[ \t|]*$",
    re.MULTILINE | re.IGNORECASE,
)
"""A line of a vendor's program: ``VDie ID : 0C1A4B2D 20401A0C …``, ``Serial No. : 1023…``, ``serial = …``."""

DIE = re.compile(r"[0-9a-fA-F]{8}([ -]?)[0-9a-fA-F]{8}(?:\1[0-9a-fA-F]{8}){3}")
"""A VDie id, which is an NPU's UUID: five words with spaces, or with the dashes plugins put there."""

_NO_SERIALS = frozenset(
    ["none", "null", "unknown", "unavailable", "unspecified", "undefined", "invalid", "empty"]
)
"""What a file of a board without a serial number says, in lower case; all with a space are none either."""

_NOBODY_MAC = frozenset({"00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"})
_NOBODY_UUID = re.compile(r"[0f-]+", re.IGNORECASE)

_DASHED_DIE = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{8}){4}\b")
"""Unmistakable wherever it stands."""


class Found:
    """The identifiers of a capture, each in the order of its first appearance by path."""

    def __init__(self) -> None:
        self.numbers: dict[int, None] = {}
        self.texts: dict[str, None] = {}
        self.uuids: dict[str, None] = {}
        """Lower case; those that are no AMD SMI spelling of a number."""
        self.macs: dict[str, None] = {}
        """Lower case."""
        self.dies: dict[str, None] = {}
        """VDie ids: 40 digits in lower case."""

    def number(self, value: int) -> None:
        """Note a 64-bit identifier; 0, all ones and places are none."""
        if SMALLEST <= value < _ALL_ONES:
            self.numbers.setdefault(value)

    def text(self, value: str) -> None:
        """Note a serial number; words without a digit (``N/A``, ``unknown``) and zeros are none."""
        if sum(c.isalnum() for c in value) >= 4 and any(c.isdigit() and c != "0" for c in value):
            if _BARE_UUID.fullmatch(value):
                value = dashed(value)
            if DIE.fullmatch(value):
                self.dies.setdefault(DASHES.sub("", value).lower())
            elif SMI.fullmatch(value) or _PREFIXED.fullmatch(value) or MAC.fullmatch(value):
                self.anywhere(value)
            else:
                self.texts.setdefault(value)

    def word(self, value: str) -> None:
        """Note a serial number of a file that holds nothing else: letters alone may be one there."""
        if value.isascii() and value.isalpha() and len(value) >= 4 and value.lower() not in _NO_SERIALS:
            self.texts.setdefault(value)
        else:
            self.text(value)

    def anywhere(self, text: str) -> None:
        """Note what shows by its form: UUIDs and MAC addresses."""
        if text.count("-") >= 4:
            for match in UUID.finditer(text):
                smi = SMI.fullmatch(match[0])
                if smi is not None:
                    self.number(serial_of(smi))
                elif not _NOBODY_UUID.fullmatch(match[0]):
                    self.uuids.setdefault(match[0].lower())
            for match in _DASHED_DIE.finditer(text):
                self.dies.setdefault(match[0].replace("-", "").lower())
        if text.count(":") >= 5 or text.count("-") >= 5:
            for match in MAC.finditer(text):
                mac = match[0].lower().replace("-", ":")
                if mac not in _NOBODY_MAC:
                    self.macs.setdefault(mac)


def serial_of(match: re.Match[str]) -> int:
    """The 64-bit serial in an AMD SMI UUID (`SMI`)."""
    return int(match[1] + match[4] + match[5], 16)


def dashed(digits: str) -> str:
    """A UUID's 32 digits with its dashes."""
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def find(recorded: Capture) -> Found:
    """Every identifier in a capture."""
    found = Found()
    seen: set[str] = set()
    names = {path.rpartition("/")[2].lower() for path, _ in recorded.entries()}
    for path, entry in recorded.entries():
        name = path.rpartition("/")[2]
        if entry.kind is Kind.LINK:
            found.anywhere(entry.target)
        if entry.kind is not Kind.FILE or not entry.content:
            found.anywhere(name)
            continue
        text = entry.content.decode("utf-8", "surrogateescape")
        for value in listed(name, text):
            if isinstance(value, int):
                found.number(value)
            elif value.lower() not in names:  # the tree needs its own names: such a word is no serial number
                found.word(value)
        if text not in seen:
            seen.add(text)
            low = text.lower()
            if "serial" in low or "uuid" in low:
                for match in _LABELLED.finditer(text):
                    found.text(match[1])
            found.anywhere(text)
    for command in recorded.commands:
        for data in (command.stdout, command.stderr):
            text = data.decode("utf-8", "surrogateescape")
            for match in _LABELLED.finditer(text):
                found.text(match[1])
            found.anywhere(text)
    return found


def listed(name: str, text: str) -> Iterator[int | str]:
    """What a listed identifier file holds; nothing when `name` is none."""
    plain = text.strip(" \t\r\n\0")
    if name in HEX_FILES or name in DECIMAL_FILES:
        base = 16 if name in HEX_FILES else 10
        if re.fullmatch(r"(?:0x)?[0-9a-fA-F]{1,16}" if base == 16 else r"\d{1,20}", plain):
            yield int(plain, base)
    elif name == "properties":
        for match in _KFD.finditer(text):
            yield int(match[2])
    elif name in TEXT_FILES and plain:
        yield plain


def spellings(value: int) -> Iterator[str]:
    """How a number may stand in a text, without its UUID: two hexadecimal forms, lower case, and decimal."""
    yield f"{value:016x}"
    if value < 1 << 60:
        yield f"{value:x}"
    yield str(value)


def is_placeholder_number(value: int) -> bool:
    """Whether `scrub` made this number."""
    return value >> 32 == PLACEHOLDER >> 32


PLACEHOLDER = 0x5C2B_0B5C_0000_0000
"""Placeholders of 64-bit identifiers count up from here: no board has such a serial."""


PLACEHOLDER_DIE = f"{PLACEHOLDER >> 32:08x}" + "0" * 24
"""How placeholders of VDie ids begin; hexadecimal as the originals, since plugins parse them."""

PLACEHOLDER_UUID = "00000000-0000-4000-8000-"
PLACEHOLDER_MAC = "02:00:00:00:"
"""How placeholders of UUIDs and MAC addresses begin."""


def is_placeholder_text(text: str) -> bool:
    """Whether `scrub` may have made this serial number: all but the last four signs are ``0`` and ``X``."""
    signs = [sign for sign in text if sign.isalnum()]
    return all(sign in "0Xx" for sign in signs[:-4])


def unscrubbed(recorded: Capture) -> list[str]:
    """What still identifies something, a line each; empty for a scrubbed capture. For tests and CI."""
    found = find(recorded)
    return [
        *(f"identifier {value:016x}" for value in found.numbers if not is_placeholder_number(value)),
        *(f"serial number {text!r}" for text in found.texts if not is_placeholder_text(text)),
        *(f"UUID {uuid}" for uuid in found.uuids if not uuid.startswith(PLACEHOLDER_UUID)),
        *(f"VDie ID {die}" for die in found.dies if not die.startswith(PLACEHOLDER_DIE)),
        *(f"MAC address {mac}" for mac in found.macs if not mac.startswith(PLACEHOLDER_MAC)),
    ]


def leaks(recorded: Capture, found: Found, hosts: Iterable[str] = ()) -> list[str]:
    """Where an original value still stands, ``path: value``: what must be empty before a capture is written.

    Looked for in any spelling in names, link targets, contents and programs' output.
    """
    every = pattern(found, hosts)
    seen: dict[str, str] = {}

    def look(text: str) -> str:
        if text not in seen:
            match = every.search(lowered(text)) if every is not None else None
            smi = next((m for m in BARE_SMI.finditer(text) if serial_of(m) in found.numbers), None)
            seen[text] = match[0] if match else smi[0] if smi else ""
        return seen[text]

    places = [("about", json.dumps(recorded.about, ensure_ascii=False))]
    for path, entry in recorded.entries():
        content = entry.content.decode("utf-8", "surrogateescape")
        places += [(path, path.rpartition("/")[2]), (path, entry.target), (path, content)]
    for command in recorded.commands:
        output = (command.stdout + command.stderr).decode("utf-8", "surrogateescape")
        words = " ".join(command.argv)
        places += [(words, output), (words, words)]
    return [f"{where}: {what}" for where, text in places if (what := look(text))]


def pattern(found: Found, hosts: Iterable[str] = ()) -> re.Pattern[str] | None:
    """What matches any identifier in any spelling but AMD SMI's (`SMI`); None when there is none.

    It is for text that went through `lowered`: matching without regard to case costs ten times as much.
    Sixteen hexadecimal digits are unmistakable wherever they stand; shorter things must be whole words.
    Groups: ``die``, ``hex``, ``number``, ``uuid``, ``mac``, ``text``, ``host``.
    """
    hexes = [f"{value:016x}" for value in found.numbers]
    shorter = [
        text for value in found.numbers for text in spellings(value) if len(text) != 16 or text.isdigit()
    ]
    groups = {
        "die": ([text for die in found.dies for text in die_spellings(die)], ""),
        "uuid": ([text for uuid in found.uuids for text in (uuid, uuid.replace("-", ""))], ""),
        "mac": ([text for mac in found.macs for text in mac_spellings(mac)], "0-9a-f"),
        "text": ([text for text in found.texts if sum(map(str.isalnum, text)) >= SHORTEST], "0-9a-z"),
        "host": (list(hosts), "0-9a-z_-"),
        "number": (shorter, "0-9a-f"),
        "hex": (hexes, ""),
    }
    parts = []
    for name, (words, bound) in groups.items():
        if words:
            known = sorted(set(map(lowered, words)), key=lambda word: (-len(word), word))
            before, after = (f"(?<![{bound}])", f"(?![{bound}])") if bound else ("", "")
            parts.append(f"{before}(?P<{name}>{'|'.join(map(re.escape, known))}){after}")
    return re.compile("|".join(parts)) if parts else None


def mac_spellings(mac: str) -> tuple[str, str, str]:
    """``ac:1f:…``, ``ac-1f-…`` and ``ac1f…`` of the first."""
    return mac, mac.replace(":", "-"), mac.replace(":", "")


def die_spellings(die: str) -> tuple[str, str, str]:
    """Five words with dashes, with spaces, and joined."""
    words = [die[start : start + 8] for start in range(0, 40, 8)]
    return "-".join(words), " ".join(words), die


def lowered(text: str) -> str:
    """Lower case of ASCII's letters, every sign at the place it had."""
    return text.lower() if text.isascii() else "".join(c.lower() if c.isascii() else c for c in text)
