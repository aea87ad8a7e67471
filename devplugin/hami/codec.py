"""The text of ``hami.io/<vendor>-devices-to-allocate`` and ``-allocated``: read, written, one slot erased.

Grammar (ascend_ppu_hami.md D.5)::

    annotation = { container ";" }      one slot per container, an empty one is ""
    container  = { device ":" }
    device     = id "," type "," MiB "," cores [ "," slots ]

Reading is strict where public readers skip (decision 16): half a slot understood is a container with
half its devices. Writing refuses what the grammar cannot carry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from devplugin.hami.values import ContainerDevice

INT32_MAX = 2**31 - 1

_NUMBER = re.compile(r"[0-9]{1,10}")
_ID = re.compile(r"[!-+\--9<-~]+")
"""Printable ASCII without blank, comma, colon, semicolon: safe to log once it matched (decision 25)."""
_DEVICE = re.compile(rf"({_ID.pattern}),([^,]*),([0-9]{{1,9}}),([0-9]{{1,9}})")
"""The usual device, recognised in one step: a node's pods are read for every Allocate."""
_KEY = re.compile(r"hami\.io/.+-devices-to-allocate")


class CodecError(ValueError):
    """An annotation that does not follow the grammar; the text names the offending segment."""


def clip(text: str, limit: int = 80) -> str:
    """A foreign text made safe for a log line: quoted, escaped, cut (decision 25)."""
    return ascii(text if len(text) <= limit else text[:limit] + "…")


def decode(text: str) -> tuple[tuple[ContainerDevice, ...], ...]:
    """The slots of an annotation, empty ones included, without the text after the last ``;``.

    ``""`` has no slot, ``";;"`` two empty ones. Trailing empty slots stay as many as were written, so
    ``encode(decode(text))`` never grows. A last slot without its ``;`` is taken as written in full.

    Raises:
        CodecError: a device without a comma, with too few fields, without an id, or with a memory or
            core number that is not a decimal in 0 .. 2^31-1.
    """
    return tuple(_container(segment) for segment in _segments(text))


def encode(containers: Iterable[Sequence[ContainerDevice]]) -> str:
    """The annotation text of these slots, each ended by ``;``.

    Raises:
        CodecError: an id or type holds ``,``, ``:`` or ``;`` (or an id is empty or not printable), or a
            number leaves 0 .. 2^31-1.
    """
    return "".join("".join(_device_text(device) + ":" for device in slot) + ";" for slot in containers)


def erase(text: str, slot: int) -> str:
    """The same text with one slot emptied; every other byte stays.

    Raises:
        CodecError: there is no such slot.
    """
    parts = text.split(";")
    if not 0 <= slot < len(_segments(text)):
        raise CodecError(f"slot {slot} does not exist in {clip(text)}")
    parts[slot] = ""
    return ";".join(parts)


def filled(text: str) -> bool:
    """Whether any slot is still non-empty, whatever it holds (also one that does not parse)."""
    return bool(text.replace(";", "").strip())


def slots_left(annotations: Mapping[str, str]) -> bool:
    """Whether any vendor's to-allocate annotation still has a non-empty slot (decision 40)."""
    return any(filled(value) for key, value in annotations.items() if _KEY.fullmatch(key))


def _segments(text: str) -> list[str]:
    parts = text.split(";")
    if not parts[-1]:
        parts.pop()
    return parts


def _container(segment: str) -> tuple[ContainerDevice, ...]:
    if not segment:
        return ()
    pieces = segment.split(":")
    if not pieces[-1]:
        pieces.pop()
    return tuple(_device(piece) for piece in pieces)


def _device(piece: str) -> ContainerDevice:
    usual = _DEVICE.fullmatch(piece)
    if usual is not None:
        identifier, kind, memory, cores = usual.groups()
        return ContainerDevice(identifier, kind, int(memory), int(cores))
    return _unusual_device(piece)


def _unusual_device(piece: str) -> ContainerDevice:
    """A device with further fields or large numbers, or the reason why it is none."""
    fields = piece.split(",")
    if len(fields) < 4:
        raise CodecError(f"device {clip(piece)}: {len(fields)} field(s), expected id,type,MiB,cores")
    identifier, kind, memory, cores = fields[:4]
    if not _ID.fullmatch(identifier):
        raise CodecError(f"device {clip(piece)}: {clip(identifier)} is no device id")
    return ContainerDevice(
        id=identifier,
        type=kind,
        memory_mib=_int32(memory, "memory", piece),
        cores=_int32(cores, "cores", piece),
        slots=_slots(fields[4]) if len(fields) > 4 else 1,
    )


def _int32(text: str, what: str, piece: str) -> int:
    if not _NUMBER.fullmatch(text) or (value := int(text)) > INT32_MAX:
        raise CodecError(f"device {clip(piece)}: {what} {clip(text)} is not a number in 0..{INT32_MAX}")
    return value


def _slots(text: str) -> int:
    """The optional fifth field: nonsense is ignored, not an error (D.5)."""
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= INT32_MAX:
        return 1
    return int(text)


def _device_text(device: ContainerDevice) -> str:
    if not _ID.fullmatch(device.id):
        raise CodecError(f"id {clip(device.id)} cannot be written: printable, without blank , : ;")
    if any(sign in device.type for sign in ",:;"):
        raise CodecError(f"type {clip(device.type)} cannot be written: it holds one of , : ;")
    for what, value in (("memory", device.memory_mib), ("cores", device.cores)):
        if not 0 <= value <= INT32_MAX:
            raise CodecError(f"device {device.id}: {what} {value} is not in 0..{INT32_MAX}")
    text = f"{device.id},{device.type},{device.memory_mib},{device.cores}"
    return f"{text},{device.slots}" if device.slots > 1 else text
