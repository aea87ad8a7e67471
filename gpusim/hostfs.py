"""The parts of a node's file tree that belong to no device: /proc, and what programs keep on disk.

Cgroups are `gpusim.cgroupfs`. Sources: kernel.md 3 (device majors), 5 (/proc/<pid>/cgroup).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpusim.nodes import Attr, CharDev, Dir, File, NamespacedAttr, Node

KEPT = ("etc", "opt", "root", "run", "tmp", "usr", "var")
"""Directories programs write to; empty at boot but for what `kept` puts in."""


def proc(release: str, majors: Callable[[], Iterable[tuple[int, str]]]) -> Dir:
    """/proc: the running kernel's release and the character majors; processes are added by `process`."""

    def devices() -> str:
        lines = "".join(f"{major:3d} {name}\n" for major, name in sorted(majors()))
        return f"Character devices:\n{lines}\nBlock devices:\n"

    kernel = {
        "osrelease": Attr(f"{release}\n", sysfs=False),
        "ostype": Attr("Linux\n", sysfs=False),
    }
    return Dir({"devices": Attr(devices, sysfs=False), "sys": Dir({"kernel": Dir(kernel)})})


def process(cgroup: Callable[[str], str]) -> Dir:
    """/proc/<pid>.

    Args:
        cgroup: text of its cgroup file, for a reader whose cgroup namespace has this root.
    """
    return Dir({"cgroup": NamespacedAttr(cgroup)}, mode=0o555)


def kept() -> dict[str, Node]:
    """Ordinary directories as a fresh node has them."""
    return {name: Dir(writable=True, mode=0o1777 if name == "tmp" else 0o755) for name in KEPT}


def lay(root: Mapping[str, Node], files: Mapping[str, tuple[str, int]]) -> None:
    """Put an installer's files, path → (content, mode), below the ordinary directories of a fresh node."""
    for path, (text, mode) in files.items():
        top, *parents, name = path.strip("/").split("/")
        directory = root[top]
        for parent in parents:
            assert isinstance(directory, Dir)
            kids = directory.kids()
            if parent not in kids:
                directory.add(parent, Dir({}, writable=True))
            directory = kids[parent]
        assert isinstance(directory, Dir)
        directory.add(name, File(text, mode=mode))


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
