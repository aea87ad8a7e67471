"""Who holds what on a node whose GPUs are switched: counted from what containers were given.

A hard container holds what the render nodes it was given are *now* (a partition's device number outlives a
switch, kernel.md 6); a soft one the compute units of its mask, numbered through its GPU as it was then. None
of it is the plugin's; the plugin's own account, made from the pods alone, is compared with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from devplugin.amd.inventory import Inventory
from devplugin.amd.settings import MODE_PARTITION, Settings
from devplugin.amd.taken import rebuild
from devplugin.answers import ContainerEdits
from devplugin.kubejson import read_pods
from gpusim.cluster.apistore import Store
from gpusim.machine import Machine

from .support_checks import NODE, TERMINAL
from .support_oracle import Facts, Holding, add, overlap

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Given:
    """What a container got."""

    ids: tuple[str, ...]
    """Of kubelet."""
    minors: tuple[int, ...]
    soft: Holding | None
    """What a shared device's container holds; None: hard."""


class Recount:
    """Kubelet's ledger and the kernel's view of it."""

    def __init__(self, store: Store, machine: Machine, settings: Settings) -> None:
        self._store, self._machine, self._settings = store, machine, settings
        self.given: dict[str, dict[str, Given]] = {}
        """Pod uid → container → what it got."""
        self.known: Facts | None = None
        """The node as the daemon last saw it: that is what its masks are made for."""
        self._facts: Facts | None = None
        self._switched: set[str] = set()
        """GPUs that were switched: the account may hold more of them than anybody can use."""

    def looked(self) -> None:
        """The daemon knows the node as it is."""
        self.known = self._now()

    def switched(self, bdf: str) -> None:
        """A GPU is cut in another way now."""
        self._facts = None
        self._switched.add(bdf)

    def _now(self) -> Facts:
        if self._facts is None:
            self._facts = Facts(self._machine, "[]")
        return self._facts

    def pods(self) -> list[Object]:
        """Pods that have not ended, bound or not."""
        return [one for one in self._store.list("pods") if one["status"].get("phase") not in TERMINAL]

    def living(self) -> list[Given]:
        """What their containers got."""
        living = {one["metadata"]["uid"] for one in self.pods()}
        self.given = {uid: given for uid, given in self.given.items() if uid in living}
        return [one for given in self.given.values() for one in given.values()]

    def uses(self, bdf: str) -> bool:
        """Whether any container can use a GPU."""
        return any(bdf in self._holds(given) for given in self.living())

    def note(
        self, uid: str, part: str, ids: tuple[str, ...], edits: ContainerEdits, known: Facts | None
    ) -> None:
        """A container got this, by a daemon that knew the node as `known`; it must be as many as it asked."""
        paths = [node.path for node in edits.devices]
        minors = tuple(int(path.rpartition("renderD")[2]) for path in paths if "/renderD" in path)
        assert len(set(minors)) == len(minors), "a device node is given twice"
        held: Holding | None = None
        if self._settings.mode == MODE_PARTITION and "HSA_CU_MASK" not in edits.envs:
            assert len(minors) == len(ids), f"{len(minors)} render nodes for {len(ids)} devices"
        else:
            assert known is not None
            held = known.visible(edits.envs, paths)
            assert len(held) == len(ids), f"{len(held)} GPUs for {len(ids)} devices"
        self.given.setdefault(uid, {})[part] = Given(ids, minors, held)

    def _holds(self, given: Given) -> Holding:
        """Compute units that a container can use now."""
        if given.soft is not None:
            return given.soft
        held: Holding = {}
        for minor in given.minors:
            agent = self._now().agents.get(minor)
            if agent is not None:  # else the mode has no such partition any more: open answers ENOENT
                add(held, agent.bdf, ((1 << agent.cus) - 1) << agent.first)
        return held

    def nothing_twice(self) -> None:
        """No compute unit, hence no partition, can be used by two containers."""
        self.living()
        names = {one["metadata"]["uid"]: one["metadata"]["name"] for one in self.pods()}
        holdings = {
            f"{names[uid]}/{part}": self._holds(given)
            for uid, parts in self.given.items()
            for part, given in parts.items()
        }
        clash = overlap(holdings)
        assert not clash, clash

    def accounts(self, inventory: Inventory) -> None:
        """The plugin's account of what is taken, from the pods, is what containers hold."""
        bound = {"items": self._store.list("pods", fields=f"spec.nodeName={NODE}")}
        taken = rebuild(inventory, self._settings, read_pods(json.dumps(bound).encode()), None)
        # A pod placed after a switch and one from before it may claim the same: no more of it is given out.
        wrong = {bdf: why for bdf, why in taken.blocked.items() if bdf not in self._switched}
        assert not wrong, f"blocked: {wrong}"
        counted: Holding = {}
        for given in self.living():
            for bdf, mask in self._holds(given).items():
                add(counted, bdf, mask)
        for bdf in sorted({*counted, *taken.masks}):
            mine, theirs = counted.get(bdf, 0), taken.masks.get(bdf, 0)
            if bdf in self._switched:
                assert not mine & ~theirs, f"{bdf}: {mine & ~theirs:#x} is used and not in the account"
            else:
                assert mine == theirs, f"{bdf}: the account says {theirs:#x}, containers hold {mine:#x}"
