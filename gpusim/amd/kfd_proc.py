"""What KFD shows of its processes: ``/sys/class/kfd/kfd/proc/<pid>``.

Known: one directory per process with a KFD context, named by pid; ``vram_<gpu_id>`` per GPU node the
process may use (kernel.md 1.1, 6; amdkfd/kfd_process.c, `kfd_procfs_show`, `kfd_create_process_sysfs`):
bytes asked for as VRAM through KFD and not freed, whole pages, evicted or not, "%llu" and a newline.
Inferred, for no capture has the directory: that pasid prints 0 (it went to the devices about 6.15), and
everything that counts time or faults, which stays 0 here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gpusim.amd.vram import Context, Vram
from gpusim.nodes import Attr, Dir, Node

_COUNTERS = ("faults", "page_in", "page_out")


def process_entries(vram: Vram) -> dict[str, Node]:
    """pid → directory."""
    return {str(pid): Dir(partial(_process, vram, context)) for pid, context in vram.contexts.items()}


def _process(vram: Vram, context: Context) -> Mapping[str, Node]:
    found: dict[str, Node] = {"pasid": Attr("0\n"), "queues": Dir()}
    for node in context.nodes.values():
        key = (context.pid, node.gpu_id)
        found[f"vram_{node.gpu_id}"] = Attr(partial(_asked, vram, key))
        found[f"sdma_{node.gpu_id}"] = Attr("0\n")
        found[f"stats_{node.gpu_id}"] = Dir(
            {"cu_occupancy": Attr(partial(_occupied, vram, key)), "evicted_ms": Attr("0\n")}
        )
        found[f"counters_{node.gpu_id}"] = Dir({name: Attr("0\n") for name in _COUNTERS})
    return found


def _asked(vram: Vram, key: tuple[int, int]) -> str:
    return f"{vram.asked.get(key, 0)}\n"


def _occupied(vram: Vram, key: tuple[int, int]) -> str:
    return f"{vram.occupied.get(key, 0)}\n"
