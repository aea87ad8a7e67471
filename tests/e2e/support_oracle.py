"""Who holds which compute unit: counted anew, from the pods and from what containers were given.

Shares no line with the plugin. Compute units are numbered through a whole GPU, KFD node by KFD node; a
holding is ``{BDF: bits}``. Sources: what a runtime makes of the variables, amd.md 1.5; the texts of the
annotations, amd.md 5.2, 5.4, 5.6, 5.7; a partition is a KFD node (decision 1), masks per agent (decision 9).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

TO_ALLOCATE = "hami.io/amd-devices-to-allocate"
ALLOCATED = "hami.io/amd-devices-allocated"
RECORD = "hami.io/amd-cu-allocated"
REGISTER = "hami.io/node-amd-register"
LOCK = "hami.io/mutex.lock"
PHASE = "hami.io/bind-phase"

Object = dict[str, Any]
Holding = dict[str, int]
"""BDF → bits of compute units."""


class Reads(Protocol):
    """The part of a host that counting needs."""

    def read(self, path: str) -> bytes: ...

    def list(self, path: str) -> Iterable[str]: ...


@dataclass(frozen=True)
class Agent:
    """A KFD GPU node: what a runtime enumerates."""

    node: int
    render: int
    unique: int
    bdf: str
    first: int
    cus: int


@dataclass(frozen=True)
class Device:
    """One line of the node's register annotation."""

    id: str
    bdf: str
    count: int
    memory: int
    cores: int
    type: str
    unit: int


@dataclass(frozen=True)
class Asked:
    """One device of one slot."""

    id: str
    memory: int
    cores: int


class Facts:
    """The node, by its KFD files, and the devices a scheduler knows, by the register annotation."""

    def __init__(self, host: Reads, register: str) -> None:
        self.agents: dict[int, Agent] = {}
        self.cus: dict[str, int] = {}
        top = "/sys/class/kfd/kfd/topology/nodes"
        for number in sorted(int(name) for name in host.list(top)):
            lines = host.read(f"{top}/{number}/properties").decode().splitlines()
            facts = {key: int(value) for key, _, value in (line.partition(" ") for line in lines)}
            if not facts["simd_count"]:
                continue
            place = facts["location_id"]
            bdf = f"{facts['domain']:04x}:{place >> 8:02x}:{place >> 3 & 0x1F:02x}.0"
            first, cus = self.cus.get(bdf, 0), facts["simd_count"] // facts["simd_per_cu"]
            render = facts["drm_render_minor"]
            self.agents[render] = Agent(number, render, facts.get("unique_id", 0), bdf, first, cus)
            self.cus[bdf] = first + cus
        self.devices = {line["id"]: _device(line) for line in json.loads(register)}

    # -- what the pod's annotations say ----------------------------------------------------------------

    def recorded(self, annotations: Mapping[str, str]) -> Holding:
        """What a pod holds by its annotations: its record, and whole devices of slots that are served."""
        held: Holding = {}
        for name, text in json.loads(annotations.get(RECORD) or "{}").items():
            add(held, self.devices[name].bdf, bits(text))
        slots = slots_of(annotations.get(ALLOCATED, ""))
        left = slots_of(annotations.get(TO_ALLOCATE, ""))
        assert len(slots) == len(left), "the plugin changed how many slots there are"
        for mine, waiting in zip(slots, left, strict=True):
            assert waiting in ((), mine), "a slot was changed, not erased"
            for asked in mine if not waiting else ():
                device = self.devices[asked.id]
                if not (0 < asked.cores < device.cores or 0 < asked.memory < device.memory):
                    add(held, device.bdf, (1 << device.cores) - 1)
        return held

    # -- what a container was given ------------------------------------------------------------------

    def visible(self, envs: Mapping[str, str], paths: Iterable[str]) -> dict[str, int]:
        """Compute units the runtimes will use, by GPU.

        ROCr numbers the agents whose render nodes the container has, in KFD node order; the variable
        picks some of them, by that number or by unique_id; the mask counts in the picked order.
        """
        minors = [int(found[1]) for path in paths if (found := re.fullmatch(r"/dev/dri/renderD(\d+)", path))]
        assert len(set(minors)) == len(minors), "a device node is given twice"
        given = sorted((self.agents[minor] for minor in minors), key=lambda agent: agent.node)
        picked = [_pick(given, word) for word in envs["ROCR_VISIBLE_DEVICES"].split(",")]
        assert envs["HIP_VISIBLE_DEVICES"] == ",".join(str(i) for i in range(len(picked)))
        assert len({agent.render for agent in picked}) == len(picked), "an agent is picked twice"
        masks = dict(part.split(":") for part in envs.get("HSA_CU_MASK", "").split(";") if part)
        assert set(masks) <= {str(i) for i in range(len(picked))}, "a mask for an agent that is not there"
        seen: dict[str, int] = {}
        for index, agent in enumerate(picked):
            text = masks.get(str(index))
            mask = (1 << agent.cus) - 1 if text is None else bits(text)
            assert 0 < mask < 1 << agent.cus, f"mask {text} leaves agent {index}"
            add(seen, agent.bdf, mask << agent.first)
        return seen

    def granted(self, slot: Iterable[Asked], envs: Mapping[str, str], paths: Iterable[str]) -> Holding:
        """What a container holds by what it was given; it must be what its slot asked for, no more."""
        seen = self.visible(envs, paths)
        held: Holding = {}
        assert set(seen) == {self.devices[asked.id].bdf for asked in slot}, "devices of another slot"
        for asked in slot:
            device = self.devices[asked.id]
            mask = seen[device.bdf]
            if not asked.cores and 0 < asked.memory < device.memory:  # memory only: sees all, holds none
                assert mask == (1 << device.cores) - 1
                continue
            whole = asked.cores in (0, device.cores)
            wanted = device.cores if whole else -(-asked.cores // device.unit) * device.unit
            assert mask.bit_count() == wanted, f"{asked} was given {mask.bit_count()} CUs"
            if device.unit > 1 and not whole:
                pairs = mask & int("01" * (device.cores // 2 + 1), 2)
                assert mask == pairs | pairs << 1, "half a work-group processor"
            add(held, device.bdf, mask)
        return held


def _device(line: Object) -> Device:
    info = line["custominfo"]
    unit = info.get("cuPerWGP", 1)
    return Device(
        line["id"], info["pciBDF"], line["count"], line["devmem"], line["devcore"], line["type"], unit
    )


def _pick(given: list[Agent], word: str) -> Agent:
    if not word.startswith("GPU-"):
        return given[int(word)]
    (one,) = [agent for agent in given if agent.unique == int(word[4:], 16)]
    return one


def slots_of(text: str) -> list[tuple[Asked, ...]]:
    """The slots of a devices annotation."""
    return [
        tuple(
            Asked(name, int(memory), int(cores))
            for name, _, memory, cores in (piece.split(",")[:4] for piece in slot.split(":") if piece)
        )
        for slot in text.split(";")[:-1]
    ]


def bits(text: str) -> int:
    """``0-3,8`` as bits."""
    mask = 0
    for token in text.split(","):
        first, _, last = token.partition("-")
        for number in range(int(first), int(last or first) + 1):
            assert not mask >> number & 1, f"CU {number} twice in {text}"
            mask |= 1 << number
    return mask


def add(held: Holding, bdf: str, mask: int) -> None:
    """Put bits into a holding."""
    held[bdf] = held.get(bdf, 0) | mask


def overlap(holdings: Mapping[str, Holding]) -> str:
    """The first GPU of which two holders hold the same compute unit, or nothing."""
    seen: dict[str, list[tuple[str, int]]] = {}
    for who, held in holdings.items():
        for bdf, mask in held.items():
            for other, taken in seen.setdefault(bdf, []):
                if taken & mask:
                    return f"{bdf}: {other} and {who} both hold CUs {taken & mask:#x}"
            seen[bdf].append((who, mask))
    return ""
