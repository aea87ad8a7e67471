"""Replaces what identifies something by placeholders that keep equalities and forms.

One value becomes one placeholder, wherever and however it is written: KFD's decimal `unique_id` is still the
PCI file's hexadecimal one, partitions still share theirs, and AMD SMI's UUID still follows from both.
Placeholders are numbered by first appearance in path order, so the same node gives the same capture again;
nothing of the original is in them, and no key brings it back. What is absent, zero or all ones stays so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpusim.errors import GpusimError
from gpusim.snapshots import identifiers
from gpusim.snapshots.identifiers import PLACEHOLDER, SMI, Found, listed, pattern, serial_of
from gpusim.snapshots.pack import Capture, Command, Entry, Kind, capture

HOST_FILES = ("/proc/sys/kernel/hostname", "/etc/hostname")
"""Where a node says its name; never recorded."""

_NO_NAMES = frozenset({"localhost", "localhost.localdomain", "(none)", "linux", "node", "gpu", "amd"})


class ScrubError(GpusimError):
    """An identifier would have stayed in the capture: it is not written."""


def scrub(recorded: Capture, hosts: Iterable[str] = ()) -> Capture:
    """The capture without identifiers; a scrubbed one comes back as it is.

    Args:
        recorded: the capture.
        hosts: names of the node to hide, short and long.

    Raises:
        ScrubError: a value could not be replaced everywhere.
    """
    if recorded.about.get("scrubbed") is True:
        return recorded
    found = identifiers.find(recorded)
    names = _host_names(hosts, recorded)
    changed = _Scrubber(found, names).capture(recorded)
    left = identifiers.leaks(changed, found, names)
    if left:
        shown = "; ".join(left[:3])
        raise ScrubError(f"{len(left)} identifiers would stay in the capture ({shown}): nothing is written")
    return changed


def counts(recorded: Capture) -> dict[str, int]:
    """How many distinct identifiers of each sort there are: ``numbers``, ``texts``, ``uuids``, ``macs``."""
    found = identifiers.find(recorded)
    return {name: len(getattr(found, name)) for name in ("numbers", "texts", "uuids", "macs")}


class _Scrubber:
    def __init__(self, found: Found, hosts: list[str]) -> None:
        self._pattern = pattern(found, hosts)
        self._numbers: dict[int, int] = {}
        self._words: dict[str, str] = {}
        """Every spelling, in lower case; serial numbers and hosts as they are."""
        self._texts: dict[str, str] = {}
        self._memory: dict[str, str] = {}
        self._number_all(found.numbers)
        taken = set(found.texts)
        for text in found.texts:
            self._texts[text] = _alike(text, taken)
            taken.add(self._texts[text])
        for number, uuid in enumerate(found.uuids, 1):
            self._words[uuid] = f"00000000-0000-4000-8000-{number:012x}"
        for number, mac in enumerate(found.macs, 1):
            self._words[mac] = f"02:00:00:00:{number >> 8 & 255:02x}:{number & 255:02x}"
        for number, host in enumerate(hosts, 1):
            self._words[host] = f"host-{number}"

    def _number_all(self, numbers: Mapping[int, None]) -> None:
        after = PLACEHOLDER
        for value in numbers:
            after += 1
            while after in numbers:
                after += 1
            self._numbers[value] = after
            for old, new in zip(identifiers.spellings(value), _spelled_alike(value, after)):
                self._words[old] = new

    def capture(self, recorded: Capture) -> Capture:
        """The capture with everything replaced, names of files and links too."""
        entries = {self._path(path): self._entry(path, entry) for path, entry in recorded.entries()}
        if (mode := recorded.tree.get("/")) is not None:
            entries["/"] = Entry(Kind.DIRECTORY, mode)
        commands = [
            Command(
                tuple(self._text(word) for word in command.argv),
                command.status,
                self._bytes(command.stdout),
                self._bytes(command.stderr),
            )
            for command in recorded.commands
        ]
        return capture(entries, {**recorded.about, "scrubbed": True}, commands)

    def _path(self, path: str) -> str:
        return "/".join(self._text(name) for name in path.split("/"))

    def _entry(self, path: str, entry: Entry) -> Entry:
        if entry.kind is Kind.LINK:
            return entry._replace(target=self._path(entry.target))
        if not entry.content:
            return entry
        text = entry.content.decode("utf-8", "surrogateescape")
        for value in listed(path.rpartition("/")[2], text):
            if isinstance(value, str) and value in self._texts:  # a short one, which stands only here
                text = text.replace(value, self._texts[value])
                return entry._replace(content=text.encode("utf-8", "surrogateescape"))
        return entry._replace(content=self._bytes(entry.content))

    def _bytes(self, data: bytes) -> bytes:
        if b"\0" in data.rstrip(b"\0"):  # a binary table: numbers as they lie in memory
            for old, new in self._numbers.items():
                data = data.replace(old.to_bytes(8, "little"), new.to_bytes(8, "little"))
                data = data.replace(old.to_bytes(8, "big"), new.to_bytes(8, "big"))
        text = data.decode("utf-8", "surrogateescape")
        return self._text(text).encode("utf-8", "surrogateescape")

    def _text(self, text: str) -> str:
        known = self._memory.get(text)
        if known is None:
            known = SMI.sub(self._smi, text) if text.count("-") >= 4 else text
            if self._pattern is not None:
                known = self._pattern.sub(self._replacement, known)
            self._memory[text] = known
        return known

    def _smi(self, match: re.Match[str]) -> str:
        """AMD SMI's UUID of the new number: device id and function byte stay (decision 10)."""
        new = self._numbers.get(serial_of(match))
        if new is None:
            return match[0]
        digits = f"{new:016x}"
        made = f"{digits[:2]}{match[2]}{match[3]}-0000-1000-80{digits[2:4]}-{digits[4:]}"
        return made.upper() if match[0] == match[0].upper() else made

    def _replacement(self, match: re.Match[str]) -> str:
        old = match[0]
        if match.lastgroup == "text":
            return self._texts[old]
        if match.lastgroup == "host":
            return self._words[old]
        new = self._words[old.lower()]
        return new.upper() if old != old.lower() else new


def _spelled_alike(value: int, placeholder: int) -> list[str]:
    """The placeholder in the spellings that `value` has."""
    forms = list(identifiers.spellings(placeholder))
    return [forms[0], *([f"{placeholder:x}"] if value < 1 << 60 else []), forms[-1]]


def _alike(text: str, taken: set[str]) -> str:
    """The next placeholder of the form of `text`: digits count up, letters become ``X``, all else is kept."""
    number = 0
    while True:
        number += 1
        left = number
        signs = []
        for sign in reversed(text):
            if sign.isdigit():
                signs.append(str(left % 10))
                left //= 10
            elif sign.isalpha():
                signs.append("X" if sign.isupper() else "x")
            else:
                signs.append(sign)
        made = "".join(reversed(signs))
        if left:
            raise ScrubError(f"there are more serial numbers of the form {made!r} than placeholders")
        if made not in taken:
            return made


def _host_names(hosts: Iterable[str], recorded: Capture) -> list[str]:
    """Whole and short names worth hiding; none that the tree needs for its own files."""
    names: dict[str, None] = {}
    for host in hosts:
        for name in (host.strip(), host.strip().partition(".")[0]):
            if len(name) > 2 and name.lower() not in _NO_NAMES:
                names.setdefault(name)
    if not names:
        return []
    needed = {path.rpartition("/")[2] for path, _ in recorded.entries()}
    return [name for name in names if name not in needed]
