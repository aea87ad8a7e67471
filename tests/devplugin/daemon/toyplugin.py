"""A fourth vendor, made up: whatever the daemon can do for it, it does without knowing a vendor.

A thing is a file ``/toy/<name>`` holding ``ok`` or ``sick`` and perhaps a NUMA node. Each has sixteen
cores; a pod asks for some of them, and which ones it got is recorded on the pod, as AMD does with CUs.
Run as a program this file is a device plugin: ``python toyplugin.py -root DIR -kubelet_dir DIR …``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devplugin.answers import (
    Allocation,
    ContainerEdits,
    DeviceNode,
    Effect,
    FactRequest,
    NodeEvent,
    NodePatch,
    Offer,
    OfferedDevice,
    PreferenceQuery,
    Refused,
)
from devplugin.explain import Choice
from devplugin.hami import Claim, Node, Pod, Vocabulary
from devplugin.host import Host
from devplugin.plain import Plain
from devplugin.preflight import Check, good
from devplugin.settings import SettingsError, add_flag, go_int
from devplugin.vendor import SettingsInput

RESOURCE = "toy.io/thing"
CORES = 16
TAKEN = "hami.io/toy-cores-allocated"
MODE = "toy.io/mode"
VOCABULARY = Vocabulary(
    register="hami.io/node-toy-register",
    to_allocate="hami.io/toy-devices-to-allocate",
    allocated="hami.io/toy-devices-allocated",
)


@dataclass(frozen=True, slots=True)
class Thing:
    name: str
    healthy: bool
    numa: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    things: tuple[Thing, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    mode: str = "soft"
    slots: int = 4


class Toy(Plain[Inventory, Settings]):
    """`devplugin.vendor.Vendor` over the things."""

    name = "toy"

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        add_flag(parser, "slots", go_int, 4, "kubelet ids for each thing")
        add_flag(parser, "pulse", go_int, 0, "seconds between looks")

    def settings(self, given: SettingsInput) -> tuple[Settings, tuple[str, ...]]:
        if given.args.slots <= 0:
            raise SettingsError(f"-slots={given.args.slots}: must be above 0")
        wanted = (given.node_annotations or {}).get(MODE, "soft")
        if wanted == "refused":
            raise SettingsError(f"{MODE}=refused: choose another")
        if wanted not in {"soft", "hard"}:
            return Settings("soft", given.args.slots), (f"{MODE}: not a mode, ignored",)
        return Settings(wanted, given.args.slots), ()

    def choices(self, given: SettingsInput, settings: Settings) -> Mapping[str, Choice]:
        return {}

    def describe(self, settings: Settings) -> str:
        return f"operating mode: {settings.mode}"

    def vocabulary(self, inventory: Inventory, settings: Settings) -> Vocabulary | None:
        return VOCABULARY

    def discover(self, host: Host, settings: Settings, previous: Inventory | None) -> Inventory:
        try:
            names = host.list("/toy")
        except OSError:
            return Inventory()
        things, skipped = [], []
        for name in names:
            words = host.read(f"/toy/{name}").decode().split()
            if not words or words[0] not in {"ok", "sick"}:
                skipped.append(name)
                continue
            things.append(Thing(name, words[0] == "ok", tuple(int(word) for word in words[1:])))
        return Inventory(tuple(things), tuple(skipped))

    def notices(self, inventory: Inventory, settings: Settings) -> tuple[str, ...]:
        return tuple(f"{name}: unreadable thing" for name in inventory.skipped)

    def events(self, inventory: Inventory, settings: Settings, seen: Any) -> tuple[tuple[Effect, ...], Any]:
        return (), ()

    def details(self, inventory: Inventory, settings: Settings) -> tuple[str, ...]:
        return tuple(f"thing {thing.name}" for thing in inventory.things)

    def registration(self, inventory: Inventory, settings: Settings, now: float) -> NodePatch:
        value = json.dumps([{"id": thing.name, "health": thing.healthy} for thing in inventory.things])
        return NodePatch({VOCABULARY.register: value}, {"toy.io/cores": CORES * len(inventory.things)})

    def offers(self, inventory: Inventory, settings: Settings) -> Mapping[str, Offer]:
        if not inventory.things:
            return {}
        slots = 1 if settings.mode == "hard" else settings.slots
        return {
            RESOURCE: Offer(
                RESOURCE,
                tuple(
                    OfferedDevice(f"{thing.name}#{slot}", thing.healthy, thing.numa)
                    for thing in inventory.things
                    for slot in range(slots)
                ),
            )
        }

    def prefer(self, inventory: Inventory, settings: Settings, query: PreferenceQuery) -> tuple[str, ...]:
        if len(query.available) < query.size:
            raise ValueError(f"{query.size} of {len(query.available)}")
        rest = [one for one in sorted(query.available) if one not in query.must_include]
        return (*query.must_include, *rest)[: query.size]

    def needs(self, inventory: Inventory, settings: Settings, claim: Claim) -> tuple[FactRequest, ...]:
        return (FactRequest("file", "/toy-hook"),)

    def allocate(
        self,
        inventory: Inventory,
        settings: Settings,
        claim: Claim,
        pods: Sequence[Pod],
        facts: Mapping[FactRequest, Any],
    ) -> Allocation:
        if claim.pod is None:
            raise Refused(f"no pod asks for {len(claim.ids)} thing(s); delete the pod")
        taken = cores_taken(pods)
        mine: dict[str, list[int]] = {
            name: list(cores) for name, cores in json.loads(claim.pod.annotations.get(TAKEN, "{}")).items()
        }
        for device in claim.devices:
            if device.id not in {thing.name for thing in inventory.things}:
                raise Refused(f"pod {claim.pod}: no thing {device.id} here")
            used = taken.setdefault(device.id, set())
            free = [core for core in range(CORES) if core not in used]
            if len(free) < device.cores:
                raise Refused(f"pod {claim.pod}: {device.id} has {len(free)} cores left, not {device.cores}")
            used.update(free[: device.cores])
            mine.setdefault(device.id, []).extend(free[: device.cores])
        edits = ContainerEdits(
            envs={"TOY_CORES": json.dumps(mine), "TOY_HOOK": str(facts[FactRequest("file", "/toy-hook")])},
            devices=tuple(DeviceNode(f"/dev/toy/{device.id}") for device in claim.devices),
        )
        return Allocation(
            edits,
            annotations={TAKEN: json.dumps(mine)},
            after=(NodeEvent("Normal", "ThingsGiven", f"to {claim.pod}"),),
            notes=(f"pod {claim.pod} got slot {claim.slot}",),
        )

    @property
    def domain(self) -> str:
        return "toy.io"

    def checks(self, host: Host, inventory: Inventory, settings: Settings) -> tuple[Check, ...]:
        if inventory.skipped:
            return (Check("things", "missing", f"{len(inventory.skipped)} unreadable", "mend them"),)
        return (good("things", f"{len(inventory.things)}"),)

    def leftovers(self, node: Node) -> NodePatch:
        return NodePatch({VOCABULARY.register: None}, {"toy.io/cores": None})

    def report(self, host: Host, inventory: Inventory, settings: Settings) -> Mapping[str, Any]:
        return {"schema": 1, "vendor": self.name, "mode": settings.mode, "things": len(inventory.things)}


def cores_taken(pods: Sequence[Pod]) -> dict[str, set[int]]:
    """Cores of every pod that has not ended; fails where two hold the same one."""
    taken: dict[str, set[int]] = {}
    for pod in pods:
        if pod.terminal:
            continue
        for name, cores in json.loads(pod.annotations.get(TAKEN, "{}")).items():
            used = taken.setdefault(name, set())
            assert not used & set(cores), f"{pod} overlaps on {name}: {used & set(cores)}"
            used.update(cores)
    return taken


if __name__ == "__main__":
    from devplugin.launch import main

    sys.exit(main(Toy()))
