"""Pod cgroups on a simulated node, made as kubelet makes them: level by level, with all controllers."""

from __future__ import annotations

from gpusim.machine import Machine

ROOT = "/sys/fs/cgroup"


def make_group(machine: Machine, group: str, *, dmem: bool = True) -> None:
    """A group and its parents, each handing down what it has; without `dmem` its own parent keeps that."""
    parts = group.removeprefix(f"{ROOT}/").split("/")
    for depth in range(1, len(parts)):
        above = "/".join((ROOT, *parts[:depth]))
        machine.mkdir(above)
        names = machine.read(f"{above}/cgroup.controllers").decode().split()
        last = depth == len(parts) - 1
        given = " ".join(f"+{name}" for name in names if dmem or not last or name != "dmem")
        machine.write(f"{above}/cgroup.subtree_control", given.encode())
    machine.mkdir(group)
