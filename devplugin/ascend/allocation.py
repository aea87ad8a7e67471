"""Allocate: what a container gets of the NPUs the scheduler chose for it.

A whole card or a slice by template is an environment from which the container runtime makes devices. A soft
container gets the runtime library, a limit for each of its devices and a directory of its own for the
ledger (ascend_ppu_hami.md A.7; decisions 36 to 40, 44, 50). Everything written into an environment or a path
comes from our own inventory and configuration; of the pod's annotations only parsed numbers are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from devplugin import containerdirs
from devplugin.answers import Allocation, ContainerEdits, FactRequest, Mount, Refused, Why
from devplugin.ascend import runtimeinfo
from devplugin.ascend.inventory import Inventory, Npu
from devplugin.ascend.ledgerfile import MAX_DEVICES
from devplugin.ascend.runtimeinfo import RuntimeInfoError
from devplugin.ascend.settings import LEDGER, MODE_SOFT, SHARED_REGION, ChipConfig, Settings
from devplugin.hami import Claim, Pod

MODE = "huawei.com/vnpu-mode"

LIBRARY = "libvnpu.so"
PRELOAD = "ld.so.preload"
HOOK_INSIDE = "/hami-vnpu-core"
REGION_INSIDE = "/hami-shared-region"
SHMEM_INSIDE = "/hami-vnpu-shmem"
DRIVER_MOUNTS = (
    "/usr/local/bin/npu-smi",
    "/etc/ascend_install.info",
    "/usr/local/Ascend/driver/lib64/driver",
    "/usr/local/Ascend/driver/version.info",
)
"""Mounted under their own paths: the tool and what it needs of the driver."""

AGAIN = "delete the pod so that it is scheduled again"
SAME = "let scheduler and plugin read the same device configuration"

Kind = Literal["whole", "template", "soft"]


@dataclass(frozen=True, slots=True)
class _Share:
    """What one container gets; its devices in the order of their physical ids (decision 39)."""

    pod: Pod
    slot: int | None
    kind: Kind
    npus: tuple[Npu, ...]
    memory_mib: int
    """Of each device (decision 36)."""
    cores: int
    """Percent of each device; 0: no share was asked for."""
    template: str


def ordered(npus: Sequence[Npu]) -> tuple[Npu, ...]:
    """The devices of a container as its runtime counts them: a ledger's index is the rank (decision 39)."""
    return tuple(sorted(npus, key=lambda npu: npu.phy))


def needs(inventory: Inventory, settings: Settings, claim: Claim) -> tuple[FactRequest, ...]:
    """Whether the host has the runtime library, for a soft container."""
    try:
        share = _share(inventory, settings, claim)
    except Refused:
        return ()  # `allocate` says why; it needs no fact for that
    return _files(settings) if share.kind == "soft" else ()


def allocate(
    inventory: Inventory,
    settings: Settings,
    claim: Claim,
    pods: Sequence[Pod],
    facts: Mapping[FactRequest, Any],
) -> Allocation:
    """Edits for one container.

    Args:
        inventory: this node's NPUs.
        settings: mode, paths, node name for messages.
        claim: the served slot; kubelet's own ids say nothing here and are refused (decision 17).
        pods: every pod bound to the node; no other pod changes the answer.
        facts: answers to `needs`.

    Raises:
        Refused: no pod; a device that is not here; a mode that is not built or not this node's; devices of
            one container that differ; a runtime annotation that cannot be read; nothing that would limit
            memory.
    """
    share = _share(inventory, settings, claim)
    envs = {"ASCEND_VISIBLE_DEVICES": ",".join(str(npu.phy) for npu in share.npus)}
    notes = (_note(share),)
    if share.kind == "whole":
        return Allocation(ContainerEdits(envs), notes=notes)
    if share.kind == "template":
        return Allocation(ContainerEdits({**envs, "ASCEND_VNPU_SPECS": share.template}), notes=notes)
    missing = [fact.subject for fact in _files(settings) if not facts.get(fact)]
    if missing:
        raise _no(
            share.pod,
            f"{' and '.join(missing)} not on this node, nothing would limit its memory",
            "limit",
            "see in the plugin's log why preparing the host left it out",
        )
    path = _directory(settings, share)
    return Allocation(
        ContainerEdits({**envs, **_soft_environment(share)}, _mounts(settings, path)),
        before=containerdirs.fresh(path),
        notes=notes,
    )


def _soft_environment(share: _Share) -> dict[str, str]:
    envs = {"NPU_MEM_QUOTA": str(share.memory_mib)}
    if share.cores:
        envs["NPU_PRIORITY"] = str(share.cores)
    return {
        **envs,
        "NPU_GLOBAL_SHM_PATH": f"{REGION_INSIDE}/{share.npus[0].phy}_global_registry",
        "NPU_LOCAL_SHM_PATH": f"{SHMEM_INSIDE}/{LEDGER}",
    }


def _mounts(settings: Settings, directory: str) -> tuple[Mount, ...]:
    """The table of A.7, in its order; what is below HOOK_PATH moves with it (decision 44)."""
    hook = settings.hook_path
    return (
        *(Mount(path, path) for path in DRIVER_MOUNTS),
        Mount(HOOK_INSIDE, hook),
        Mount(f"/etc/{PRELOAD}", f"{hook}/{PRELOAD}"),
        Mount(REGION_INSIDE, SHARED_REGION, read_only=False),
        Mount(SHMEM_INSIDE, directory, read_only=False),
    )


def _files(settings: Settings) -> tuple[FactRequest, ...]:
    """What the host must have: the linker ignores a library that is not there (decision 50)."""
    return tuple(FactRequest("file", f"{settings.hook_path}/{name}") for name in (LIBRARY, PRELOAD))


def _directory(settings: Settings, share: _Share) -> str:
    try:
        return containerdirs.of_slot(settings.containers, share.pod, share.slot)
    except ValueError as error:
        raise _no(share.pod, str(error), "record") from error


def _share(inventory: Inventory, settings: Settings, claim: Claim) -> _Share:
    pod, chip = claim.pod, inventory.chip
    if pod is None:
        why = f" ({'; '.join(claim.passed_over)})" if claim.passed_over else ""
        raise Refused(
            f"get pending pod: no pod of this node waits for {len(claim.ids)} device(s), and kubelet's ids "
            f"do not say what was asked for{why}; let the HAMi scheduler place the pod",
            why="pod",
        )
    if chip is None:
        raise _no(pod, "this node's NPUs are not known yet", "device", "try again")
    npus = _npus(inventory, claim, pod, chip)
    memory, cores = _amounts(claim, pod, chip)
    kind, template = _kind(settings, claim, pod, chip, memory)
    if kind == "soft":
        _check_limit(claim, pod, chip, memory)
    if kind == "template":
        _check_template(claim, pod, chip, template, memory)
    return _Share(pod, claim.slot, kind, ordered(npus), memory, min(cores, 100), template)


def _npus(inventory: Inventory, claim: Claim, pod: Pod, chip: ChipConfig) -> list[Npu]:
    found: list[Npu] = []
    for device in claim.devices:
        npu = inventory.npu(device.id)
        if npu is None:
            raise _no(
                pod,
                f"unknown uuid: {device.id} in {_slots_key(chip)} is not offered by this node "
                f"({len(inventory.npus)} NPUs are)",
                "device",
            )
        if npu in found:
            raise _no(pod, f"device {device.id} is named twice for one container", "device")
        found.append(npu)
    return found


def _amounts(claim: Claim, pod: Pod, chip: ChipConfig) -> tuple[int, int]:
    """Memory and cores of each device: one number each goes into the environment (decision 38)."""
    asked = {(device.memory_mib, device.cores) for device in claim.devices}
    if len(asked) != 1:
        told = ", ".join(f"{memory} MiB/{cores}" for memory, cores in sorted(asked))
        raise _no(
            pod, f"devices of one container with unequal shares in {_slots_key(chip)}: {told}", "record"
        )
    return asked.pop()


def _kind(settings: Settings, claim: Claim, pod: Pod, chip: ChipConfig, memory: int) -> tuple[Kind, str]:
    """The mode of the container and its template (decision 37)."""
    mode = pod.annotations.get(MODE, "")
    if mode not in {"", MODE_SOFT}:
        raise _no(
            pod, f"{MODE} {mode[:40]!a} is not built", "record", f"set it to {MODE_SOFT} or leave it out"
        )
    if mode == MODE_SOFT and not settings.soft:
        raise _no(
            pod,
            f"{MODE} is {MODE_SOFT}, but this node is not prepared for soft slices: nothing would limit it",
            "limit",
            "set hamiVnpuCore, or hami-vnpu-core of the node, in the plugin's configuration",
        )
    try:
        entries = runtimeinfo.entries(pod, chip.word)
        chosen = set(runtimeinfo.templates(entries, pod, claim, chip.word))
    except RuntimeInfoError as error:
        raise _no(pod, str(error), "record") from error
    if mode == MODE_SOFT:
        return "soft", ""
    if len(chosen) > 1:
        raise _no(
            pod, f"devices of one container with unequal templates in {runtimeinfo.key(chip.word)}", "record"
        )
    template = chosen.pop()
    if template:
        return "template", template
    if memory >= chip.allocatable_mib:
        return "whole", ""
    if settings.soft and not any(entry.template for entry in entries):
        return "soft", ""
    raise _no(
        pod,
        f"{memory} MiB of {chip.allocatable_mib} without a template in {runtimeinfo.key(chip.word)}: it "
        "would get the whole card",
        "limit",
        _ask(chip),
    )


def _check_limit(claim: Claim, pod: Pod, chip: ChipConfig, memory: int) -> None:
    """A soft slice is one that the runtime's ledger limits, on each of its devices (decision 50)."""
    if memory == 0:
        raise _no(pod, f"0 MiB in {_slots_key(chip)} would be no limit at all", "limit", _ask(chip))
    if memory > chip.allocatable_mib:
        text = f"{memory} MiB in {_slots_key(chip)} are more than a card's {chip.allocatable_mib}: no limit"
        raise _no(pod, text, "limit", SAME)
    if len(claim.devices) > MAX_DEVICES:
        raise _no(
            pod,
            f"{len(claim.devices)} devices in one soft container, and its ledger counts {MAX_DEVICES}",
            "limit",
            f"ask for at most {MAX_DEVICES}, or for whole cards without {MODE}",
        )


def _check_template(claim: Claim, pod: Pod, chip: ChipConfig, name: str, memory: int) -> None:
    """A slice is one of the configuration's, of one device, and not smaller than what was asked for."""
    template = next((one for one in chip.templates if one.name == name), None)
    if template is None:
        known = ", ".join(one.name for one in chip.templates) or "none"
        raise _no(pod, f"template {name[:40]!a} is not one of {chip.word} ({known})", "record", SAME)
    if len(claim.devices) > 1:
        raise _no(
            pod, "vNPU not supported for multiple devices", "record", "ask for one device, or for whole cards"
        )
    if template.memory_mib < memory:
        raise _no(
            pod, f"template {name} has {template.memory_mib} MiB, {memory} were asked for", "record", SAME
        )


def _slots_key(chip: ChipConfig) -> str:
    return runtimeinfo.vocabulary(chip.word).to_allocate


def _ask(chip: ChipConfig) -> str:
    """The remedy where memory and mode do not go together."""
    slices = ", ".join(f"{one.memory_mib} ({one.name})" for one in chip.templates)
    sizes = f"{slices} or {chip.allocatable_mib}" if slices else str(chip.allocatable_mib)
    return f"ask for {sizes} MiB, or set {MODE}: {MODE_SOFT} on a node in soft mode"


def _no(pod: Pod, text: str, why: Why, remedy: str = AGAIN) -> Refused:
    return Refused(f"pod {pod}: {text}; {remedy}", why=why)


def _note(share: _Share) -> str:
    cards = ", ".join(f"{npu.uuid} (phy {npu.phy})" for npu in share.npus)
    how = {
        "whole": "whole",
        "template": share.template,
        "soft": f"soft, {share.memory_mib} MiB each, cores {share.cores or 'not limited'}",
    }[share.kind]
    return f"pod {share.pod}, slot {share.slot}: {cards}: {how}"
