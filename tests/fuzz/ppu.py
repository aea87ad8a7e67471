"""What the PPU plugin and monitor read, each with what must be true of whatever is read, and sound inputs."""

from __future__ import annotations

from functools import cache

import yaml

from devplugin.ppu import deviceconfig, library, registered, statefile
from gpusim import fixture
from gpusim.machine import Machine
from gpusim.ppu import layout

_NODES = ("ppu/zw810e-8", "ppu/zw810e-minor-shift", "ppu/zw810e-na-values", "ppu/zw810e-hung")


def device_config(data: bytes) -> None:
    """The ``alibaba:`` block: what is taken can be registered."""
    found = deviceconfig.parse(data)
    assert found.split is None or found.split > 0
    assert found.memory_scaling is None or found.memory_scaling > 0


def state_file(data: bytes) -> None:
    """The reader of the plugin's side, which must agree with the simulator's."""
    cards = statefile.parse(data)
    assert [(card.quota, card.used) for card in cards] == [
        (card.quota, card.used) for card in layout.read(data)
    ]


def registration(data: bytes) -> None:
    """The register annotation, as the monitor reads it."""
    registered.indices(data.decode("utf-8", "replace"))


def preload(data: bytes) -> None:
    """The preload list: what is taken stays below the mounted directory."""
    for name in library.preloaded(data):
        assert not name.startswith("/")
        assert ".." not in name.split("/")


def configs() -> tuple[bytes, ...]:
    """As the chart renders it, and short."""
    block = {
        "resourceCountName": "alibaba.com/ppu",
        "deviceSplitCount": 2,
        "deviceMemoryScaling": 1.5,
        "deviceCoreScaling": 1,
        "gpuCorePolicy": "default",
    }
    return yaml.safe_dump({"alibaba": block}).encode(), b"alibaba: {deviceSplitCount: 4}\n"


REGISTRATIONS = (b'[{"id":"GPU-1","count":2},{"id":"GPU-2","index":1,"count":2,"numa":1}]', b"[]")
PRELOADS = (b"/ppu-hami-core/libppu.so\n", b"# a\n/ppu-hami-core/a.so:/ppu-hami-core/lib/b.so /lib/c.so\n")


@cache
def says(*words: str) -> tuple[bytes, ...]:
    """What ppu-smi prints on each of the nodes."""
    return tuple(Machine(fixture.load(name)).run(["ppu-smi", *words]).stdout for name in _NODES)
