"""Inputs that the parsers of the other two vendors take, as their writers write them."""

from __future__ import annotations

import json

import yaml

from gpusim import fixture
from gpusim.ascend import reading, shm
from gpusim.cluster import scheduler_ascend
from gpusim.machine import Machine
from gpusim.ppu import layout

MIB = 1 << 20


def ledgers() -> tuple[bytes, ...]:
    """v1.4.0 in both sizes and v1.4.1, with processes."""
    slots = [reading.Slot(row, 100 + row, 7, (row * MIB,) * 8, (0,) * 8) for row in range(4)]
    old = [
        reading.Reading(layout, (1024 * MIB,) * 8, tuple(slots), 1, 48 * MIB, {"state": 1})
        for layout in (shm.V140, shm.V140_SMALL)
    ]
    held = tuple(reading.Slot(row, 100 + row, 7, (5 * MIB, MIB), (MIB, 0)) for row in range(4))
    new = reading.with_slots(reading.read(reading.fresh((1024 * MIB, 2048 * MIB))), held)
    return (*map(reading.write, old), reading.write(new))


QUOTAS = (b"1024", b"0", b"65536")
NPU_SMI = (
    b"info",
    b"info\0-m",
    b"info\0-t\0board\0-i\0000\0-c\0000",
    b"set\0-t\0create-vnpu\0-i\0000\0-c\0000\0-f\0vir05_1c_16g",
    b"info\0-t\0info-vnpu\0-i\0001\0-c\0000",
)


def device_configs() -> tuple[bytes, ...]:
    """Of the scheduler and the plugin: as shipped, and in the layout of before."""
    shipped = {key: value for key, value in scheduler_ascend.shipped().items() if key == "vnpus"}
    short = {**shipped["vnpus"], "configs": shipped["vnpus"]["configs"][:2]}
    return (
        yaml.safe_dump({"vnpus": short}).encode(),
        yaml.safe_dump({"vnpus": short["configs"]}, default_flow_style=None).encode(),
    )


def node_configs() -> tuple[bytes, ...]:
    """As people write it, and as JSON."""
    cards = {"index": [0, 2], "uuid": ["A-B"]}
    node = {"name": "node-a", "hami-vnpu-core": True, "vDeviceCount": 4, "filterDevices": cards}
    file = {"nodes": [node, {"name": "node-b"}]}
    return yaml.safe_dump(file).encode(), json.dumps(file).encode()


RUNTIME_INFOS = (
    b'[{"UUID":"A-B","temp":"vir05_1c_16g"},{"UUID":"C-D","memory":8192,"core":25}]',
    b"[]",
)
RELEASES = (b"v2.9.1", b"2.10.0", b"v2.10.0-r2", b"v2.9.0-rc1", b"2.9-rc.3")
PPU_SMI = (
    b"-L",
    b"-q",
    b"",
    b"--query-ppu=index,name,uuid,pci.bus_id,memory.total\0--format=csv,noheader,nounits",
    b"--format\0csv\0--query-ppu\0memory.used",
)


_NPUS = {
    "ascend/910b4-template": ("0", ""),
    "ascend/910c": ("0", ""),
    "ascend/310p3-template": ("4", "vir01"),
}
"""Nodes whose tables differ: their first NPU, and a slice of it."""


def npu_smi_says(*words: str) -> tuple[bytes, ...]:
    """What the simulated tool prints of each node; ``N`` is the first NPU's number."""
    found = []
    for name, (number, template) in _NPUS.items():
        node = Machine(fixture.load(name))
        if template:
            cut = ("set", "-t", "create-vnpu", "-i", number, "-c", "0", "-f", template)
            assert b"OK" in node.run(["npu-smi", *cut], stdin=b"y\n").stdout
        found.append(node.run(["npu-smi", *(number if word == "N" else word for word in words)]).stdout)
    return tuple(found)


def state_files() -> tuple[bytes, ...]:
    """PPU-HAMi-core's, with and without processes."""
    busy = layout.Card(
        1024 * MIB, 5 * MIB, 50, 7, (layout.Slot(0, 17, 3 * MIB), layout.Slot(31, 18, 2 * MIB))
    )
    return layout.write((busy, layout.Card(MIB, 0, 0, 0, ()))), layout.write(())
