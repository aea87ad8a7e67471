"""Switch idle GPUs to the compute partition the operator asked for, once, at the start.

GPUs that somebody uses, by a pod's record or a process in KFD, stay as they are (decision 33), and the kernel
has the last word: drivers up to 6.16 refuse a switch while any KFD process of the machine lives
(kernel.md 2.1). Nothing here keeps the plugin from starting; each GPU's result is one line. Memory
partitions are never touched.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devplugin.amd.events import SWITCH_REFUSED, about, event_name, held
from devplugin.amd.inventory import Gpu, Inventory
from devplugin.amd.partitioning import MODES
from devplugin.amd.pcidev import BOUND, read_text
from devplugin.amd.settings import MODE_PARTITION, Settings
from devplugin.amd.topology import NODES
from devplugin.answers import NodeEvent, Prepared
from devplugin.hami import Pod
from devplugin.host import Host, words

PROCESSES = "/sys/class/kfd/kfd/proc"
_VRAM = re.compile(r"vram_([0-9]{1,10})")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one GPU."""

    gpu: Gpu
    word: str
    """``switched``, ``already``, ``busy``, ``unsupported`` or ``refused``."""
    text: str

    def __str__(self) -> str:
        return f"compute partition of {self.gpu.bdf}: {self.word}: {self.text}"


def wanted(inventory: Inventory, settings: Settings) -> bool:
    """Whether there is anything to switch: only in partition mode, and only if a partition was named."""
    return settings.mode == MODE_PARTITION and bool(settings.compute_partition and inventory.gpus)


def switch(host: Host, inventory: Inventory, settings: Settings, pods: Sequence[Pod]) -> Prepared:
    """Switch every idle GPU that is not in the wanted mode yet."""
    if not wanted(inventory, settings):
        return Prepared()
    target = settings.compute_partition
    users = users_of(host, inventory, pods)  # before anything is written: a switch renumbers KFD's nodes
    results = [_one(host, gpu, target, users[gpu.bdf]) for gpu in inventory.gpus]
    return Prepared(
        done=tuple(str(result) for result in results if result.word in ("switched", "already")),
        troubles=tuple(str(result) for result in results if result.word not in ("switched", "already")),
        effects=tuple(_event(result, settings) for result in results if result.word in ("busy", "refused")),
        changed=any(result.word == "switched" for result in results),
    )


def users_of(host: Host, inventory: Inventory, pods: Sequence[Pod]) -> Mapping[str, tuple[str, ...]]:
    """Who uses each GPU, by BDF: pods that were given it, and KFD processes that may use one of its nodes."""
    found: dict[str, list[str]] = {gpu.bdf: [] for gpu in inventory.gpus}
    for one in map(held, pods):
        for gpu in inventory.gpus:
            if one.holds(gpu):
                found[gpu.bdf].append(f"pod {one.pod}")
    processes = kfd_processes(host)
    for gpu in inventory.gpus if processes else ():
        ids = {_gpu_id(host, partition.node) for partition in gpu.partitions}
        found[gpu.bdf] += (f"KFD process {pid}" for pid, used in processes.items() if used & ids)
    return {bdf: tuple(users) for bdf, users in found.items()}


def kfd_processes(host: Host) -> Mapping[int, frozenset[int]]:
    """Process with a KFD context → gpu_ids of the nodes it may use.

    KFD has a directory for each, with a file ``vram_<gpu_id>`` for every node the process's device cgroup
    lets it have (kernel.md 1.1). Where there are none, only the kernel's EBUSY tells.
    """
    try:
        pids = host.list(PROCESSES)
    except OSError:
        return {}
    found: dict[int, frozenset[int]] = {}
    for pid in pids:
        if not (pid.isascii() and pid.isdecimal() and len(pid) < 11):
            continue
        try:
            names = host.list(f"{PROCESSES}/{pid}")
        except OSError:
            continue  # it has just ended
        found[int(pid)] = frozenset(int(match[1]) for name in names if (match := _VRAM.fullmatch(name)))
    return found


def _one(host: Host, gpu: Gpu, target: str, users: Sequence[str]) -> Result:
    if not gpu.changeable:
        return Result(gpu, "unsupported", "this GPU cannot change its partition")
    try:
        now = read_text(host, f"{BOUND}/{gpu.bdf}/current_compute_partition").lower()
        offered = read_text(host, f"{BOUND}/{gpu.bdf}/available_compute_partition").lower()
    except OSError as error:
        return Result(gpu, "refused", words(error))
    if now == target:
        return Result(gpu, "already", target)
    modes = [mode for mode in MODES if mode in (word.strip() for word in offered.split(","))]
    if target not in modes:
        return Result(gpu, "unsupported", f"{target} is not offered, only {', '.join(modes) or 'nothing'}")
    if users:
        return Result(gpu, "busy", f"stays {gpu.compute}, in use by {', '.join(users)}")
    return _write(host, gpu, now if now in MODES else "an unknown mode", target)


def _write(host: Host, gpu: Gpu, now: str, target: str) -> Result:
    try:
        host.write(f"{BOUND}/{gpu.bdf}/current_compute_partition", f"{target.upper()}\n".encode())
    except OSError as error:
        if error.errno != errno.EBUSY:
            return Result(gpu, "refused", f"stays {now}, the kernel answers {words(error)}")
        others = ", ".join(f"process {pid}" for pid in kfd_processes(host)) or "a process it does not show"
        return Result(gpu, "busy", f"stays {now}, the kernel answers EBUSY: KFD is in use by {others}")
    return Result(gpu, "switched", f"from {now} to {target}")


def _event(result: Result, settings: Settings) -> NodeEvent:
    """Who is in the way, for those who read no log (B22)."""
    return NodeEvent(
        "Warning",
        SWITCH_REFUSED,
        f"{about(result.gpu)}: not switched to {settings.compute_partition}: {result.word}, {result.text}",
        event_name(settings, SWITCH_REFUSED, result.gpu.id),
    )


def _gpu_id(host: Host, node: int) -> int:
    """KFD's gpu_id of a node; 0, which no GPU has, when it cannot be read."""
    try:
        text = read_text(host, f"{NODES}/{node}/gpu_id")
    except OSError:
        return 0
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else 0
