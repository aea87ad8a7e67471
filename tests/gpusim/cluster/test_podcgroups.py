"""Cgroups of pods: what each driver, runtime and nesting calls them, and how dmem gets down to them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpusim.cluster.podcgroups import (
    DRIVERS,
    KUBELETS,
    PAUSE,
    QOS,
    ROOT,
    RUNTIMES,
    Layout,
    container_id,
    create,
    pod_path,
    qos_class,
    remove,
    start,
    stop,
    systemd_inside,
)
from gpusim.errors import GpusimError
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine
from gpusim.serve import serve
from gpusim.testing.machines import node

UID = "06076004-3cf7-4399-bffd-d7c3596543b3"
UNDERSCORED = "06076004_3cf7_4399_bffd_d7c3596543b3"
STATIC = "0123456789abcdef0123456789abcdef"
ID = "ab" * 32
BDF = "0000:75:00.0"
KIND = "/kubelet.slice/kubelet-kubepods.slice"
LINE = f"drm/{BDF}/vram 1G".encode()


def machine_of(driver: str = "systemd") -> Machine:
    return Machine(node(count=1, kernel="7.0", driver="in-tree", cgroup_driver=driver))


def pod_of(
    qos: str = "Burstable", uid: str = UID, containers: tuple[str, ...] = ("main", "side")
) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "uid": uid},
        "spec": {"containers": [{"name": name} for name in containers]},
        "status": {"qosClass": qos},
    }


# Names


@pytest.mark.parametrize(
    ("driver", "root", "qos", "path"),
    [
        ("systemd", "", "Guaranteed", f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice"),
        (
            "systemd",
            "",
            "Burstable",
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice",
        ),
        (
            "systemd",
            "",
            "BestEffort",
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice",
        ),
        ("cgroupfs", "", "Guaranteed", f"/kubepods/pod{UID}"),
        ("cgroupfs", "", "Burstable", f"/kubepods/burstable/pod{UID}"),
        ("cgroupfs", "", "BestEffort", f"/kubepods/besteffort/pod{UID}"),
        (
            "systemd",
            "/kubelet",
            "Burstable",
            f"{KIND}/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{UNDERSCORED}.slice",
        ),
        (
            "systemd",
            "kubelet",
            "Guaranteed",
            f"{KIND}/kubelet-kubepods-pod{UNDERSCORED}.slice",
        ),
        ("cgroupfs", "/kubelet", "BestEffort", f"/kubelet/kubepods/besteffort/pod{UID}"),
        (
            "systemd",
            "/a-b/c",
            "Guaranteed",
            f"/a_b.slice/a_b-c.slice/a_b-c-kubepods.slice/a_b-c-kubepods-pod{UNDERSCORED}.slice",
        ),
    ],
)
def test_a_pods_group(driver: str, root: str, qos: str, path: str) -> None:
    layout = Layout(driver, cgroup_root=root)
    assert layout.pod(UID, qos) == path
    assert pod_path(pod_of(qos), layout) == path


def test_a_static_pods_uid_has_no_dashes() -> None:
    assert Layout().pod(STATIC, "Guaranteed") == f"/kubepods.slice/kubepods-pod{STATIC}.slice"


def test_a_slices_name_repeats_its_ancestors() -> None:
    for root in ("", "/kubelet", "/a-b/c"):
        parts = [p for p in Layout(cgroup_root=root).pod(UID, "Burstable").split("/") if p]
        for above, below in pairwise(parts):
            assert below.startswith(above.removesuffix(".slice") + "-")


@pytest.mark.parametrize(
    ("driver", "runtime", "name"),
    [
        ("systemd", "containerd", f"cri-containerd-{ID}.scope"),
        ("systemd", "cri-o", f"crio-{ID}.scope"),
        ("systemd", "cri-dockerd", f"docker-{ID}.scope"),
        ("cgroupfs", "containerd", ID),
        ("cgroupfs", "cri-o", f"crio-{ID}"),
        ("cgroupfs", "cri-dockerd", ID),
    ],
)
def test_a_containers_group(driver: str, runtime: str, name: str) -> None:
    assert Layout(driver, runtime).container("/kubepods/p", ID) == f"/kubepods/p/{name}"


def test_a_nested_nodes_groups_are_below_its_container() -> None:
    """kind and k3d: what the host sees; inside, paths are relative to the namespace's root."""
    scope = f"/system.slice/docker-{ID}.scope"
    layout = Layout(cgroup_root="/kubelet", node=scope)
    assert layout.kubepods == f"{scope}/kubelet.slice/kubelet-kubepods.slice"
    machine = machine_of()
    made = create(machine, pod_of("BestEffort"), layout=layout)
    assert made.path.startswith(
        f"{scope}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
    )
    process = machine.process(cgroup=made.containers["main"])
    assert machine.read(f"/proc/{process.pid}/cgroup").decode() == f"0::{made.containers['main']}\n"
    machine.write(f"{ROOT}{made.path}/dmem.max", LINE)


def test_unknown_drivers_and_runtimes_are_refused() -> None:
    for wrong in (("openrc", "containerd"), ("systemd", "rkt")):
        with pytest.raises(GpusimError, match=r"known are systemd, cgroupfs; containerd, cri-o, cri-dockerd"):
            Layout(*wrong)


def test_a_pods_class_is_what_its_status_says_else_what_follows_from_its_containers() -> None:
    assert qos_class(pod_of("Guaranteed")) == "Guaranteed"
    bare = pod_of()
    del bare["status"]
    assert qos_class(bare) == "BestEffort"
    limits = {"cpu": "1", "memory": "1Gi"}
    bare["spec"]["containers"] = [{"name": "c", "resources": {"limits": limits}}]
    assert qos_class(bare) == "Guaranteed"  # requests default to limits
    bare["spec"]["initContainers"] = [{"name": "i", "resources": {"requests": {"cpu": "1"}}}]
    assert qos_class(bare) == "Burstable"


# What is made


@pytest.fixture(params=["here", "served"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine | RemoteMachine]:
    if request.param == "here":
        yield machine_of()
        return
    with serve(machine_of(), str(tmp_path / "s")):
        remote = RemoteMachine(str(tmp_path / "s"))
        yield remote
        remote.disconnect()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("qos", QOS)
@pytest.mark.parametrize("root", ["", "/kubelet"])
def test_every_pods_and_containers_group_takes_limits(driver: str, runtime: str, qos: str, root: str) -> None:
    machine = machine_of(driver)
    made = create(machine, pod_of(qos), layout=Layout(driver, runtime, root))
    assert sorted(made.containers) == ["POD", "main", "side"]
    for path in (made.path, *made.containers.values()):
        machine.write(f"{ROOT}{path}/dmem.max", LINE)
    assert made.identity("main") == f"{RUNTIMES[runtime].scheme}{made.ids['main']}"
    process = machine.process(cgroup=made.containers["main"])
    with pytest.raises(OSError, match="busy") as caught:  # the pod's own group takes no process
        machine.process(cgroup=made.path)
    assert caught.value.errno == errno.EBUSY
    remove(machine, made)
    assert not process.alive
    assert made.path.rpartition("/")[2] not in machine.list(f"{ROOT}{made.path.rpartition('/')[0]}")
    remove(machine, made)  # fine when it is gone


def test_ids_are_64_hexadecimal_digits_and_each_start_has_its_own_group(
    machine: Machine | RemoteMachine,
) -> None:
    """kernel.md 5: what was limited on the pod's group holds, what was on the container's does not."""
    made = create(machine, pod_of(containers=("main",)))
    first = made.containers["main"]
    assert len(made.ids["main"]) == 64
    assert made.ids["main"] == container_id(UID, "main")
    int(made.ids["main"], 16)
    machine.write(f"{ROOT}{made.path}/dmem.max", LINE)
    machine.write(f"{ROOT}{first}/dmem.max", LINE)
    machine.process(cgroup=first)
    made = start(machine, stop(machine, made, "main"), "main", ID)
    assert made.containers["main"] == f"{made.path}/cri-containerd-{ID}.scope" != first
    assert machine.read(f"{ROOT}{made.path}/dmem.max") == f"drm/{BDF}/vram {1 << 30}\n".encode()
    assert machine.read(f"{ROOT}{made.containers['main']}/dmem.max") == f"drm/{BDF}/vram max\n".encode()
    assert first.rpartition("/")[2] not in machine.list(f"{ROOT}{made.path}")


def test_the_sandbox_has_a_group_unless_it_is_left_out() -> None:
    machine = machine_of()
    assert PAUSE in create(machine, pod_of()).containers
    assert PAUSE not in create(machine, pod_of(uid=STATIC), pause=False).containers


def test_names_and_ids_may_be_given() -> None:
    machine = machine_of()
    made = create(machine, pod_of(), {"only": ID}, pause=False)
    assert dict(made.containers) == {"only": f"{made.path}/cri-containerd-{ID}.scope"}
    assert create(machine, pod_of(uid=STATIC), ["x"], pause=False).ids == {"x": container_id(STATIC, "x")}


def test_init_containers_are_made_too() -> None:
    pod = pod_of(containers=("main",))
    pod["spec"]["initContainers"] = [{"name": "first"}]
    made = create(machine_of(), pod, pause=False)
    assert list(made.containers) == ["first", "main"]


def test_cri_os_monitor_has_a_scope_of_its_own_that_goes_with_the_container() -> None:
    machine = machine_of()
    made = create(machine, pod_of(containers=("main",)), layout=Layout(runtime="cri-o"), pause=False)
    scopes = [name for name in machine.list(f"{ROOT}{made.path}") if name.endswith(".scope")]
    assert scopes == [f"crio-{made.ids['main']}.scope", f"crio-conmon-{made.ids['main']}.scope"]
    stop(machine, made, "main")
    assert not [name for name in machine.list(f"{ROOT}{made.path}") if name.endswith(".scope")]


def test_systemd_in_a_container_makes_groups_below_its_scope() -> None:
    machine = machine_of()
    made = create(machine, pod_of())
    scope, services = systemd_inside(machine, made.containers["main"])
    assert (scope, services) == tuple(
        f"{made.containers['main']}/{name}" for name in ("init.scope", "system.slice")
    )
    machine.process(cgroup=scope)
    with pytest.raises(OSError, match="busy"):  # the scope itself hands down now
        machine.process(cgroup=made.containers["main"])
    remove(machine, made)


def test_a_runtime_that_hands_down_only_kubelets_controllers_leaves_dmem_out() -> None:
    """kernel.md 4.5: crun may differ from runc."""
    machine = machine_of()
    made = create(machine, pod_of(), layout=Layout(hands_down=False))
    handed = machine.read(f"{ROOT}{made.path}/cgroup.subtree_control").decode().split()
    assert sorted(handed) == sorted(KUBELETS)
    assert "dmem.max" not in machine.list(f"{ROOT}{made.path}")


def test_a_controller_that_cannot_be_handed_down_does_not_keep_the_others_back() -> None:
    """runc falls back to one write per controller and ignores what fails."""
    machine = machine_of()
    slice_ = f"{ROOT}/kubepods.slice/kubepods-burstable.slice"
    machine.mkdir(slice_)
    machine.write(f"{ROOT}/kubepods.slice/cgroup.subtree_control", b"+cpu +dmem")
    process = machine.process(cgroup="/kubepods.slice/kubepods-burstable.slice")
    made = create(machine, pod_of(), pause=False)
    # domain controllers are EBUSY beside a process, threaded ones are not
    assert machine.read(f"{slice_}/cgroup.subtree_control") == b"cpuset cpu pids\n"
    assert "dmem.max" not in machine.list(f"{ROOT}{made.path}")
    machine.exit(process)
    again = create(machine, pod_of(uid=STATIC), pause=False)
    machine.write(f"{ROOT}{again.path}/dmem.max", LINE)


def test_on_a_kernel_without_the_controller_pods_have_groups_all_the_same() -> None:
    machine = Machine(node(count=1, kernel="6.8.0-136-generic", driver="dkms-6.14.14"))
    made = create(machine, pod_of())
    assert machine.process(cgroup=made.containers["main"]).cgroup == made.containers["main"]
    assert not [name for name in machine.list(f"{ROOT}{made.path}") if name.startswith("dmem")]
