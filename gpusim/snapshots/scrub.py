"""Replaces what identifies something by placeholders that keep equalities and forms.

One value becomes one placeholder, wherever and however it is written: KFD's decimal `unique_id` is still the
PCI file's hexadecimal one, partitions still share theirs, and AMD SMI's UUID still follows from both.
Placeholders are numbered by first appearance in path order, so the same node gives the same capture again;
nothing of the original is in them, and no key brings it back. What is absent, zero or all ones stays so.
So does a placeholder: to scrub twice is to scrub once, and what came in after the first time is hidden too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from gpusim.errors import GpusimError
from gpusim.snapshots import identifiers
from gpusim.snapshots.identifiers import (
    BARE_SMI,
    PLACEHOLDER,
    PLACEHOLDER_MAC,
    PLACEHOLDER_UUID,
    Found,
    listed,
    lowered,
    pattern,
    serial_of,
)
from gpusim.snapshots.pack import Capture, Command, Entry, Kind, capture

HOST_FILES = ("/proc/sys/kernel/hostname", "/etc/hostname")
"""Where a node says its name; never recorded, but a tree from elsewhere may hold them."""

_HOST_FACTS = ("hostname", "host", "node", "nodename")
"""Where what a capture is about may say it."""

_HOST = re.compile(r"host-(\d{1,6})")

_NO_NAMES = frozenset({"localhost", "localhost.localdomain", "(none)", "linux", "node", "gpu", "amd"})


_T = TypeVar("_T")


class ScrubError(GpusimError):
    """An identifier would have stayed in the capture: it is not written."""


def scrub(recorded: Capture, hosts: Iterable[str] = ()) -> Capture:
    """The capture without identifiers; one without any comes back as it is, whatever its notes say.

    Args:
        recorded: the capture.
        hosts: names of the node to hide, short and long, besides those the capture says itself.

    Raises:
        ScrubError: a value could not be replaced everywhere.
    """
    found, placeholders = _sorted_out(recorded)
    names = _host_names(hosts, recorded)[0]
    changed = _Scrubber(found, names, placeholders).capture(recorded)
    left = identifiers.leaks(changed, found, names)
    if left:
        shown = "; ".join(left[:3])
        raise ScrubError(f"{len(left)} identifiers would stay in the capture ({shown}): nothing is written")
    return recorded if changed == recorded else changed


def unhidden(recorded: Capture, hosts: Iterable[str] = ()) -> list[str]:
    """Names of the node that `scrub` leaves where they stand: of two letters, or names of its files.

    Only those that do stand somewhere as a word, in any case: nobody needs to look for the others.
    """
    names = _host_names(hosts, recorded)[1]
    text = lowered(_everything(recorded)) if names else ""
    return [
        name for name in names if re.search(rf"(?<![0-9a-z_-]){re.escape(lowered(name))}(?![0-9a-z_-])", text)
    ]


def counts(recorded: Capture) -> dict[str, int]:
    """How many distinct identifiers of each sort there are: ``numbers``, ``texts``, ``uuids``, ``macs``.

    VDie ids are NPUs' UUIDs and count as such.
    """
    found, _ = _sorted_out(recorded)
    counted = {name: len(getattr(found, name)) for name in ("numbers", "texts", "uuids", "macs")}
    return {**counted, "uuids": counted["uuids"] + len(found.dies)}


def _sorted_out(recorded: Capture) -> tuple[Found, Found]:
    """What a capture's identifiers are, and which placeholders stand in it already.

    A serial number may look like a placeholder by chance: it counts as one only where the notes say that
    the capture was scrubbed.
    """
    scrubbed = recorded.about.get("scrubbed") is True
    every, found, placeholders = identifiers.find(recorded), Found(), Found()
    for value in every.numbers:
        (placeholders if identifiers.is_placeholder_number(value) else found).numbers[value] = None
    for text in every.texts:
        known = scrubbed and identifiers.is_placeholder_text(text)
        (placeholders if known else found).texts[text] = None
    for uuid in every.uuids:
        (placeholders if uuid.startswith(PLACEHOLDER_UUID) else found).uuids[uuid] = None
    for die in every.dies:
        (placeholders if die.startswith(identifiers.PLACEHOLDER_DIE) else found).dies[die] = None
    for mac in every.macs:
        (placeholders if mac.startswith(PLACEHOLDER_MAC) else found).macs[mac] = None
    return found, placeholders


class _Scrubber:
    def __init__(self, found: Found, hosts: list[str], placeholders: Found) -> None:
        self._pattern = pattern(found, hosts)
        self._numbers: dict[int, int] = {}
        self._words: dict[str, str] = {}
        """Every spelling of ids and hosts, in lower case."""
        self._texts: dict[str, tuple[str, str]] = {}
        """Serial numbers in lower case: as they were found, and what they become."""
        self._hosts = hosts
        self._memory: dict[str, str] = {}
        self._number_all(found.numbers, placeholders.numbers)
        taken = {lowered(text) for text in (*found.texts, *placeholders.texts)}
        for text in found.texts:
            if lowered(text) not in self._texts:
                made = _alike(text, taken)
                self._texts[lowered(text)] = text, made
                taken.add(lowered(made))
        after = 0
        for uuid in found.uuids:
            after = _next(after, lambda number: f"{PLACEHOLDER_UUID}{number:012x}", placeholders.uuids)
            made = f"{PLACEHOLDER_UUID}{after:012x}"
            self._words[uuid] = made
            self._words[uuid.replace("-", "")] = made.replace("-", "")
        after = 0
        for die in found.dies:
            after = _next(after, _die, placeholders.dies)
            self._words.update(zip(identifiers.die_spellings(die), identifiers.die_spellings(_die(after))))
        after = 0
        for mac in found.macs:
            after = _next(after, _mac, placeholders.macs)
            self._words.update(zip(identifiers.mac_spellings(mac), identifiers.mac_spellings(_mac(after))))

    def _number_all(self, numbers: Iterable[int], taken: Mapping[int, None]) -> None:
        after = PLACEHOLDER
        for value in numbers:
            after = _next(after, int, taken)
            self._numbers[value] = after
            for old, new in zip(identifiers.spellings(value), _spelled_alike(value, after)):
                self._words[old] = new

    def _name_hosts(self, recorded: Capture) -> None:
        """Number the hosts after those that an earlier scrubbing numbered."""
        if self._hosts:
            after = max(map(int, _HOST.findall(_everything(recorded))), default=0)
            for number, host in enumerate(self._hosts, after + 1):
                self._words[lowered(host)] = f"host-{number}"

    def capture(self, recorded: Capture) -> Capture:
        """The capture with everything replaced, names of files and links too."""
        self._name_hosts(recorded)
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
        return capture(entries, {**self._json(recorded.about), "scrubbed": True}, commands)

    def _json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return [self._json(inner) for inner in value]
        if isinstance(value, dict):
            return {self._text(key): self._json(inner) for key, inner in value.items()}
        return value

    def _path(self, path: str) -> str:
        return "/".join(self._text(name) for name in path.split("/"))

    def _entry(self, path: str, entry: Entry) -> Entry:
        if entry.kind is Kind.LINK:
            return entry._replace(target=self._path(entry.target))
        if not entry.content:
            return entry
        text = entry.content.decode("utf-8", "surrogateescape")
        for value in listed(path.rpartition("/")[2], text):
            # a short one stands only here
            if isinstance(value, str) and (known := self._texts.get(lowered(value))):
                text = text.replace(value, _cased(known, value))
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
            known = BARE_SMI.sub(self._smi, text) if "1000" in text else text
            if self._pattern is not None:
                known = self._replaced(known)
            self._memory[text] = known
        return known

    def _smi(self, match: re.Match[str]) -> str:
        """AMD SMI's UUID of the new number: device id and function byte stay (decision 10)."""
        new = self._numbers.get(serial_of(match))
        if new is None:
            return match[0]
        digits = f"{new:016x}"
        made = f"{digits[:2]}{match[2]}{match[3]}-0000-1000-80{digits[2:4]}-{digits[4:]}"
        if "-" not in match[0]:
            made = made.replace("-", "")
        return made.upper() if match[0] == match[0].upper() else made

    def _replaced(self, text: str) -> str:
        """The pattern's matches replaced; it is made for lower case, and every sign keeps its place there."""
        assert self._pattern is not None
        parts, end = [], 0
        for match in self._pattern.finditer(lowered(text)):
            old = text[match.start() : match.end()]
            parts += [text[end : match.start()], self._replacement(match, old)]
            end = match.end()
        return "".join((*parts, text[end:])) if parts else text

    def _replacement(self, match: re.Match[str], old: str) -> str:
        if match.lastgroup == "text":
            return _cased(self._texts[match[0]], old)
        new = self._words[match[0]]
        return new.upper() if match.lastgroup != "host" and old != match[0] else new


def _mac(number: int) -> str:
    return f"{PLACEHOLDER_MAC}{number >> 8 & 255:02x}:{number & 255:02x}"


def _die(number: int) -> str:
    return f"{identifiers.PLACEHOLDER_DIE}{number:08x}"


def _next(after: int, made: Callable[[int], _T], taken: Mapping[_T, None]) -> int:
    """The next number whose placeholder does not stand in the capture already."""
    after += 1
    while made(after) in taken:
        after += 1
    return after


def _cased(known: tuple[str, str], old: str) -> str:
    """A serial number's placeholder where it stands as `old`: in another case, the placeholder is too."""
    found, made = known
    if old == found:
        return made
    return made.upper() if old == old.upper() else made.lower() if old == lowered(old) else made


def _everything(recorded: Capture) -> str:
    """All text of a capture, to look whether something stands anywhere in it."""
    parts = [str(recorded.about)]
    for path, entry in recorded.entries():
        parts += [path.rpartition("/")[2], entry.target, entry.content.decode("utf-8", "surrogateescape")]
    for command in recorded.commands:
        parts += [*command.argv, command.stdout.decode("utf-8", "replace")]
        parts.append(command.stderr.decode("utf-8", "replace"))
    return "\n".join(parts)


def _spelled_alike(value: int, placeholder: int) -> list[str]:
    """The placeholder in the spellings that `value` has."""
    forms = list(identifiers.spellings(placeholder))
    return [forms[0], *([f"{placeholder:x}"] if value < 1 << 60 else []), forms[-1]]


def _alike(text: str, taken: set[str]) -> str:
    """The next placeholder of the form of `text`: last digits count up, letters are ``X``, the rest is kept.

    Only the last four digits and letters count (`identifiers.is_placeholder_text`): first the digits among
    them, and when there are too few, the letters too.
    """
    number = 0
    counting = "0"
    while True:
        number += 1
        left, places = number, 4
        signs = []
        for sign in reversed(text):
            if not sign.isalnum():
                signs.append(sign)
                continue
            counts, places = places > 0, places - 1
            if sign.isdigit():
                signs.append(str(left % 10) if counts else "0")
                left //= 10 if counts else 1
            else:
                letter = "X"
                if counts and counting != "0":
                    left, place = divmod(left, 26)
                    letter = chr(ord("A") + (place + 23) % 26)  # X, Y, Z, A, …
                signs.append(letter if sign.isupper() else letter.lower())
        made = "".join(reversed(signs))
        if left:
            if counting != "0":
                raise ScrubError(f"there are more serial numbers of the form {made!r} than placeholders")
            number, counting = 0, "0A"
        elif lowered(made) not in taken:
            return made


def _host_names(hosts: Iterable[str], recorded: Capture) -> tuple[list[str], list[str]]:
    """Whole and short names worth hiding, and those that cannot be: short, or needed for the tree's files."""
    said = [*hosts, *(str(recorded.about[key]) for key in _HOST_FACTS if key in recorded.about)]
    for path in HOST_FILES:
        entry = recorded.entry(path)
        if entry is not None:
            said.append(entry.content.decode("utf-8", "replace"))
    names: dict[str, str] = {}
    left: dict[str, None] = {}
    needed = {lowered(path.rpartition("/")[2]) for path, _ in recorded.entries()}
    for host in map(str.strip, said):
        short = host.partition(".")[0]
        for name in (host, short) if not short.isdigit() else (host,):  # an address has no short form
            low = lowered(name)
            if not name or low in _NO_NAMES or _HOST.fullmatch(low):
                continue
            if len(name) <= 2 or low in needed:
                left[name] = None
            else:
                names.setdefault(low, name)
    return list(names.values()), list(left)
