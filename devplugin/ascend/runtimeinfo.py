"""Which slice of a chip the scheduler chose for one container: the JSON annotation ``huawei.com/<word>``.

One entry for each device of the pod, all containers flattened in their order, zeros left out
(ascend_ppu_hami.md D.5). Public code looks entries up by UUID, so that of two containers that share a card
the last one's template goes to both (A.7). Here a container takes its own run of entries, by position; by
UUID only where that can mean but one thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from devplugin.hami import Claim, CodecError, ContainerDevice, Pod, Vocabulary, decode


def vocabulary(word: str) -> Vocabulary:
    """The annotation keys of one chip's common word (ascend_ppu_hami.md D.1)."""
    return Vocabulary(
        register=f"hami.io/node-register-{word}",
        to_allocate=f"hami.io/{word}-devices-to-allocate",
        allocated=f"hami.io/{word}-devices-allocated",
        handshake=f"hami.io/node-handshake-{word}",
    )


def key(word: str) -> str:
    """Of the annotation that this file reads."""
    return f"huawei.com/{word}"


class RuntimeInfoError(Exception):
    """The annotation cannot be read, or does not say what this container gets; the text names it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One device of the pod."""

    uuid: str
    template: str = ""
    """Name of the slice; empty: a whole card, or a soft one."""
    memory_mib: int | None = None
    cores: int | None = None


class _Raw(msgspec.Struct):
    uuid: str = msgspec.field(default="", name="UUID")
    temp: str | None = None
    memory: int | None = None
    core: int | None = None


_decoder = msgspec.json.Decoder(list[_Raw])


def entries(pod: Pod, word: str) -> tuple[Entry, ...]:
    """All entries of a pod, those without a UUID left out.

    Raises:
        RuntimeInfoError: there is no annotation, or it is no such list.
    """
    text = pod.annotations.get(key(word))
    if text is None:
        raise RuntimeInfoError(f"build runtimeInfo lookup: annotation {key(word)} not set")
    try:
        raw = _decoder.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.MsgspecError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RuntimeInfoError(
            f"build runtimeInfo lookup: annotation {key(word)} value {_short(text)} invalid: {why!a}"
        ) from error
    return tuple(Entry(one.uuid, one.temp or "", one.memory, one.core) for one in raw if one.uuid)


def templates(found: Sequence[Entry], pod: Pod, claim: Claim, word: str) -> tuple[str, ...]:
    """The template of each device of the served slot, in its order; empty for none.

    Args:
        found: of `entries`.
        pod: whose they are.
        claim: the slot.
        word: the chip's common word.

    Raises:
        RuntimeInfoError: no entry names a device, or entries that name it differ and nothing tells which is
            this container's.
    """
    run = _own_run(found, pod, claim, word)
    if run is not None:
        return tuple(entry.template for entry in run)
    return tuple(_template(found, device, word) for device in claim.devices)


def _own_run(found: Sequence[Entry], pod: Pod, claim: Claim, word: str) -> Sequence[Entry] | None:
    """The slot's entries by position, when the permanent record has all slots and agrees with them."""
    try:
        slots = decode(pod.annotations.get(vocabulary(word).allocated, ""))
    except CodecError:
        return None
    flat = [device.id for device in chain.from_iterable(slots)]
    slot = claim.slot
    if slot is None or not 0 <= slot < len(slots) or flat != [entry.uuid for entry in found]:
        return None
    if [device.id for device in slots[slot]] != [device.id for device in claim.devices]:
        return None
    first = sum(len(one) for one in slots[:slot])
    return found[first : first + len(slots[slot])]


def _template(found: Sequence[Entry], device: ContainerDevice, word: str) -> str:
    """By UUID: all entries that name the device say the same, or all that have its amounts do."""
    named = [entry for entry in found if entry.uuid == device.id]
    if not named:
        raise RuntimeInfoError(f"annotation {key(word)} has no entry for device {device.id}")
    for candidates in (named, [entry for entry in named if _same_amounts(entry, device)]):
        chosen = {entry.template for entry in candidates}
        if len(chosen) == 1:
            return chosen.pop()
    raise RuntimeInfoError(
        f"annotation {key(word)} has {len(named)} different entries for device {device.id}, "
        "and nothing tells which is this container's"
    )


def _same_amounts(entry: Entry, device: ContainerDevice) -> bool:
    return entry.memory_mib == device.memory_mib and (entry.cores or 0) == device.cores


def _short(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:80] + "…")
