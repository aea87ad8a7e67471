"""Allocate: what a container gets of the PPUs the scheduler chose for it.

Device nodes, a limit for each card, the runtime library that holds it to them, and a directory of its own for
the state file (decision 53). What would make a container unlimited by accident is refused (decision 50).
Everything written into an environment or a path comes from our own inventory; of the pod's annotations only
parsed numbers are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from devplugin import containerdirs
from devplugin.answers import Allocation, ContainerEdits, DeviceNode, FactRequest, Mount, Refused, Why
from devplugin.hami import Claim, Pod
from devplugin.ppu import words
from devplugin.ppu.inventory import Inventory, Ppu, ordered

AGAIN = "delete the pod so that it is scheduled again"
INSTALL = (
    f"put PPU-HAMi-core into {words.HOST} of the node, or use an image of this plugin that was built with it"
)

_KEY = words.VOCABULARY.to_allocate


@dataclass(frozen=True, slots=True)
class _Card:
    """One card of the container."""

    ppu: Ppu
    memory_mib: int


@dataclass(frozen=True, slots=True)
class _Share:
    """What one container gets."""

    pod: Pod
    slot: int | None
    cards: tuple[_Card, ...]
    """In the order in which its processes count them."""
    cores: int
    """Percent of each card; 0: none were asked for, nothing is limited."""


def needs(inventory: Inventory, claim: Claim) -> tuple[FactRequest, ...]:
    """Whether the host still has the runtime library."""
    return () if claim.pod is None else _files(inventory)


def allocate(inventory: Inventory, claim: Claim, facts: Mapping[FactRequest, Any]) -> Allocation:
    """Edits for one container; no other pod changes the answer.

    Args:
        inventory: this node's PPUs.
        claim: the served slot; kubelet's own ids say nothing here and are refused (decision 17).
        facts: answers to `needs`.

    Raises:
        Refused: no pod; a card that is not here; a limit of 0; shares that cannot be told to the container;
            nothing that would limit it.
    """
    share = _share(inventory, claim)
    missing = [fact.subject for fact in _files(inventory) if not facts.get(fact)]
    if trouble := inventory.library.trouble or (f"{missing[0]}: not on this node" if missing else ""):
        raise _no(share.pod, f"{trouble}: nothing would limit the container's memory", "limit", INSTALL)
    path = _directory(share)
    edits = ContainerEdits(envs=dict(_environment(share)), mounts=_mounts(path), devices=tuple(_nodes(share)))
    return Allocation(edits, before=containerdirs.fresh(path), notes=(_note(share),))


def _environment(share: _Share) -> Iterator[tuple[str, str]]:
    for index, card in enumerate(share.cards):
        yield f"{words.MEMORY_LIMIT}{index}", str(card.memory_mib)
    yield words.SM_LIMIT, str(share.cores)
    yield words.LEDGER_PATH, f"{words.STATE_INSIDE}/{words.STATE}"


def _nodes(share: _Share) -> Iterator[DeviceNode]:
    for path in words.COMMON_NODES:
        yield DeviceNode(path, words.NODE_ACCESS)
    for card in share.cards:
        yield DeviceNode(f"{words.NODE}{card.ppu.minor}", words.NODE_ACCESS)


def _mounts(directory: str) -> tuple[Mount, ...]:
    return (
        Mount(words.INSIDE, words.HOST),
        Mount(words.PRELOAD_INSIDE, f"{words.HOST}/{words.PRELOAD}"),
        Mount(words.STATE_INSIDE, directory, read_only=False),
    )


def _files(inventory: Inventory) -> tuple[FactRequest, ...]:
    """Looked at again for every container: the linker passes over a library that is not there."""
    return tuple(FactRequest("file", path) for path in inventory.library.files)


def _directory(share: _Share) -> str:
    try:
        return containerdirs.of_slot(words.CONTAINERS, share.pod, share.slot)
    except ValueError as error:
        raise _no(share.pod, str(error), "record") from error


def _share(inventory: Inventory, claim: Claim) -> _Share:
    pod = claim.pod
    if pod is None:
        why = f" ({'; '.join(claim.passed_over)})" if claim.passed_over else ""
        raise Refused(
            f"get pending pod: no pod of this node waits for {len(claim.ids)} device(s), and kubelet's ids "
            f"do not say what was asked for{why}; let the HAMi scheduler place the pod",
            why="pod",
        )
    memory: dict[str, int] = {}
    found: list[Ppu] = []
    for device in claim.devices:
        ppu = inventory.ppu(device.id)
        if ppu is None:
            text = f"unknown uuid: {device.id} in {_KEY} is not offered by this node"
            raise _no(pod, f"{text} ({len(inventory.ppus)} PPUs are)", "device")
        if ppu.uuid in memory:
            raise _no(pod, f"device {device.id} is named twice for one container", "device")
        if device.memory_mib <= 0:
            raise _no(
                pod,
                f"{device.memory_mib} MiB of {device.id} in {_KEY} would be no limit at all",
                "limit",
                "ask for memory",
            )
        memory[ppu.uuid] = device.memory_mib
        found.append(ppu)
    asked = {device.cores for device in claim.devices}
    if len(asked) != 1 or min(asked) < 0:
        told = ", ".join(map(str, sorted(asked)))
        text = f"cards of one container with unequal or impossible cores in {_KEY}: {told}"
        raise _no(pod, f"{text}; {words.SM_LIMIT} is one number", "record")
    cards = tuple(_Card(ppu, memory[ppu.uuid]) for ppu in ordered(found))
    return _Share(pod, claim.slot, cards, min(100, *asked))


def _no(pod: Pod, text: str, why: Why, remedy: str = AGAIN) -> Refused:
    return Refused(f"pod {pod}: {text}; {remedy}", why=why)


def _note(share: _Share) -> str:
    cards = ", ".join(
        f"{card.ppu.uuid} (minor {card.ppu.minor}) {card.memory_mib} MiB" for card in share.cards
    )
    return f"pod {share.pod}, slot {share.slot}: {cards}, cores {share.cores or 'not limited'}"
