"""Allocate: what a container gets for its sliced, whole and hard devices, and what its pod records.

amd.md 1.5 and 5; decisions 9, 12, 17, 18, 20 to 23, 25. The memory hook is `hooking`'s, CDI names are
`cdispec`'s. Everything written into an environment, a path or a record comes from our own inventory; of the
pod's annotations only parsed numbers are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devplugin.amd import cdispec, cumask, hooking
from devplugin.amd.devices import Catalogue, Device
from devplugin.amd.inventory import Inventory, Partition
from devplugin.amd.settings import Settings
from devplugin.amd.taken import RECORD, Taken, read_record, rebuild, write_record
from devplugin.answers import Allocation, ContainerEdits, DeviceNode, FactRequest, Refused
from devplugin.hami import Claim, Pod

KFD = "/dev/kfd"


@dataclass(frozen=True, slots=True)
class _Share:
    """One device of the container: how much of it is asked for."""

    device: Device
    memory_mib: int
    """0: all."""
    cores: int
    """CUs; 0 with less than all memory is a slice of memory only, otherwise all."""

    @property
    def sliced(self) -> bool:
        """Less than the whole device."""
        return self.device.sliced(self.memory_mib, self.cores)

    @property
    def memory_only(self) -> bool:
        """May use every CU and holds none (amd.md 5.5)."""
        return self.sliced and self.cores == 0


@dataclass(frozen=True, slots=True)
class _Visible:
    """One agent the runtimes will see, in the order they will see it."""

    agent: Partition
    cus: int | None
    """Its CU mask; None for a hard device, which has none (decision 22)."""
    limit_mib: int | None


def needs(inventory: Inventory, settings: Settings, claim: Claim) -> tuple[FactRequest, ...]:
    """Whether the CDI specification is in place; of a slice what the hook needs (`hooking`)."""
    try:
        shares = _shares(Catalogue(inventory, settings), settings, claim)
    except Refused:
        return ()  # `allocate` says why; it needs no fact for that
    cdi = (cdispec.fact(settings),) if settings.cdi_dir else ()
    return cdi + (hooking.needs(settings, claim) if any(share.sliced for share in shares) else ())


def allocate(
    inventory: Inventory,
    settings: Settings,
    claim: Claim,
    pods: Sequence[Pod],
    facts: Mapping[FactRequest, Any],
) -> Allocation:
    """Edits and records for one container, its devices in annotation order.

    A container of whole or hard devices only gets no hook, no memory limit and no record. As soon as one
    soft device is sliced, every soft device gets a memory limit, and the CUs they hold are recorded.

    Args:
        inventory: this node's GPUs.
        settings: operating mode, hook path, node name for messages.
        claim: the served slot, or kubelet's own ids (hard ones only, decision 17).
        pods: every pod bound to the node: what is taken is rebuilt from them.
        facts: answers to `needs`.

    Raises:
        Refused: unknown or doubly named device, CUs not free or not known, hook library missing, soft ids
            without a pod.
    """
    shares = _shares(Catalogue(inventory, settings), settings, claim)
    taken = rebuild(inventory, settings, pods, claim.pod)
    sliced = any(share.sliced for share in shares)
    masks = [_mask(share, taken) for share in shares]
    soft = [share.device.gpu for share in shares if not share.device.hard]
    hook = hooking.decide(inventory, settings, claim, soft, facts) if sliced else hooking.Hook(False)
    visible = [
        entry
        for share, mask in zip(shares, masks, strict=True)
        for entry in _visible(share, mask, limited=hook.loaded)
    ]
    agents = [agent for share in shares for agent in share.device.agents]
    envs = _environment(visible, agents)
    notes = [*_notes(claim, shares, masks)]
    if hook.loaded:
        envs |= hooking.environment(settings)
    elif sliced:
        notes.append(f"{hook.note}: only dmem limits the memory of this slice")
    named = bool(settings.cdi_dir and facts.get(cdispec.fact(settings)))
    return Allocation(
        edits=ContainerEdits(
            envs=envs,
            mounts=hooking.mounts(settings) if hook.loaded else (),
            devices=() if named else _nodes(agents),
            cdi=cdispec.names(agents) if named else (),
        ),
        annotations=_records(claim, shares, masks) if sliced else {},
        notes=tuple(notes),
        warnings=taken.warnings,
    )


def _shares(catalogue: Catalogue, settings: Settings, claim: Claim) -> list[_Share]:
    shares = (
        _kubelet_shares(catalogue, claim) if claim.pod is None else _pod_shares(catalogue, settings, claim)
    )
    named = [share.device.id for share in shares]
    double = next((identifier for identifier in named if named.count(identifier) > 1), None)
    if double is not None:
        raise Refused(
            f"device {double} is named twice for one container; delete the pod to schedule it again"
        )
    return shares


def _pod_shares(catalogue: Catalogue, settings: Settings, claim: Claim) -> list[_Share]:
    shares = []
    for wanted in claim.devices:
        device = catalogue.named(wanted.id)
        if device is None:
            raise Refused(
                f"pod {claim.pod}: device {wanted.id} is not offered by node {settings.node_name} in mode "
                f"{settings.mode} (offered: {len(catalogue.devices)} devices); delete the pod so that it is "
                "scheduled again"
            )
        shares.append(_Share(device, wanted.memory_mib, wanted.cores))
    return shares


def _kubelet_shares(catalogue: Catalogue, claim: Claim) -> list[_Share]:
    """Kubelet's own ids: every hard id we offered, as a whole; never a soft one (decision 17)."""
    shares = []
    for identifier in claim.ids:
        found = catalogue.slot(identifier)
        if found is None:
            raise Refused(f"kubelet's device {identifier[:80]!a} is not one this node offers")
        device, _ = found
        if not device.hard:
            why = f" ({'; '.join(claim.passed_over)})" if claim.passed_over else ""
            raise Refused(
                f"no pod waits for shared device {identifier}, and a slot alone says neither CUs nor "
                f"memory{why}; let the HAMi scheduler place the pod",
                why="pod",
            )
        shares.append(_Share(device, 0, 0))
    return shares


def _mask(share: _Share, taken: Taken) -> int:
    """The CUs of a device for this container, by its own numbering; refused when they are not free."""
    device, gpu = share.device, share.device.gpu
    if gpu.bdf in taken.blocked:
        raise Refused(taken.blocked[gpu.bdf], why="record")
    if share.memory_only:
        return cumask.everything(device.cus)
    in_use = taken.masks.get(gpu.bdf, 0) >> device.first_cu
    count = min(share.cores, device.cus) if share.sliced else device.cus
    try:
        return cumask.first_fit(in_use, device.cus, count, gpu.cu_unit)
    except cumask.CuError as error:
        held = ", ".join(map(str, taken.holders.get(gpu.bdf, ()))) or "nobody"
        raise Refused(
            f"device {device.id}: {error} (held by {held}); wait for one of these pods to end",
            why="cores",
        ) from error


def _visible(share: _Share, mask: int, *, limited: bool) -> list[_Visible]:
    """The agents of one device that the container is to see.

    A slice of a partitioned GPU may leave an agent without CUs. An agent without mask has all its CUs,
    and an empty mask is not to be written (decision 21), so such an agent stays invisible. The memory
    limit is shared among the visible ones: together they get what was asked for.
    """
    device = share.device
    if device.hard:
        return [_Visible(agent, None, None) for agent in device.agents]
    parts = []
    for agent in device.agents:
        part = mask & cumask.everything(agent.cus)
        mask >>= agent.cus
        if part:
            parts.append((agent, part))
    limit = max(1, (share.memory_mib or device.memory_mib) // len(parts)) if limited else None
    return [_Visible(agent, part, limit) for agent, part in parts]


def _environment(visible: Sequence[_Visible], given: Sequence[Partition]) -> dict[str, str]:
    """What the runtimes read (amd.md 1.5).

    Args:
        visible: the agents to see, in order.
        given: all agents whose render nodes the container gets. ROCr numbers these, in KFD node order.
    """
    names = [entry.agent.rocr_name for entry in visible]
    if not all(names):
        rank = {node: index for index, node in enumerate(sorted(agent.node for agent in given))}
        names = [str(rank[entry.agent.node]) for entry in visible]
    envs = {
        "ROCR_VISIBLE_DEVICES": ",".join(str(name) for name in names),
        "HIP_VISIBLE_DEVICES": ",".join(str(index) for index in range(len(visible))),
    }
    masks = [f"{i}:{cumask.text(entry.cus)}" for i, entry in enumerate(visible) if entry.cus]
    if masks:
        envs["HSA_CU_MASK"] = ";".join(masks)
    for index, entry in enumerate(visible):
        if entry.limit_mib is not None:
            envs[f"HIP_DEVICE_MEMORY_LIMIT_{index}"] = f"{entry.limit_mib}m"
    return envs


def _nodes(agents: Sequence[Partition]) -> tuple[DeviceNode, ...]:
    """``/dev/kfd`` once, then card (where the kernel had one left) and render node of every agent."""
    nodes = [DeviceNode(KFD)]
    for agent in agents:
        if agent.card is not None:
            nodes.append(DeviceNode(f"/dev/dri/card{agent.card}"))
        nodes.append(DeviceNode(f"/dev/dri/renderD{agent.render_minor}"))
    return tuple(nodes)


def _records(claim: Claim, shares: Sequence[_Share], masks: Sequence[int]) -> dict[str, str | None]:
    """The pod's CU record with this container's CUs merged in; nothing when it holds none."""
    held = {
        share.device.id: (mask, share.device.cus)
        for share, mask in zip(shares, masks, strict=True)
        if not share.device.hard and not share.memory_only
    }
    if not held or claim.pod is None:
        return {}
    text = claim.pod.annotations.get(RECORD, "")
    try:
        record = read_record(text) if text.strip() else {}
        for identifier, (mask, total) in held.items():
            record[identifier] = cumask.text(mask | cumask.parse(record.get(identifier, ""), total))
    except ValueError as error:
        raise Refused(
            f"pod {claim.pod}: its {RECORD} cannot be read ({error}); delete the pod", why="record"
        ) from error
    return {RECORD: write_record(record)}


def _notes(claim: Claim, shares: Sequence[_Share], masks: Sequence[int]) -> tuple[str, ...]:
    who = f"pod {claim.pod}, slot {claim.slot}" if claim.pod else "kubelet's own ids"
    return tuple(
        f"{who}: device {share.device.id} at {share.device.key}"
        + ("" if share.device.hard else f", CUs {cumask.text(mask)} of {share.device.cus}")
        for share, mask in zip(shares, masks, strict=True)
    )
