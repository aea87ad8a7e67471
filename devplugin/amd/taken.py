"""Which compute units are in use on each GPU: rebuilt from the node's pods for every Allocate.

The daemon keeps no ledger: what every living pod was given stands in its annotations (amd.md 5.7,
decision 18). CUs are counted per physical GPU, so a pod that got a partition still holds its part of the
GPU after the operating mode changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from devplugin.amd import cumask
from devplugin.amd.devices import scaled_memory_mib, share_memory_mib, whole_memory_mib
from devplugin.amd.inventory import Gpu, Inventory
from devplugin.amd.settings import MODE_PARTITION, Settings
from devplugin.amd.uuid import partition_id, strip_mode
from devplugin.hami import CodecError, ContainerDevice, Pod, Vocabulary, decode

VOCABULARY = Vocabulary(
    register="hami.io/node-amd-register",
    to_allocate="hami.io/amd-devices-to-allocate",
    allocated="hami.io/amd-devices-allocated",
)
"""AMD's annotation keys; there is no handshake (ascend_ppu_hami.md D.1)."""

RECORD = "hami.io/amd-cu-allocated"
"""Pod annotation: JSON object, device id → CU id list (amd.md 5.7)."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What is in use, by GPU (its BDF)."""

    masks: Mapping[str, int] = field(default_factory=dict)
    """CUs of the whole GPU in use."""
    holders: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    """The pods that hold them."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """GPUs whose state is unknown: nothing may be given out; the text says why and what to do."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Span:
    """The part of a GPU that an id in an annotation means."""

    gpu: Gpu
    first: int
    cus: int
    memory_mib: int
    """As registered."""
    card_mib: int
    """As built in."""
    hard: bool

    def everything(self) -> int:
        return cumask.everything(self.cus) << self.first

    def whole(self, entry: ContainerDevice) -> bool:
        """Whether an entry takes all of it: neither fewer CUs nor less memory (amd.md 5.4)."""
        return self.hard or not (0 < entry.cores < self.cus or 0 < entry.memory_mib < self.all_memory(entry))

    def all_memory(self, entry: ContainerDevice) -> int:
        """From how many MiB on an entry has all memory.

        With all CUs named the card's own size is enough: a pod placed before -device_memory_scaling was
        raised stays whole, and who really is a slice with all CUs has them in its record anyway.
        """
        return min(self.memory_mib, self.card_mib) if entry.cores >= self.cus else self.memory_mib


@dataclass(slots=True)
class _Count:
    """The rebuild while it runs."""

    spans: Mapping[str, _Span]
    masks: dict[str, int] = field(default_factory=dict)
    by_pod: dict[str, list[tuple[Pod, int]]] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def block(self, gpu: Gpu, why: str) -> None:
        self.blocked.setdefault(gpu.bdf, f"device {gpu.id}: {why}")

    def block_named(self, text: str, pod: Pod, why: str) -> None:
        """Block every device whose id occurs in a text that does not parse; where none does, say that."""
        named = [span.gpu for identifier, span in self.spans.items() if identifier in text]
        for gpu in named:
            self.block(gpu, f"{why}; delete pod {pod} or correct the annotation")
        if not named:
            self.warnings.append(f"{why} and names no device of this node, ignored")


def rebuild(inventory: Inventory, settings: Settings, pods: Sequence[Pod], current: Pod | None) -> Taken:
    """What all living pods of the node hold: their CU records, and every whole entry they were given.

    Memory-only slices hold nothing. Records about devices of other nodes are passed over, with a warning.
    A GPU is blocked, and that GPU only, when a record about it is no id list, goes beyond its CUs or claims
    what another pod has.

    Args:
        inventory: this node's GPUs.
        settings: in partition mode any entry of a GPU offered hard counts as whole.
        pods: every pod bound to the node; ended ones hold nothing.
        current: the pod being served: of its entries only those already consumed count.
    """
    count = _Count(_spans(inventory, settings))
    gpus = {gpu.bdf: gpu for gpu in inventory.gpus}
    for pod in pods:
        if pod.terminal:
            continue
        for bdf, mask in _held(
            pod, count, consumed_only=current is not None and pod.uid == current.uid
        ).items():
            both = count.masks.get(bdf, 0) & mask
            if both:
                other = next(holder for holder, held in count.by_pod[bdf] if held & both)
                shared = (both & -both).bit_length() - 1
                count.block(
                    gpus[bdf], f"CU {shared} is held by both {other} and {pod}; delete one of the two pods"
                )
            count.masks[bdf] = count.masks.get(bdf, 0) | mask
            count.by_pod.setdefault(bdf, []).append((pod, mask))
    return Taken(
        masks=count.masks,
        holders={bdf: tuple(holder for holder, _ in held) for bdf, held in count.by_pod.items()},
        blocked=count.blocked,
        warnings=tuple(count.warnings),
    )


class RecordError(ValueError):
    """A text that is no CU record."""


def read_record(text: str) -> dict[str, str]:
    """The CU record of a pod: device id → id list, as written.

    Raises:
        RecordError: no JSON object of texts, an empty id, or an id twice.
    """
    try:
        pairs = _JSON.decode(text)
    except RecursionError:
        raise RecordError("nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, or a number of too many digits
        raise RecordError(str(error)) from None
    if not isinstance(pairs, _Pairs):
        raise RecordError("not a JSON object")
    record: dict[str, str] = {}
    for key, value in pairs:
        if not key or not isinstance(value, str) or key in record:
            raise RecordError("not an object of one text per device id")
        record[key] = value
    return record


def write_record(record: Mapping[str, str]) -> str:
    """The annotation text: compact, keys sorted, as Go writes a map."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"))


class _Pairs(list[tuple[str, object]]):
    """A decoded JSON object with its keys as written, double ones included."""


_JSON = json.JSONDecoder(object_pairs_hook=_Pairs)


def _spans(inventory: Inventory, settings: Settings) -> dict[str, _Span]:
    """Every id that can stand in a pod's annotation, of either operating mode (decision 10)."""
    spans: dict[str, _Span] = {}
    for gpu in inventory.gpus:
        hard = settings.mode == MODE_PARTITION and gpu.partitionable
        first = 0
        for partition, identifier in zip(gpu.partitions, gpu.ids, strict=True):
            share = share_memory_mib(gpu)
            spans[identifier] = _Span(gpu, first, partition.cus, share, share, hard=True)
            first += partition.cus
        if gpu.whole:
            # Partition 0's device nodes are the GPU's own (kernel.md 6): a pod that was given it before
            # somebody switched the GPU back can open all of it now. Those of other partitions open no more.
            everything = whole_memory_mib(gpu)
            spans[partition_id(gpu.id, 0)] = _Span(gpu, 0, gpu.cus, everything, everything, hard=True)
        spans[gpu.id] = _Span(gpu, 0, gpu.cus, scaled_memory_mib(gpu, settings), whole_memory_mib(gpu), hard)
    return spans


def _held(pod: Pod, count: _Count, *, consumed_only: bool) -> dict[str, int]:
    """CUs that one pod holds, by GPU."""
    masks: dict[str, int] = {}
    for span, mask in _recorded(pod, count):
        masks[span.gpu.bdf] = masks.get(span.gpu.bdf, 0) | mask
    for span in _whole_entries(pod, count, consumed_only=consumed_only):
        masks[span.gpu.bdf] = masks.get(span.gpu.bdf, 0) | span.everything()
    return masks


def _recorded(pod: Pod, count: _Count) -> Iterator[tuple[_Span, int]]:
    text = pod.annotations.get(RECORD, "")
    if not text.strip():
        return
    try:
        record = read_record(text)
    except RecordError:
        given = pod.annotations.get(VOCABULARY.allocated, "")
        count.block_named(text + given, pod, f"{RECORD} of pod {pod} cannot be read")
        return
    for key, cus in record.items():
        span = count.spans.get(key) or count.spans.get(strip_mode(key))
        if span is None:
            count.warnings.append(f"pod {pod}: {RECORD} names a device unknown here, ignored")
            continue
        try:
            yield span, cumask.parse(cus, span.cus) << span.first
        except cumask.CuError as error:
            count.block(span.gpu, f"{RECORD} of pod {pod}: {error}; delete the pod or correct the annotation")


def _whole_entries(pod: Pod, count: _Count, *, consumed_only: bool) -> Iterator[_Span]:
    text = pod.annotations.get(VOCABULARY.allocated, "")
    if not text:
        return
    try:
        slots = decode(text)
        pending = decode(pod.annotations.get(VOCABULARY.to_allocate, "")) if consumed_only else ()
    except CodecError:
        if pod.annotations.get(VOCABULARY.to_allocate) == text:
            # Nothing of it was served, and its own Allocate fails: others are untouched (decision 16).
            count.warnings.append(f"pod {pod}: {VOCABULARY.allocated} cannot be read, nothing served of it")
            return
        count.block_named(text, pod, f"{VOCABULARY.allocated} of pod {pod} cannot be read")
        return
    for index, entries in enumerate(slots):
        if index < len(pending) and pending[index]:
            continue  # not consumed yet: what the current call may be about to serve
        for entry in entries:
            span = count.spans.get(entry.id) or count.spans.get(strip_mode(entry.id))
            if span is None:
                count.warnings.append(
                    f"pod {pod}: {VOCABULARY.allocated} names device {entry.id}, unknown here, ignored"
                )
            elif span.whole(entry):
                yield span
