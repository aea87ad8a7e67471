"""Who uses how much of which device, as the scheduler counts it: from the pods' own annotations.

Every pod that was assigned and has not ended holds what its ``devices-allocated`` says, on the node that
``hami.io/vgpu-node`` names, bound or not (ascend_ppu_hami.md D.4, D.8). The decoder is D.5's, shares no line
with the plugin's, and is as tolerant as HAMi's: pieces without a comma are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpusim.cluster.pods import VGPU_NODE
from gpusim.cluster.scheduler_vendors import Vendor
from gpusim.errors import GpusimError

Object = dict[str, Any]
TERMINAL = ("Succeeded", "Failed")


class LedgerError(GpusimError):
    """A pod's annotation cannot be read: the whole pod is not counted."""


@dataclass(frozen=True, slots=True)
class Held:
    """One device of one container."""

    id: str
    type: str
    memory_mib: int
    cores: int
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Usage:
    """What is used of one device."""

    slots: int = 0
    memory_mib: int = 0
    cores: int = 0

    def plus(self, memory_mib: int, cores: int, slots: int = 1) -> Usage:
        """With one more holder."""
        return Usage(self.slots + slots, self.memory_mib + memory_mib, self.cores + cores)


Ledger = Mapping[tuple[str, str], Usage]
"""(node, device id) → usage; what is not in it is unused."""


def decode(text: str) -> tuple[tuple[Held, ...], ...]:
    """The slots of an annotation; one empty slot more than was written, because of the last ``;``.

    Raises:
        LedgerError: too few fields, or a number that is none.
    """
    return tuple(tuple(_held(piece) for piece in slot.split(":") if "," in piece) for slot in text.split(";"))


def _held(piece: str) -> Held:
    fields = piece.split(",")
    if len(fields) < 4:
        raise LedgerError("pod annotation format error, missing fields, do not use nodeName in task spec")
    return Held(
        fields[0],
        fields[1],
        _int32("memory", fields[2]),
        _int32("core", fields[3]),
        _slots(fields[4]) if len(fields) > 4 else 1,
    )


def _int32(what: str, text: str) -> int:
    try:
        value = int(text, 10) if text.isascii() and text.strip() == text and "_" not in text else None
    except ValueError:
        value = None
    if value is None or not -(1 << 31) <= value < 1 << 31:
        raise LedgerError(f"invalid {what} field: {text!r}")
    return value


def _slots(text: str) -> int:
    """How many sharers it counts for; nonsense is 1 (D.5)."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 1 else 1


def ended(pod: Object) -> bool:
    """Whether a pod holds nothing any more."""
    return (pod.get("status") or {}).get("phase") in TERMINAL


def holdings(pod: Object, vendors: Iterable[Vendor]) -> tuple[str, tuple[Held, ...]]:
    """(node, devices) a pod is counted for; an empty node when it was never assigned or has ended.

    Raises:
        LedgerError: its annotation cannot be read.
    """
    annotations = pod["metadata"].get("annotations") or {}
    node = annotations.get(VGPU_NODE, "")
    if not node or ended(pod):
        return "", ()
    texts = [annotations[vendor.allocated] for vendor in vendors if vendor.allocated in annotations]
    return node, tuple(held for text in texts for slot in decode(text) for held in slot)


def count(
    pods: Iterable[Object], vendors: Iterable[Vendor], *, without: str = ""
) -> tuple[dict[tuple[str, str], Usage], tuple[str, ...]]:
    """The ledger, and complaints about pods that cannot be counted.

    Args:
        pods: all pods of the cluster.
        vendors: the table's rows in use.
        without: uid of the pod that is being scheduled: an earlier assignment of it does not count.
    """
    rows = tuple(vendors)
    ledger: dict[tuple[str, str], Usage] = {}
    complaints = []
    for pod in pods:
        metadata = pod["metadata"]
        if metadata.get("uid") == without and without:
            continue
        try:
            node, devices = holdings(pod, rows)
        except LedgerError as error:
            complaints.append(f"pod {metadata.get('namespace')}/{metadata.get('name')}: {error}")
            continue
        for one in devices:
            key = (node, one.id)
            ledger[key] = ledger.get(key, Usage()).plus(one.memory_mib, one.cores, one.slots)
    return ledger, tuple(complaints)
