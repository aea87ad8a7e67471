"""The KFD directory as a reader meets it: names, changes, and who may read which node."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import pytest

from gpusim.amd.kfd import Topology
from gpusim.amd.kfd_tree import KfdTree
from gpusim.nodes import Caller, Dir
from gpusim.tree import Tree

from .kfdnodes import listed, node, switched


@dataclass
class Allow:
    """A device cgroup with a list of render minors."""

    minors: tuple[int, ...]
    access: str = "rwm"

    def allows(self, major: int, minor: int, access: str) -> bool:
        return major == 226 and minor in self.minors and set(access) <= set(self.access)


class Host:
    """A tree that holds nothing but KFD, and the list it shows."""

    def __init__(self, topology: Topology, used: int = 0) -> None:
        self.topology = topology
        self.used = used
        self.kfd = KfdTree(lambda: self.topology, lambda _: self.used, major=240)
        self.tree = Tree(Dir({"kfd": self.kfd.root}))

    def set(self, topology: Topology) -> None:
        self.topology = topology
        self.kfd.changed()


@pytest.fixture
def host() -> Host:
    return Host(listed(node(modes=("DPX", "SPX"))))


def test_names_of_the_tree(host: Host) -> None:
    tree = host.tree
    assert set(tree.list("/kfd")) >= {"dev", "uevent", "power", "subsystem", "topology"}
    assert tree.list("/kfd/topology") == ["generation_id", "nodes", "system_properties"]
    assert tree.list("/kfd/topology/nodes") == [str(index) for index in range(5)]
    expected = ["caches", "gpu_id", "io_links", "mem_banks", "name", "p2p_links", "properties"]
    assert tree.list("/kfd/topology/nodes/2") == expected
    assert tree.list("/kfd/topology/nodes/0/caches") == []
    assert tree.list("/kfd/topology/nodes/0/mem_banks/0") == ["properties"]
    assert tree.list("/kfd/topology/nodes/2/mem_banks/0") == ["properties", "used_memory"]
    assert len(tree.list("/kfd/topology/nodes/2/caches")) == 274
    assert tree.read("/kfd/dev") == b"240:0\n"
    assert tree.read("/kfd/topology/nodes/0/name") == b"\n"
    assert tree.read("/kfd/topology/nodes/2/name") == b"ip discovery\n"
    assert tree.read("/kfd/topology/nodes/0/gpu_id") == b"0\n"


def test_an_in_tree_driver_has_perf_and_no_used_memory() -> None:
    tree = Host(listed(node(driver="in-tree"))).tree
    assert tree.list("/kfd/topology/nodes/2/perf") == []
    assert tree.list("/kfd/topology/nodes/2/mem_banks/0") == ["properties"]


def test_used_memory_is_the_whole_gpus_and_read_when_asked(host: Host) -> None:
    host.used = 1 << 30
    texts = {host.tree.read(f"/kfd/topology/nodes/{index}/mem_banks/0/used_memory") for index in (2, 3)}
    assert texts == {b"1073741824\n"}


def test_a_small_bar_makes_the_memory_private() -> None:
    tree = Host(listed(node(large_bar=False))).tree
    assert tree.read("/kfd/topology/nodes/2/mem_banks/0/properties") == (
        b"heap_type 2\nsize_in_bytes 309220868096\nflags 0\nwidth 8192\nmem_clk_max 2000\n"
    )


def test_a_change_shows_at_once_in_every_directory(host: Host) -> None:
    tree = host.tree
    assert tree.read("/kfd/topology/generation_id") == b"4\n"
    assert len(tree.list("/kfd/topology/nodes/2/io_links")) == 3
    host.set(switched(host.topology, 1, "CPX"))
    assert tree.read("/kfd/topology/generation_id") == b"13\n"
    assert len(tree.list("/kfd/topology/nodes")) == 12
    assert len(tree.list("/kfd/topology/nodes/2/io_links")) == 10
    assert b"drm_render_minor 143\n" in tree.read("/kfd/topology/nodes/11/properties")
    host.set(host.topology.without_gpu("0000:75:00.0"))
    with pytest.raises(FileNotFoundError):
        tree.read("/kfd/topology/nodes/11/properties")


GUARDED = (
    "gpu_id",
    "name",
    "properties",
    "mem_banks/0/properties",
    "mem_banks/0/used_memory",
    "caches/0/properties",
    "io_links/0/properties",
    "p2p_links/0/properties",
)


@pytest.mark.parametrize("name", GUARDED)
def test_a_reader_whose_cgroup_lacks_the_render_node_gets_eperm(host: Host, name: str) -> None:
    mine = Caller(devices=Allow((129,)))
    assert host.tree.read(f"/kfd/topology/nodes/3/{name}", mine)
    with pytest.raises(PermissionError) as caught:
        host.tree.read(f"/kfd/topology/nodes/2/{name}", mine)
    assert caught.value.errno == errno.EPERM
    host.tree.open(f"/kfd/topology/nodes/2/{name}", mine, "r")  # the open itself succeeds


def test_read_access_alone_is_not_enough(host: Host) -> None:
    with pytest.raises(PermissionError):
        host.tree.read("/kfd/topology/nodes/2/gpu_id", Caller(devices=Allow((128,), access="r")))


def test_listings_cpu_nodes_and_the_counters_are_open_to_everyone(host: Host) -> None:
    nobody = Caller(uid=1000, devices=Allow(()))
    tree = host.tree
    assert len(tree.list("/kfd/topology/nodes", nobody)) == 5
    assert len(tree.list("/kfd/topology/nodes/2/io_links", nobody)) == 3
    for name in ("generation_id", "system_properties", "nodes/0/properties", "nodes/0/io_links/1/properties"):
        assert tree.read(f"/kfd/topology/{name}", nobody)


def test_nothing_can_be_written(host: Host) -> None:
    with pytest.raises(PermissionError):
        host.tree.write("/kfd/topology/nodes/2/properties", b"x")
