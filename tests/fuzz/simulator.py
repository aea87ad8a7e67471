"""How bytes reach the simulator's parsers in production, for those that take no bytes.

Where a second reader or a writer exists they must agree: AssertionError is nobody's refusal.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import shutil
import socket
import tempfile
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from devplugin.ascend import ledgerfile
from gpusim import wire
from gpusim.ascend import reading, runtime, smi
from gpusim.cluster import (
    apipatch,
    apirouter,
    apiselect,
    kubelet_checkpoint,
    resourcenames,
    scheduler_config,
    scheduler_devices,
    scheduler_ledger,
    scheduler_legacy,
    scheduler_lock,
)
from gpusim.cluster.scheduler_vendors import VENDORS
from gpusim.dmem_parse import limit, lines
from gpusim.fixture import load, loads
from gpusim.machine import Machine
from gpusim.ppu import environment, layout
from gpusim.process import DeviceRules
from gpusim.snapshots import pack
from gpusim.snapshots.host import CaptureHost
from gpusim.testing import trace
from gpusim.testing.faults import Plan

from . import sound
from .plugin import plain, text

# The scheduler


def scheduler_annotation(data: bytes) -> None:
    """The simulated scheduler's."""
    scheduler_ledger.decode(text(data))


def legacy_registration(data: bytes) -> None:
    """The string of older plugins, as the simulated scheduler reads it; what it reads it writes the same."""
    entries = scheduler_legacy.decode(plain(data))
    assert scheduler_legacy.decode(scheduler_legacy.encode(entries)) == entries


def scheduler_registration(data: bytes) -> None:
    """The simulated scheduler's."""
    vendor = VENDORS["amd"]
    scheduler_devices.registered({"metadata": {"annotations": {vendor.register: plain(data)}}}, vendor)


def scheduler_lock_text(data: bytes) -> None:
    """The simulated scheduler's."""
    scheduler_lock.parse(plain(data))


# The kernel, and npu-smi


def dmem_write(data: bytes) -> None:
    """What the simulated kernel makes of a write to dmem.max, of both kinds of kernel."""
    for many in (True, False):
        for line in lines(data, many=many):
            if line.value is not None:
                assert 0 <= limit(line.value) < 1 << 64


def simulators_ledger(data: bytes) -> None:
    """The simulator's reader, which must not read what the plugin's refuses."""
    found = reading.read(data)
    assert ledgerfile.parse(data).version in found.layout.name


def quota(data: bytes) -> None:
    """NPU_MEM_QUOTA."""
    assert 0 <= runtime.quota_bytes({"NPU_MEM_QUOTA": text(data)}) < 1 << 64


@cache
def _npus() -> Machine:

    return Machine(load("ascend/910b4-template"))


def npu_smi(data: bytes) -> None:
    """npu-smi's command line, words parted by NUL: an answer and a status, whatever the words."""
    words = text(data).split("\0")
    done = smi.run(_npus().fork().npus, words, b"y\n")
    assert done.stdout


# The API server and the kubelet


def kubelet_quantity(data: bytes) -> None:
    """The simulated kubelet's."""
    resourcenames.whole(plain(data))


def json_patch(data: bytes) -> None:
    """A patch's body at the simulated API server, under each content type."""
    patch = apirouter._decode(data)
    pod: Any = json.loads(sound.pods()[0])["items"][0]
    last: Exception | None = None
    for kind in apipatch.TYPES:
        try:
            apipatch.apply(kind, pod, patch)
        except apipatch.ApiError as error:
            last = error
    if last is not None and not isinstance(patch, dict | list):
        raise last


def selectors(data: bytes) -> None:
    """A field selector."""
    apiselect.fields("pods", plain(data))({"metadata": {"name": "a"}})


def labels(data: bytes) -> None:
    """A label selector."""
    apiselect.labels(plain(data))({"metadata": {"labels": {"a": "b"}}})


# The simulator's own files


def device_rules(data: bytes) -> None:
    """A device cgroup's rules; what is written reads again as the same."""
    rules = DeviceRules.parse(*plain(data).split("\n"))
    assert DeviceRules.parse(*rules.lines()) == rules


def fixture_text(data: bytes) -> None:
    """A fixture as `load` reads it; a file that is no UTF-8 is refused before."""
    loads(plain(data))


def packed(data: bytes) -> None:
    """A packed capture: loaded, and every name of it looked at."""
    node = CaptureHost(pack.loads(data))
    todo = ["/"]
    while todo:
        path = todo.pop()
        for look in (node.read, node.readlink, node.stat):
            with contextlib.suppress(OSError):
                look(path)
        with contextlib.suppress(OSError):
            if node.stat(path, follow=False).kind.name == "DIRECTORY":
                todo += [f"{path.rstrip('/')}/{name}" for name in node.list(path)]


def pack_body(data: bytes) -> None:
    """A pack whose writer wrote other JSON."""
    packed(pack.MAGIC + f"{pack.VERSION}\n".encode() + zlib.compress(data, 1))


def fault_plan(data: bytes) -> None:
    """A plan in JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return  # its reader is `trace`
    Plan.from_json(value)


def traced(data: bytes) -> None:
    """A trace, done again."""
    trace.replay(text(data))


def frames(data: bytes) -> None:
    """What comes in at a served machine's socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        channel = wire.Channel(ours)
        theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            theirs.sendall(data[: 100 << 10])
        theirs.shutdown(socket.SHUT_WR)
        try:
            while channel.receive() is not None:
                pass
        finally:
            channel.close()


def frame_of(data: bytes) -> None:
    """A frame whose lengths are right, with this for a header."""
    frames(len(data[: 64 << 10]).to_bytes(4, "big") + bytes(4) + data[: 64 << 10])


@cache
def _directory() -> Path:
    """One for each process, whose every input goes to the same file."""
    path = tempfile.mkdtemp(prefix="gpusim-fuzz-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def checkpoint(data: bytes) -> None:
    """The simulated kubelet's file, with a checksum that is right."""
    body = b'{"gpusim":1,"checksum":%d,"data":%s}' % (zlib.crc32(data), data)
    (_directory() / kubelet_checkpoint.FILE).write_bytes(body)
    kubelet_checkpoint.read(_directory())


# PPUs, and the configuration of the scheduler


def state_file(data: bytes) -> None:
    """PPU-HAMi-core's file; what is read is written the same, as far as it is read."""
    cards = layout.read(data)
    assert layout.read(layout.write(cards)) == cards


@cache
def _ppus() -> Machine:
    return Machine(load("ppu/zw810e-8"))


def ppu_smi(data: bytes) -> None:
    """ppu-smi's command line, words parted by NUL."""
    done = _ppus().run(["ppu-smi", *(text(data).split("\0") if data else ())])
    assert done.stdout


def ppu_limit(data: bytes) -> None:
    """HGGC_DEVICE_MEMORY_LIMIT."""
    (size,) = environment.quotas({"HGGC_DEVICE_MEMORY_LIMIT_0": text(data)}, 1)
    assert 0 <= size < 1 << 64


def scheduler_configuration(data: bytes) -> None:
    """The device configuration as the simulated scheduler reads it."""
    path = _directory() / "device-config.yaml"
    path.write_bytes(data)
    scheduler_config.config_vendors(scheduler_config.read_config(path))
