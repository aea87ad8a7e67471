"""The parts of a node's file tree that belong to no device: /proc, cgroups, and what programs keep on disk.

Sources: kernel.md 3 (device majors), 4.1-4.2 and 4.5 (dmem at the root), 5 (where pods live).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpusim.nodes import Attr, CharDev, Dir, File, Node

KEPT = ("etc", "opt", "root", "run", "tmp", "usr", "var")
"""Directories programs write to; empty at boot but for what `kept` puts in."""
CONTROLLERS = "cpuset cpu io memory hugetlb pids rdma misc"
"""Root controllers before dmem, which comes last (kernel.md 4.5)."""


def proc(release: str, majors: Iterable[tuple[int, str]]) -> Dir:
    """/proc: the running kernel's release and the character majors."""
    lines = "".join(f"{major:3d} {name}\n" for major, name in sorted(majors))
    devices = f"Character devices:\n{lines}\nBlock devices:\n"
    kernel = {
        "osrelease": Attr(f"{release}\n", sysfs=False),
        "ostype": Attr("Linux\n", sysfs=False),
    }
    return Dir({"devices": Attr(devices, sysfs=False), "sys": Dir({"kernel": Dir(kernel)})})


def cgroup(pods: str, capacity: Callable[[], str] | None) -> Dir:
    """/sys/fs/cgroup: the root group and the group all pods live in.

    Args:
        pods: its name, ``kubepods.slice`` or ``kubepods``.
        capacity: text of dmem.capacity; None: this kernel has no dmem controller.
    """
    controllers = CONTROLLERS if capacity is None else f"{CONTROLLERS} dmem"
    found: dict[str, Node] = {
        "cgroup.controllers": Attr(f"{controllers}\n", sysfs=False),
        pods: Dir({"cgroup.controllers": Attr(f"{controllers}\n", sysfs=False)}),
    }
    if capacity is not None:
        found["dmem.capacity"] = Attr(capacity, sysfs=False)
    return Dir(found)


def kept() -> dict[str, Node]:
    """Ordinary directories as a fresh node has them."""
    return {name: Dir(writable=True, mode=0o1777 if name == "tmp" else 0o755) for name in KEPT}


def copied(nodes: Mapping[str, Node], device: Callable[[CharDev], CharDev]) -> dict[str, Node]:
    """Ordinary directories and files that share no node with `nodes`; `device` remakes a device node."""
    return {name: _copied(node, device) for name, node in nodes.items()}


def _copied(node: Node, device: Callable[[CharDev], CharDev]) -> Node:
    if isinstance(node, Dir):
        kids = copied(node.kids(), device)
        return Dir(kids, mode=node.mode, writable=node.writable, uid=node.uid, gid=node.gid)
    if isinstance(node, File):
        return File(node.content, mode=node.mode, uid=node.uid, gid=node.gid)
    return device(node) if isinstance(node, CharDev) else node
