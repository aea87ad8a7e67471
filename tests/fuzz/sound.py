"""Inputs that the parsers take, as their writers write them: what all damage begins with."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from functools import cache

from devplugin.amd import registration, taken
from devplugin.amd.discovery import discover
from devplugin.amd.inventory import Inventory
from devplugin.amd.settings import MODE_CU, MODE_PARTITION, Settings
from devplugin.hami import ContainerDevice, encode
from gpusim import fixture
from gpusim.machine import Machine
from gpusim.snapshots import pack
from gpusim.testing.faults import seeded
from gpusim.testing.machines import node
from gpusim.testing.trace import Recorder

from ..devplugin.small_elf import elf

CU = Settings(node_name="node-a", mode=MODE_CU)
PARTITIONS = Settings(node_name="node-a", mode=MODE_PARTITION)
BDF = "0000:75:00.0"
REGION = f"drm/{BDF}/vram"
NODES = "/sys/class/kfd/kfd/topology/nodes"
MIB = 1 << 20

FIXTURES = ("mi355x/mixed-spx-cpx", "mi300a/spx-intree", "rdna4/rx9070-igpu", "ascend/910b4-template")
"""Two forms of GPU lists, displays of other vendors, NPUs."""


@cache
def machine() -> Machine:
    """A shared and a partitioned GPU; whoever writes to it gets a fork."""
    return Machine(node(kernel="7.0", each=[{"mode": "QPX"}, {"product": "RX9070XT"}]))


@cache
def inventory() -> Inventory:
    """What the plugin found on `machine`."""
    return discover(machine(), CU)


def annotations() -> tuple[bytes, ...]:
    """Of pods: what was given, as the plugin's codec writes it."""
    ids = [gpu.id for gpu in inventory().gpus] + list(inventory().gpus[0].ids)
    slots = (
        [[ContainerDevice(ids[0], "AMD-Instinct-MI355X", 73728, 64)]],
        [[], [ContainerDevice(ids[1], "AMDGPU", 8192, 0, 2)], []],
        [[ContainerDevice(i, "AMD-Instinct-MI355X", 1024 * n, n) for n, i in enumerate(ids)]] * 2,
    )
    return tuple(encode(slot).encode() for slot in slots)


def records() -> tuple[bytes, ...]:
    """Of pods: which compute units of which device."""
    gpus = inventory().gpus
    return (
        taken.write_record({gpus[0].id: "0-3,8,16-31"}).encode(),
        taken.write_record({gpu.id: f"{n}-{n + 8}" for n, gpu in enumerate(gpus)}).encode(),
        b"{}",
    )


def registrations() -> tuple[bytes, ...]:
    """Of nodes: both modes."""
    return tuple(registration.annotation(inventory(), mode).encode() for mode in (CU, PARTITIONS))


LOCKS = (
    b"2026-03-01T10:00:00Z,default,pod-a",
    b"2026-03-01T10:00:00.123456789+02:00,kube-system,name.with-dots",
    b"2026-03-01T10:00:00Z",
)


def kubelet_ids() -> tuple[bytes, ...]:
    """Lists as kubelet sends them, an id a line."""
    soft = [f"{gpu.bdf}#{slot}" for gpu in inventory().gpus for slot in range(2)]
    hard = [f"{part.key}#qpx" for part in inventory().gpus[0].partitions]
    return tuple("\n".join(ids).encode() for ids in (soft, hard, [*soft[:1], *hard[1:], "xAMDGPU-3"]))


def properties() -> tuple[bytes, ...]:
    """KFD's text files: nodes, a bank and a link."""
    names = ("0/properties", "8/properties", "9/properties", "8/mem_banks/0/properties")
    return tuple(machine().read(f"{NODES}/{name}") for name in (*names, "8/io_links/0/properties"))


def files() -> tuple[bytes, ...]:
    """Each file of GPU and topology that the plugin reads: its path, a line break, its content."""
    return tuple(f"{path}\n".encode() + machine().read(path) for path in watched_paths())


@cache
def watched_paths() -> tuple[str, ...]:
    """Files of the first GPU and of the first KFD node, CPU node 0 included."""
    device = f"/sys/bus/pci/drivers/amdgpu/{BDF}"
    wanted = (
        *("current_compute_partition", "available_compute_partition", "current_memory_partition"),
        *("unique_id", "mem_info_vram_total", "mem_info_vram_used", "gpu_busy_percent", "numa_node"),
        *("uevent", "vendor", "device", "product_name", "mem_info_gtt_total"),
    )
    found = [f"{device}/{name}" for name in wanted if name in machine().list(device)]
    found += _sensors(f"{device}/hwmon")
    found += [f"{NODES}/{name}/properties" for name in ("0", "8", "9", "8/mem_banks/0", "8/io_links/0")]
    found += [f"{NODES}/8/gpu_id", "/sys/fs/cgroup/dmem.capacity", "/sys/fs/cgroup/cgroup.controllers"]
    return tuple(found)


def _sensors(hwmon: str) -> Iterator[str]:
    for chip in machine().list(hwmon):
        for name in machine().list(f"{hwmon}/{chip}"):
            if name.startswith(("temp", "power1")):
                yield f"{hwmon}/{chip}/{name}"


DMEM_WRITES = (
    f"{REGION} max\n".encode(),
    f"  {REGION}\t0x1000M\n".encode(),
    f"{REGION} 017K".encode(),
)
DMEM_FILES = (
    f"{REGION} 309237645312\ndrm/0000:05:00.0/vram 0\n".encode(),
    f"{REGION} max\ndrm/0000:05:00.0/vram 8589934592\n".encode(),
)


def fixtures() -> tuple[bytes, ...]:
    """Hand-written ones, and what `dump` writes."""
    written = [fixture.find(name).read_bytes() for name in FIXTURES]
    return (*written, fixture.dump(fixture.load("mi355x/numa-unknown")).encode())


def pods() -> tuple[bytes, ...]:
    """Pods and a list of them, as the API server answers."""
    one = {
        "kind": "Pod",
        "metadata": {
            "name": "a",
            "namespace": "default",
            "uid": "0b0e4b4a-0000-4000-8000-000000000001",
            "resourceVersion": "17",
            "annotations": {
                taken.VOCABULARY.allocated: annotations()[0].decode(),
                "hami.io/bind-phase": "success",
            },
        },
        "spec": {
            "nodeName": "node-a",
            "containers": [{"name": "c", "image": "x:1", "resources": {"limits": {"amd.com/gpu": "1"}}}],
            "initContainers": [{"name": "i", "resources": {"limits": {"amd.com/gpumem": 4096}}}],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "containerStatuses": [{"name": "c", "containerID": "containerd://0123456789ab"}],
        },
    }
    return tuple(
        json.dumps(body).encode() for body in ({"items": [one, one]}, {"items": [one], "extra": [[1]]})
    )


QUANTITIES = (b"4096", b"196k", b"4Ki", b"1e3", b"-0.5Gi", b"+12.75E2", b".5m", b"100000000000n")
IMAGES = (
    b"alpine",
    b"registry.example:5000/team/app:1.2",
    b"docker.io/alpine@sha256:" + b"0" * 64,
    b"localhost/a/b:t@sha256:" + b"f" * 64,
)
FLAGS = (b"16", b"-0x10", b"0o17", b"0b101", b"017", b"1.5e3", b"true", b"WARNING")
HOOKS = (b"/opt/hook/libamvgpu.so:/usr/local/vgpu/", b"/a/b:/c/d.so")
ADDRESSES = (b":9394", b"127.0.0.1:0", b"[::1]:9394", b"localhost:80")
RULES = (b"c 226:128 rwm\nc 226:* rw\nc *:* r", b"a")
SELECTORS = (b"spec.nodeName=node-a,status.phase!=Failed", b"metadata.name==a")
LABELS = (b"a=b,c!=d,e in (f,g),!h,i", b"amd.com/gpu.family notin (AI, HPC)")


@cache
def capture() -> pack.Capture:
    """What a recorder would keep of `machine`: KFD, PCI devices and DRM."""
    entries: dict[str, pack.Entry] = {}
    for path, one in machine().tree.every_file():
        if not path.startswith(("/sys/class/kfd", "/sys/devices", "/sys/bus/pci", "/sys/class/drm")):
            continue
        if one.kind.name == "FILE":
            try:
                entries[path] = pack.Entry(pack.Kind.FILE, one.mode, content=machine().read(path))
            except OSError:
                entries[path] = pack.Entry(pack.Kind.FILE, one.mode, error="EPERM")
        elif one.kind.name == "LINK":
            entries[path] = pack.Entry(pack.Kind.LINK, 0o777, target=machine().readlink(path))
    commands = (pack.Command(("uname", "-r"), 0, b"7.0\n", b"\xff"),)
    return pack.capture(entries, {"recorder": "fuzz"}, commands)


def small_capture() -> pack.Capture:
    """A few names of every kind."""
    entries = {
        "/sys/a": pack.Entry(pack.Kind.FILE, 0o444, content=b"text\n"),
        "/sys/b": pack.Entry(pack.Kind.FILE, 0o200, content=b"\xff\0"),
        "/sys/c": pack.Entry(pack.Kind.FILE, 0o400, error="EPERM"),
        "/sys/d/e": pack.Entry(pack.Kind.LINK, 0o777, target="../a"),
        "/sys/f": pack.Entry(pack.Kind.DIRECTORY, 0o700, error="EACCES"),
        "/dev/kfd": pack.Entry(pack.Kind.CHARACTER, 0o666, rdev=(234, 0)),
        "/dev/s": pack.Entry(pack.Kind.OTHER, 0o666),
    }
    return pack.capture(entries, {"recorder": "fuzz"}, (pack.Command(("a", "-b"), 1, b"out", b"err\xff"),))


def pack_bodies() -> tuple[bytes, ...]:
    """The JSON inside a pack."""
    return (json.dumps(pack.to_json(small_capture())).encode(),)


def packs() -> tuple[bytes, ...]:
    """Packed files."""
    return (pack.dumps(small_capture()),)


def plans() -> tuple[bytes, ...]:
    """Fault plans in JSON."""
    return tuple(json.dumps(seeded(seed, gpus=(BDF,)).to_json()).encode() for seed in range(4))


def traces() -> tuple[bytes, ...]:
    """A walk of a small node."""
    recorder = Recorder(node(each=[{}]), seeded(1))
    process = recorder.process()
    handle = recorder.open("/dev/kfd", process)
    for act in (
        lambda: recorder.switch(BDF, "CPX"),
        lambda: recorder.read(f"{NODES}/8/properties"),
        lambda: recorder.close(handle),
        recorder.fork,
    ):
        try:
            act()
        except OSError:
            continue
    return (recorder.text().encode(),)


def patches() -> tuple[bytes, ...]:
    """JSON bodies of patches: an object to merge, and a list of operations."""
    merge = {
        "metadata": {"annotations": {"a": None, "b": "c"}},
        "spec": {"containers": [{"name": "c", "x": 1}]},
    }
    operations = [
        {"op": "add", "path": "/metadata/annotations/x~1y", "value": "1"},
        {"op": "test", "path": "/spec/containers/0/name", "value": "c"},
        {"op": "remove", "path": "/spec/containers/0"},
        {"op": "add", "path": "/spec/containers/-", "value": {"name": "d"}},
    ]
    return json.dumps(merge).encode(), json.dumps(operations).encode()


def checkpoints() -> tuple[bytes, ...]:
    """The data of a kubelet's checkpoint."""
    data = {
        "holdings": [
            {"uid": "u", "container": "c", "resource": "amd.com/gpu", "ids": ["a#1"], "response": "AAEC"}
        ],
        "registered": {"amd.com/gpu": ["a#1", "a#2"]},
        "running": {"u": ["c"]},
    }
    return (json.dumps(data).encode(),)


def libcs() -> tuple[bytes, ...]:
    """Small libraries that define or need versions of glibc."""
    return (
        elf(("GLIBC_2.34", "GLIBC_2.38"), ("GLIBC_PRIVATE",)),
        elf(needs=("GLIBC_2.2.5", "GLIBC_2.31"), machine="aarch64"),
    )


def _frame(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("!II", len(text), len(body)) + text + body


FRAMES = (
    _frame({"do": "read", "args": {"path": "/sys/a"}, "as": None}),
    _frame({"value": [1, {"a": None}]}, b"content\0\xff") + _frame({"error": {"errno": 2}}),
)
