"""What HAMi's webhook does to a container that asks for Ascend cards (ascend_ppu_hami.md D.9).

The count is looked for in the limits only. In template mode the memory becomes that of the smallest
template that holds it, or the whole card's; in soft mode (pod annotation ``huawei.com/vnpu-mode:
hami-core``) it stays.

Upstream's slip, kept: several cards with a slice each are refused by the count before a 910C super pod's
one is made two, so that one 910C with 16384 MiB becomes two sliced ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpusim.cluster import resourcenames
from gpusim.cluster.scheduler_vendors import Vendor, resources

Object = dict[str, Any]
VISIBLE = "ASCEND_VISIBLE_DEVICES"
HOOK = ("/bin/bash", "-c", "RUST_LOG=info /hami-vnpu-core/limiter > /tmp/limiter_manager.log 2>&1 &")
"""The command of HAMi 2.9's PostStart hook (A.8, in our words)."""


@dataclass(frozen=True, slots=True)
class Template:
    """A size that a card can be cut to."""

    name: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Chip:
    """One entry of the configuration's ``vnpus``, as far as the scheduler uses it (A.2)."""

    word: str
    """``Ascend910B4``."""
    count: str
    memory: str
    cores: str
    """Resource names; `cores` may be empty."""
    allocatable: int
    """MiB that a whole card counts."""
    capacity: int
    """MiB above which a request is refused."""
    factor: int = 0
    """MiB of one unit of the memory resource when above 1."""
    templates: tuple[Template, ...] = ()
    """In order of memory."""
    super_pod: bool = False
    runtime_class: str = ""
    overwrite_env: bool = False
    hook: bool = False
    """Inject the PostStart hook of HAMi 2.9."""

    def trim(self, memory_mib: int) -> tuple[int, str]:
        """(MiB that are given for a request, template); no template is the whole card, 0 MiB too much."""
        for template in self.templates:
            if memory_mib <= template.memory_mib:
                return template.memory_mib, template.name
        return (self.allocatable, "") if memory_mib <= self.capacity else (0, "")


def admit(chip: Chip, vendor: Vendor, pod: Object, container: Object) -> tuple[bool, str]:
    """Judge and change a container, and its pod's runtime class; see `Vendor.check`."""
    asked = resources(container)
    if vendor.count not in asked.limits:
        if chip.overwrite_env:
            container.setdefault("env", []).append({"name": VISIBLE, "value": ""})
        return False, ""
    soft = vendor.is_soft(pod)
    cores = asked.get(vendor.cores)
    if cores is not None and _value(cores) > 0 and not soft:
        return True, f"{vendor.cores} is only supported in hami-core (soft split) mode"
    count = given = _value(asked.limits[vendor.count])
    if chip.super_pod and chip.word == "Ascend910C":
        if count != 1 and count % 2:
            return True, f"Ascend910C device request must be 1 or 2*n, got {count}"
        given = max(2, count) if count > 0 else count
    memory = asked.limits.get(vendor.memory)
    if memory is None:
        memory = str(chip.allocatable)
    elif not soft:
        trimmed, template = chip.trim(_value(memory))
        if not trimmed:
            return True, f"{vendor.memory} {_value(memory)} is invalid"
        if template and count > 1:
            return True, "vNPU not supported for multiple devices"
        memory = str(trimmed)
    _write(container, {vendor.memory: memory} | ({vendor.count: str(given)} if given != count else {}))
    if chip.runtime_class and not pod["spec"].get("runtimeClassName"):
        pod["spec"]["runtimeClassName"] = chip.runtime_class
    if soft and chip.hook and "postStart" not in container.get("lifecycle", {}):
        container.setdefault("lifecycle", {})["postStart"] = {"exec": {"command": list(HOOK)}}
    return True, ""


def _write(container: Object, amounts: dict[str, str]) -> None:
    for kind in ("limits", "requests"):
        container["resources"].setdefault(kind, {}).update(amounts)


def _value(quantity: str) -> int:
    """As Go's ``Value``: rounded up; what is no quantity is nothing."""
    try:
        return resourcenames.whole(quantity)
    except ValueError:
        return 0
