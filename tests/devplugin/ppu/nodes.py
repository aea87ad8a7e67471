"""PPU nodes, settings, pods and claims as the tests want them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gpusim
from devplugin.hami import (
    ALLOCATING,
    ASSIGNED_NODE,
    BIND_PHASE,
    BIND_TIME,
    Claim,
    ContainerDevice,
    Pod,
    encode,
)
from devplugin.ppu import flags
from devplugin.ppu.discovery import discover
from devplugin.ppu.inventory import Inventory
from devplugin.ppu.settings import Settings
from devplugin.ppu.words import HOST, PRELOAD, VOCABULARY
from devplugin.settings import GoParser, add_common_flags
from devplugin.vendor import SettingsInput
from gpusim import fixture
from gpusim.machine import Machine
from gpusim.spec import NodeSpec, PpuSpec

from ..asked import reader

NODE = "node-1"
PLACE = "/usr/local/bin/ppu-smi"
DOWN = "init HGML error: driver is not loaded\n"
QUERY = "--query-ppu=index,name,uuid,pci.bus_id,memory.total --format=csv,noheader,nounits"
FIXTURES = tuple(name for name in fixture.names() if name.startswith("ppu/"))
LIBRARY = "libppu-hami-core.so"


def node(name: str = "zw810e-8", *, hook: bool = True) -> Machine:
    """A simulated node of fixtures/ppu, PPU-HAMi-core on its host."""
    machine = Machine(gpusim.load(f"ppu/{name}"))
    if hook:
        install(machine)
    return machine


def some(count: int, **more: Any) -> Machine:
    """A node of so many cards, the first ones the same on every such node."""
    ppus = tuple(PpuSpec("PPU-ZW810E", f"0000:{0x10 + i:02x}:00.0") for i in range(count))
    machine = Machine(NodeSpec("n", "5.15.0-101-generic", ppus=ppus, **more))
    install(machine)
    return machine


def install(machine: Any, *, preload: bytes = b"/ppu-hami-core/libppu-hami-core.so\n") -> None:
    """What an operator, or the image, puts onto the host."""
    machine.mkdir(HOST)
    machine.put(f"{HOST}/{LIBRARY}", b"\x7fELF", 0o755)
    machine.put(f"{HOST}/{PRELOAD}", preload)


def look(machine: Any, settings: Settings | None = None, previous: Inventory | None = None) -> Inventory:
    """One discovery."""
    return discover(machine, settings or Settings(node_name=NODE), previous)


def given(
    words: str | Sequence[str] = "",
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str | bytes] | None = None,
) -> SettingsInput:
    """A command line with an environment and the files that can be read."""
    parser = GoParser("ppu-device-plugin", "")
    add_common_flags(parser)
    flags.add_flags(parser)
    args = parser.parse_args(words.split() if isinstance(words, str) else list(words))
    surroundings = env or {}
    name = getattr(args, "node-name") or surroundings.get("NODE_NAME", "")
    return SettingsInput(args, surroundings, None, name, reader(files or {}))


def device(uuid: str, memory: int, cores: int = 0) -> ContainerDevice:
    return ContainerDevice(uuid, "PPU-ZW810E", memory, cores)


def pod(slots: Sequence[Sequence[ContainerDevice]], **fields: Any) -> Pod:
    """A bound pod with a container for every slot."""
    text = encode(slots)
    said = {
        VOCABULARY.to_allocate: text,
        VOCABULARY.allocated: text,
        ASSIGNED_NODE: NODE,
        BIND_PHASE: ALLOCATING,
        BIND_TIME: "1700000000",
        **fields.pop("annotations", {}),
    }
    base: dict[str, Any] = {
        "namespace": "ns",
        "name": "p",
        "uid": "0000-uid",
        "node": NODE,
        "phase": "Pending",
        "containers": tuple(f"c{i}" for i in range(len(slots))),
        "annotations": said,
    }
    return Pod(**{**base, **fields})


def claim(slots: Sequence[Sequence[ContainerDevice]], slot: int = 0, **fields: Any) -> Claim:
    """What kubelet asks for that slot."""
    ids = tuple(f"{one.id}-0" for one in slots[slot])
    return Claim(ids, pod(slots, **fields), slot, tuple(slots[slot]))
