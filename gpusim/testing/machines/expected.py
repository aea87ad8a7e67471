"""What `NodeMachine` keeps of a node apart from the simulator, and how it reads the files that tell of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

KFD = "/sys/class/kfd/kfd/topology"
PCI = "/sys/bus/pci/devices"


@dataclass(slots=True)
class Expected:
    """What the machine must know of one GPU."""

    mode: str
    driven: bool = True
    """amdgpu took it at boot; under some releases it cannot."""
    present: bool = True
    hung: bool = False
    base: int = 0
    """Bytes in use without any allocation of ours."""
    simds: int = 0
    """SIMDs of all its KFD nodes together, whatever the mode."""


@lru_cache(maxsize=4096)
def facts_of(text: bytes) -> Mapping[str, int]:
    """A KFD properties file."""
    return {key: int(value) for key, value in (line.split(" ") for line in text.decode().splitlines())}


def place_of(bdf: str) -> tuple[int, int]:
    """Domain and location of a PCI address, function left out."""
    domain, bus, rest = bdf.split(":")
    return int(domain, 16), int(bus, 16) << 8 | int(rest.split(".")[0], 16) << 3


def where(facts: Mapping[str, int]) -> tuple[int, int]:
    """The same of a KFD node (decision 3); old kernels do not print the domain, which is 0 then."""
    return facts.get("domain", 0), facts["location_id"] & ~7


@dataclass(slots=True)
class Saved:
    """A fork, and how it read when it was made."""

    machine: Any
    read: dict[str, bytes] = field(default_factory=dict)
