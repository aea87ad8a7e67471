"""vNPUs that nobody uses: when one may be destroyed, and when it is only about to be used.

A container that failed after its vNPU was cut leaves it behind, and the scheduler, which counts memory and no
AI cores, goes on placing pods that then cannot start (G row 3). A vNPU just cut for a container looks the
same. So all that is known of the node must be there, every pod on the card must be settled, three looks in a
row and for ten minutes (ascend_ppu_hami.md A.9; decision 46).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from devplugin import containerdirs
from devplugin.answers import Turn
from devplugin.ascend import smi
from devplugin.ascend.inventory import Inventory, Npu
from devplugin.ascend.runtimeinfo import vocabulary
from devplugin.ascend.settings import ChipConfig, Settings
from devplugin.ascend.smi import SmiError, Vnpu
from devplugin.deeds import RunTool
from devplugin.hami import CodecError, Pod, decode, filled
from devplugin.host import Host

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
"""Who holds which devices by kubelet's own record (kubelet.md 2)."""
CONFIRMATIONS = 3
GRACE = 600.0
"""Seconds since a vNPU was first seen idle and its card first seen settled, whichever is later."""
SLACK = 1.0
"""Seconds a look may come early: turns are as long apart as the API server takes to answer more or less."""

BROKEN = frozenset({"RunContainerError", "CreateContainerError", "StartError", "CrashLoopBackOff"})
"""A container that waits for this has left its vNPU, if it had one. One that waits for anything else, a word
we do not know included, may be about to use one (ContainerCreating, PodInitializing, ImagePullBackOff, …)."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one look hands to the next; a restart forgets it."""

    last: float | None = None
    """When the last look was."""
    cards: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """UUID of a card whose pods were settled at every look since → looks, and since when."""
    idle: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """(card, vNPU) → since when it was idle at every look."""
    seen: frozenset[str] = frozenset()
    """UIDs of pods that the API server once listed: kubelet's record may name them a while longer."""
    found: frozenset[tuple[str, int]] | None = None
    """What was idle at the first look of this life, as far as it is still there; None before that look."""


class _IncompleteError(Exception):
    """Something that must be known is not."""


class _Checkpoint(msgspec.Struct):
    class Data(msgspec.Struct):
        class Entry(msgspec.Struct):
            uid: str = msgspec.field(name="PodUID")
            resource: str = msgspec.field(name="ResourceName")

        entries: list[Entry] | None = msgspec.field(default=None, name="PodDeviceEntries")
        registered: dict[str, list[str] | None] | None = msgspec.field(default=None, name="RegisteredDevices")

    data: Data = msgspec.field(name="Data")


_decoder = msgspec.json.Decoder(_Checkpoint)


def look(
    host: Host, inventory: Inventory, settings: Settings, turn: Turn, memory: Memory
) -> tuple[tuple[RunTool, ...], Memory]:
    """vNPUs to destroy, and what to remember. Looks only.

    Unless the operator wants it periodically, only what was idle at the first look is followed, until it is
    gone or used.

    Args:
        host: the node: kubelet's record and npu-smi.
        inventory: its NPUs.
        settings: how often, and whether for ever.
        turn: the pods of the node, and the time; whose memory it holds is the caller's affair.
        memory: of the look before.
    """
    now = turn.now
    if not settings.periodic and memory.found is not None and not memory.found:
        return (), memory
    if memory.last is not None and now - memory.last + SLACK < settings.idle_interval:
        return (), memory
    try:
        held = _held_by_kubelet(host, inventory)
        settled = _settled(inventory, turn.pods, held - memory.seen)
        idle = list(_idle(host, inventory))
    except _IncompleteError:
        return (), Memory(now, seen=memory.seen, found=memory.found)
    seen = (memory.seen & held) | {pod.uid for pod in turn.pods}
    there = frozenset((npu.uuid, vnpu.number) for npu, vnpu in idle)
    found = there if memory.found is None else memory.found & there
    memory = replace(
        memory,
        last=now,
        cards={uuid: _again(memory.cards.get(uuid), now) for uuid in settled},
        idle={key: memory.idle.get(key, now) for key in there},
        seen=seen,
        found=found,
    )
    followed = there if settings.periodic else found
    doomed = [(npu, vnpu) for npu, vnpu in idle if _due((npu.uuid, vnpu.number), followed, memory, now)]
    gone = {(npu.uuid, vnpu.number) for npu, vnpu in doomed}
    # its number may be given again at once: what takes it begins anew
    left = {key: since for key, since in memory.idle.items() if key not in gone}
    deeds = tuple(_destroy(inventory.tool, npu, vnpu) for npu, vnpu in doomed)
    return deeds, replace(memory, idle=left)


def _again(before: tuple[int, float] | None, now: float) -> tuple[int, float]:
    looks, since = before if before is not None else (0, now)
    return looks + 1, since


def _due(key: tuple[str, int], followed: Container[tuple[str, int]], memory: Memory, now: float) -> bool:
    card, _ = key
    if card not in memory.cards or key not in followed:
        return False
    looks, settled = memory.cards[card]
    return looks >= CONFIRMATIONS and now - max(settled, memory.idle[key]) >= GRACE


def _idle(host: Host, inventory: Inventory) -> Iterator[tuple[Npu, Vnpu]]:
    for npu in inventory.npus:
        question = ("info", "-t", "info-vnpu", "-i", str(npu.card), "-c", str(npu.device))
        try:
            found = smi.vnpus(smi.ask(host, inventory.tool, *question), " ".join(question))
        except SmiError as error:
            raise _IncompleteError(str(error)) from error
        yield from ((npu, vnpu) for vnpu in found if vnpu.idle)


def _destroy(tool: str, npu: Npu, vnpu: Vnpu) -> RunTool:
    where = ("-i", str(npu.card), "-c", str(npu.device), "-v", str(vnpu.number))
    return RunTool((tool, "set", "-t", "destroy-vnpu", *where), wanted="Status : OK")


def _held_by_kubelet(host: Host, inventory: Inventory) -> frozenset[str]:
    """UIDs of pods that hold devices of ours by kubelet's record.

    Raises:
        _IncompleteError: NPUs are not known, the record cannot be read, or kubelet has not got our devices.
    """
    if inventory.chip is None or not inventory.npus or inventory.trouble or not inventory.tool:
        raise _IncompleteError("the NPUs are not known")
    try:
        data = _decoder.decode(host.read(CHECKPOINT)).data
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise _IncompleteError(f"{CHECKPOINT}: {error}") from error
    resource = inventory.chip.resource
    if resource not in (data.registered or {}):
        raise _IncompleteError(f"{CHECKPOINT}: {resource} is not registered")
    return frozenset(entry.uid for entry in data.entries or () if entry.resource == resource)


def _settled(inventory: Inventory, pods: Sequence[Pod], strangers: Collection[str]) -> frozenset[str]:
    """The cards that no container is about to use a vNPU of.

    Args:
        inventory: the cards.
        pods: of the node.
        strangers: pods that hold devices and that the API server did not list before.
    """
    assert inventory.chip is not None
    if set(strangers) - {pod.uid for pod in pods}:
        return frozenset()
    unsettled: set[str] = set()
    for pod in pods:
        try:
            unsettled |= set() if pod.terminal else _unsettled(pod, inventory.chip)
        except _IncompleteError:
            return frozenset()
    return frozenset(npu.uuid for npu in inventory.npus) - unsettled


def _unsettled(pod: Pod, chip: ChipConfig) -> set[str]:
    """The cards on which a container of this pod may be about to use a vNPU.

    Raises:
        _IncompleteError: it asks for NPUs, and which they are nobody can tell.
    """
    text = pod.annotations.get(vocabulary(chip.word).allocated, "")
    if not filled(text):
        if any(chip.resource in limits for limits in pod.limits.values()):
            raise _IncompleteError(f"pod {pod}: its NPUs are not recorded")
        return set()
    try:
        slots = decode(text)
    except CodecError as error:
        raise _IncompleteError(f"pod {pod}: {error}") from error
    return {
        device.id
        for index, slot in enumerate(slots)
        if not _is_settled(pod, containerdirs.container(pod, index))
        for device in slot
    }


def _is_settled(pod: Pod, container: str | None) -> bool:
    """Whether a container needs no vNPU that is idle: it runs, has ended, or failed with one."""
    reason = pod.waiting.get(container) if container is not None else None
    if reason is not None:
        return reason in BROKEN
    return container in pod.container_ids.values() and pod.phase in {"Pending", "Running"}
