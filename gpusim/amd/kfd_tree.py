"""The KFD topology as a directory: ``/sys/devices/virtual/kfd/kfd``.

Texts are computed when read and listings come from lengths; nothing is made before somebody looks. Files
of a GPU node answer EPERM to a reader whose device cgroup does not allow its render node, listings never
do. Sources: kernel.md 1.1 (tree), 1.8 (who may read).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from errno import EPERM
from functools import lru_cache
from types import MethodType
from typing import TypeVar

from gpusim.amd.kfd import GpuNode, Topology
from gpusim.amd.kfd_caches import cache_text, node_caches
from gpusim.amd.kfd_links import link_text
from gpusim.amd.kfd_properties import memory_bank, node_name, properties_text, system_properties, text
from gpusim.nodes import Attr, Caller, Dir, Guard, Link, Node

DRM_MAJOR = 226
T = TypeVar("T")


class KfdTree:
    """The view of a machine's topology.

    Args:
        topology: returns the current topology; asked at every read that depends on it.
        used_vram: bytes of VRAM in use on the GPU with this PCI address, the whole GPU's.
        major: dynamic character major of /dev/kfd.
    """

    def __init__(
        self, topology: Callable[[], Topology], used_vram: Callable[[str], int], major: int = 235
    ) -> None:
        self._topology = topology
        self._used_vram = used_vram
        self.nodes = Dir(self._nodes)
        self.root = Dir(
            {
                "dev": Attr(f"{major}:0\n"),
                "uevent": Attr(f"MAJOR={major}\nMINOR=0\nDEVNAME=kfd\n", mode=0o644),
                "subsystem": Link("../../../../class/kfd"),
                "power": Dir(
                    {
                        "control": Attr("auto\n", mode=0o644),
                        "runtime_active_time": Attr("0\n"),
                        "runtime_status": Attr("unsupported\n"),
                        "runtime_suspended_time": Attr("0\n"),
                    }
                ),
                "topology": Dir(
                    {
                        "generation_id": Attr(lambda: f"{topology().generation}\n"),
                        "system_properties": Attr(lambda: text(system_properties(topology()))),
                        "nodes": self.nodes,
                    }
                ),
            }
        )

    def changed(self) -> None:
        """Say that the topology is another one: node directories are made anew at the next visit."""
        self.nodes.invalidate()

    def _nodes(self) -> Mapping[str, Node]:
        topology = self._topology()
        used = self._used_vram
        return {
            str(index): Dir(_NodeView(topology, index, used).entries) for index in range(len(topology.nodes))
        }


class _NodeView:
    """One node's directory. What it holds are methods bound to it: an object each, and no closures."""

    __slots__ = ("_gpu", "_index", "_topology", "_used_vram")

    def __init__(self, topology: Topology, index: int, used_vram: Callable[[str], int]) -> None:
        self._topology, self._index, self._used_vram = topology, index, used_vram
        node = topology.nodes[index]
        self._gpu = node if isinstance(node, GpuNode) else None

    def entries(self) -> Mapping[str, Node]:
        """Content of the directory."""
        gpu, rules, guard = self._gpu, self._topology.rules, self._guard()
        entries: dict[str, Node] = {
            "gpu_id": Attr(f"{0 if gpu is None else gpu.gpu_id}\n", None, guard),
            "name": Attr(self._name, None, guard),
            "properties": Attr(self._properties, None, guard),
            "mem_banks": Dir(self._banks),
            "caches": Dir(self._caches),
            "io_links": Dir(self._io_links),
        }
        if not rules.kfd_legacy:
            entries["p2p_links"] = Dir(self._p2p_links)  # kfd.md 1: not in the 5.x key set
        if not rules.kfd_used_memory:
            entries["perf"] = Dir({})  # kernel.md 1.1: in-tree always, DKMS often absent
        return entries

    def _guard(self) -> Guard | None:
        return None if self._gpu is None else self._may_read

    def _may_read(self, caller: Caller) -> None:
        """KFD asks the reader's device cgroup for the node's render device, at read (kernel.md 1.8)."""
        assert self._gpu is not None
        if caller.devices is not None and not caller.devices.allows(DRM_MAJOR, self._gpu.minor, "rw"):
            raise PermissionError(EPERM, os.strerror(EPERM))

    def _name(self) -> str:
        return f"{node_name(self._topology, self._index)}\n"

    def _properties(self) -> str:
        return properties_text(self._topology, self._index)

    def _banks(self) -> Mapping[str, Node]:
        topology, guard = self._topology, self._guard()
        bank: dict[str, Node] = {
            "properties": Attr(lambda: text(memory_bank(topology, self._index)), None, guard)
        }
        if self._gpu is not None and topology.rules.kfd_used_memory:
            bdf = self._gpu.facts.bdf
            bank["used_memory"] = Attr(lambda: f"{self._used_vram(bdf)}\n", None, guard)
        return {"0": Dir(bank)}

    def _caches(self) -> Mapping[str, Node]:
        if self._gpu is None:
            return {}
        base = self._gpu.simd_base
        caches = node_caches(self._gpu, self._topology.rules)
        return _listed(caches, lambda cache: cache_text(base, cache), self._guard())

    def _io_links(self) -> Mapping[str, Node]:
        return self._links(p2p=False)

    def _p2p_links(self) -> Mapping[str, Node]:
        return self._links(p2p=True)

    def _links(self, *, p2p: bool) -> Mapping[str, Node]:
        topology, index = self._topology, self._index
        peers = topology.peers(index, p2p=p2p)
        return _listed(peers, lambda peer: link_text(topology, index, peer, p2p=p2p), self._guard())


def _listed(things: Sequence[T], show: Callable[[T], str], guard: Guard | None) -> Mapping[str, Node]:
    """A numbered directory with a ``properties`` for every thing.

    Nearly all files of a node are these. A method bound to the thing is one object, where `partial` is three.
    """
    return {
        name: Dir({"properties": Attr(MethodType(show, thing), None, guard)})
        for name, thing in zip(_numbers(len(things)), things, strict=True)
    }


@lru_cache(maxsize=256)
def _numbers(count: int) -> tuple[str, ...]:
    """Names of the directories of a list: one text each for all nodes of all machines."""
    return tuple(map(str, range(count)))


def kfd_tree(topology: Callable[[], Topology], used_vram: Callable[[str], int], major: int = 235) -> Dir:
    """The directory alone, for a topology that never changes."""
    return KfdTree(topology, used_vram, major).root


def kfd_files(topology: Topology, used_vram: Callable[[str], int] = lambda _: 0) -> dict[str, str]:
    """Every file below ``topology/`` by relative path: what tests and captures compare with."""
    found: dict[str, str] = {}
    top = KfdTree(lambda: topology, used_vram).root.kids()["topology"]
    assert isinstance(top, Dir)
    pending: list[tuple[str, Dir]] = [("", top)]
    while pending:
        prefix, directory = pending.pop()
        for name, node in directory.kids().items():
            if isinstance(node, Dir):
                pending.append((f"{prefix}{name}/", node))
            elif isinstance(node, Attr):
                content = node.show() if callable(node.show) else node.show
                assert content is not None
                found[prefix + name] = content if isinstance(content, str) else content.decode()
    return found
