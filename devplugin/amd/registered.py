"""The node's register annotation, read back: which GPUs this node registered, by PCI address.

The reading half of `registration`; the monitor knows the node's devices only from there, as HAMi's
scheduler does. Partitions of one GPU name the same address: they are one GPU here. amd.md 3.1 and 11.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from devplugin.amd.taken import VOCABULARY
from devplugin.amd.uuid import is_bdf, normal_bdf, whole_id
from devplugin.hami.codec import clip

_LONGEST = 256
"""Characters of a name that becomes a label."""


class RegistrationError(ValueError):
    """The annotation cannot be read; the text says where."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One physical GPU as registered."""

    bdf: str
    id: str
    """Id of the whole GPU, function byte ``ff`` (decision 10), also when only its partitions are there."""
    index: int
    """Registered index of its first device, which is the PCI device itself; 0 when left out."""
    type: str


def read_registration(text: str) -> Mapping[str, Registered]:
    """BDF → GPU, in the order of the annotation; no two GPUs have the same id.

    Raises:
        RegistrationError: no JSON array of devices that each have an id and a PCI address, or one id at two
            addresses.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise RegistrationError(f"{VOCABULARY.register}: no JSON: {clip(text)}") from None
    if not isinstance(entries, list):
        raise RegistrationError(f"{VOCABULARY.register}: no array: {clip(text)}")
    found: dict[str, Registered] = {}
    for place, entry in enumerate(entries):
        one = _entry(entry, f"{VOCABULARY.register}[{place}]")
        known = found.get(one.bdf)
        if known is None:
            found[one.bdf] = one
        elif known.id != one.id:
            raise RegistrationError(f"{VOCABULARY.register}[{place}]: another GPU's address, {one.bdf}")
    ids = [gpu.id for gpu in found.values()]
    if len(set(ids)) < len(ids):
        raise RegistrationError(f"{VOCABULARY.register}: two GPUs with one id")
    return found


def _entry(entry: object, where: str) -> Registered:
    if not isinstance(entry, dict):
        raise RegistrationError(f"{where}: no object")
    info = entry.get("custominfo")
    bdf = info.get("pciBDF") if isinstance(info, dict) else None
    index = entry.get("index", 0)
    if not isinstance(bdf, str) or not is_bdf(normal_bdf(bdf)):
        raise RegistrationError(f"{where}: custominfo.pciBDF is no PCI address")
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise RegistrationError(f"{where}: index is no number")
    identifier = _name(entry, "id", where)
    if not identifier:
        raise RegistrationError(f"{where}: no id")
    return Registered(normal_bdf(bdf), whole_id(identifier), index, _name(entry, "type", where))


def _name(entry: dict[str, object], key: str, where: str) -> str:
    """A text that can be a label: printable, of bounded length (decision 25)."""
    value = entry.get(key, "")
    if not isinstance(value, str) or not value.isprintable() or len(value) > _LONGEST:
        raise RegistrationError(f"{where}: {key} is no name")
    return value
