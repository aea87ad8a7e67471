"""Pod cgroups on a simulated node for tests of one room: made as kubelet makes them, or left without dmem."""

from __future__ import annotations

from gpusim.cluster.podcgroups import ROOT, Layout, enter
from gpusim.machine import Machine


def make_group(machine: Machine, group: str, *, dmem: bool = True) -> None:
    """A group by its directory, and its parents; without `dmem` its own parent does not hand that down."""
    enter(machine, group.removeprefix(ROOT), Layout())
    if not dmem:
        machine.write(f"{group.rpartition('/')[0]}/cgroup.subtree_control", b"-dmem")
