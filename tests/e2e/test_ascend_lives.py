"""Whole lives of Ascend pods, to the vNPU on the chip and back, and of daemons killed in the middle.

Everything is real but the machine: daemon processes, kubelet, API server, scheduler, sockets. A.7 of
ascend_ppu_hami.md, F.1 P17, G rows 1, 8, 12, 21, decisions 39, 40, 44, 45.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from gpusim.ascend import reading
from gpusim.ascend.reading import Reading
from gpusim.ascend.shm import V140
from gpusim.cluster.apifaults import Fault

from ..devplugin.daemon.rig import until
from .support_ascend import AGENT, CONTAINERS, HOOK, LIBRARY, PHASE, SOFT, AscendNode

pytestmark = pytest.mark.daemon

GPU = {"amd.com/gpu": 1, "amd.com/gpumem": 4096, "amd.com/gpucores": 25}


@pytest.fixture
def make() -> Iterator[Callable[..., AscendNode]]:
    with ExitStack() as stack:
        yield lambda *args, **named: stack.enter_context(AscendNode(*args, **named))


Make = Callable[..., AscendNode]


# ------------------------------------------------------------------ templates and whole cards


def test_a_template_pod_has_its_vnpu_while_it_lives(make: Make) -> None:
    node = make()
    node.create("p", node.npus(memory=8000))
    envs = node.runs("p")["c0"].envs
    assert envs["ASCEND_VNPU_SPECS"] == "vir05_1c_8g"
    phy = int(envs["ASCEND_VISIBLE_DEVICES"])
    assert node.vnpus() == [(phy, "vir05_1c_8g", True)]
    assert f"/dev/vdavinci{100 + 16 * phy}" in node.inside("p").devices
    assert "/dev/davinci0" not in node.inside("p").devices
    assert node.annotation("p", PHASE) == "success"
    assert node.unlocked()
    node.delete("p")
    until(lambda: node.vnpus() == [])


def test_a_whole_card_is_the_card_itself_and_no_slice_of_it(make: Make) -> None:
    node = make()
    node.create("p", node.npus(2))
    edits = node.runs("p")["c0"]
    phys = edits.envs["ASCEND_VISIBLE_DEVICES"].split(",")
    assert dict(edits.envs) == {"ASCEND_VISIBLE_DEVICES": ",".join(sorted(phys, key=int))}
    assert edits.mounts == ()
    assert node.inside("p").devices[:2] == tuple(f"/dev/davinci{phy}" for phy in phys)
    assert node.vnpus() == []


def test_two_pods_created_together_get_their_own_slices_on_the_chips(make: Make) -> None:
    """G 1."""
    node = make()
    for number in range(3):
        node.create(f"small{number}", node.npus(memory=8000))
        node.create(f"large{number}", node.npus(memory=16000))
    for name, template in (("small", "vir05_1c_8g"), ("large", "vir10_3c_16g")):
        for number in range(3):
            envs = node.runs(f"{name}{number}", 60)["c0"].envs
            assert envs["ASCEND_VNPU_SPECS"] == template
            assert node.inside(f"{name}{number}").vnpu is not None
    assert node.slices() == ["vir05_1c_8g"] * 3 + ["vir10_3c_16g"] * 3
    assert node.unlocked()


def test_two_containers_of_one_pod_have_a_slice_each_and_the_one_beside_them_none(make: Make) -> None:
    """P2, P17."""
    node = make()
    node.create("p", node.npus(memory=8000), None, node.npus(memory=16000))
    given = node.runs("p")
    assert given["c0"].envs["ASCEND_VNPU_SPECS"] == "vir05_1c_8g"
    assert given["c1"].envs == {}
    assert given["c2"].envs["ASCEND_VNPU_SPECS"] == "vir10_3c_16g"
    assert node.slices() == ["vir05_1c_8g", "vir10_3c_16g"]
    assert node.unlocked()
    node.delete("p")
    until(lambda: node.vnpus() == [])


def test_containers_that_share_a_card_get_each_their_own_template(make: Make) -> None:
    """A.7: a map by UUID would give both the last one's."""
    node = make()
    only = f"hami.io/use-{node.row.word}-uuid"
    node.create(
        "p",
        node.npus(memory=8000),
        node.npus(memory=16000),
        annotations={only: node.registered()[3]["id"]},
    )
    given = node.runs("p")
    assert [given[name].envs["ASCEND_VISIBLE_DEVICES"] for name in ("c0", "c1")] == ["3", "3"]
    assert node.vnpus() == [(3, "vir05_1c_8g", True), (3, "vir10_3c_16g", True)]


def test_a_910c_pod_gets_both_dies_of_a_card_in_order(make: Make) -> None:
    """G 8."""
    node = make("ascend/910c", "Ascend910C", super_pod=True)
    node.create("p", node.npus(2))
    first, second = map(int, node.runs("p")["c0"].envs["ASCEND_VISIBLE_DEVICES"].split(","))
    assert (first % 2, second) == (0, first + 1)
    assert node.inside("p").devices[:2] == (f"/dev/davinci{first}", f"/dev/davinci{second}")
    assert len(node.registered()) == 16


# ------------------------------------------------------------------ soft slices


def test_a_soft_pod_has_a_limit_a_directory_and_the_whole_cards_device(make: Make) -> None:
    node = make(soft=True)
    created = node.create("p", node.npus(memory=8192, cores=30), annotations=SOFT)
    edits = node.runs("p")["c0"]
    phy = edits.envs["ASCEND_VISIBLE_DEVICES"]
    assert edits.envs["NPU_MEM_QUOTA"] == "8192"
    assert edits.envs["NPU_PRIORITY"] == "30"
    assert edits.envs["NPU_GLOBAL_SHM_PATH"] == f"/hami-shared-region/{phy}_global_registry"
    name = f"{created['metadata']['uid']}_c0"
    assert edits.mounts[-1].host_path == f"{CONTAINERS}/{name}"
    assert node.directories() == [name]
    assert node.machine.stat(f"{CONTAINERS}/{name}").mode == 0o777
    assert node.machine.read(f"{HOOK}/libvnpu.so") == LIBRARY
    assert node.inside("p").devices[0] == f"/dev/davinci{phy}"
    assert "0    / 8192" in node.smi("p")
    assert node.vnpus() == []
    assert node.unlocked()


def test_soft_and_template_and_whole_pods_live_on_one_soft_node(make: Make) -> None:
    """Decision 37: who does not say hami-core is served as it was scheduled."""
    node = make(soft=True)
    node.create("soft", node.npus(memory=8192), annotations=SOFT)
    node.create("slice", node.npus(memory=8000))
    node.create("whole", node.npus())
    assert "NPU_MEM_QUOTA" in node.runs("soft")["c0"].envs
    assert node.runs("slice")["c0"].envs["ASCEND_VNPU_SPECS"] == "vir05_1c_8g"
    assert set(node.runs("whole")["c0"].envs) == {"ASCEND_VISIBLE_DEVICES"}
    assert len(node.directories()) == 1
    assert node.unlocked()


def test_each_soft_container_of_a_pod_has_a_directory_of_its_own(make: Make) -> None:
    node = make(soft=True)
    created = node.create("p", node.npus(memory=4096), None, node.npus(2, memory=8192), annotations=SOFT)
    given = node.runs("p")
    uid = created["metadata"]["uid"]
    assert node.directories() == [f"{uid}_c0", f"{uid}_c2"]
    visible = [int(phy) for phy in given["c2"].envs["ASCEND_VISIBLE_DEVICES"].split(",")]
    assert visible == sorted(visible)
    assert given["c2"].envs["NPU_GLOBAL_SHM_PATH"] == f"/hami-shared-region/{visible[0]}_global_registry"
    assert given["c2"].envs["NPU_MEM_QUOTA"] == "8192"  # of each of the two (decision 36)


# ------------------------------------------------------------------ refusals


def test_a_mode_that_is_not_built_fails_the_pod_with_its_reason_and_frees_the_node(make: Make) -> None:
    node = make(soft=True)
    node.create("p", node.npus(memory=8000), annotations={"huawei.com/vnpu-mode": "enpu"})
    assert "is not built" in node.fails("p")
    assert node.unlocked()
    assert any(reason == "AllocateRefused" and "enpu" in text for reason, text in node.events())
    node.create("next", node.npus(memory=8000))
    node.runs("next")


def test_without_the_right_to_patch_pods_no_container_starts_and_the_log_says_why(make: Make) -> None:
    """G 21: nothing is granted that could not be recorded."""
    node = make()
    fault = Fault(verb="patch", resource="pods", agent=AGENT, code=403, times=None)
    node.server.faults.add(fault)
    node.create("p", node.npus(memory=8000))
    node.fails("p")
    until(lambda: any("Allocate" in one["event"] and "403" in one["event"] for one in node.plugin.lines()))
    assert node.vnpus() == []


# ------------------------------------------------------------------ killed in the middle


def test_a_daemon_killed_between_two_containers_leaves_a_lock_that_its_successor_frees(make: Make) -> None:
    """P17: the first Allocate keeps the lock; G 12: nobody waits five minutes for it."""
    node = make()
    node.server.faults.add(Fault(verb="patch", resource="pods", agent=AGENT, nth=2, action="drop", delay=3.0))
    node.create("p", node.npus(memory=8000), node.npus(memory=16000))
    key = node.row.to_allocate
    until(lambda: (node.annotation("p", key) or "").startswith(";"), 20)
    assert node.annotation("p", PHASE) == "allocating"
    assert node.node_annotation("hami.io/mutex.lock") is not None
    node.plugin.end(signal.SIGKILL)
    node.fails("p")  # kubelet's answer to an Allocate that broke
    node.server.faults.clear()
    node.plugin = node.launch()
    assert node.unlocked()
    assert node.annotation("p", PHASE) == "failed"
    node.create("next", node.npus(memory=8000), node.npus(memory=16000))
    node.runs("next")
    assert node.slices() == ["vir05_1c_8g", "vir10_3c_16g"]
    assert node.unlocked()


def test_pods_outlive_their_daemon_and_the_next_is_placed_beside_them(make: Make) -> None:
    node = make(soft=True)
    first = node.create("first", node.npus(memory=16384, cores=50), annotations=SOFT)
    node.runs("first")
    node.plugin.end(signal.SIGKILL)
    node.plugin = node.launch()
    second = node.create("second", node.npus(memory=16384, cores=50), annotations=SOFT)
    node.runs("second")
    uids = sorted(one["metadata"]["uid"] for one in (first, second))
    assert node.directories() == [f"{uid}_c0" for uid in uids]  # the living pod's was not touched
    assert node.unlocked()


# ------------------------------------------------------------------ upgrades


def test_a_library_is_replaced_only_after_the_last_pod_of_the_old_one_is_gone(make: Make) -> None:
    """Decision 45 and the guide's upgrade notes."""
    node = make(soft=True, library=LIBRARY)
    created = node.create("old", node.npus(memory=8192), annotations=SOFT)
    node.runs("old")
    ledger = reading.write(Reading(V140, (8192 << 20,) * 8, (), 0, 0))
    node.machine.put(f"{CONTAINERS}/{created['metadata']['uid']}_c0/vnpu_local_shmem", ledger)
    node.plugin.end(signal.SIGTERM)
    newer = LIBRARY + b", rebuilt"
    node.machine.put(f"{HOOK}-assets/libvnpu.so", newer, 0o755)
    node.plugin = node.launch("--check_idle_vnpu_interval=1")
    until(lambda: any(reason == "NPULibraryKept" for reason, _ in node.events()))
    (text,) = [text for reason, text in node.events() if reason == "NPULibraryKept"]
    assert "default/old (1.4.0)" in text
    assert node.machine.read(f"{HOOK}/libvnpu.so") == LIBRARY
    until(lambda: node.plugin.said("stays as it is"))
    node.delete("old")
    until(lambda: node.machine.read(f"{HOOK}/libvnpu.so") == newer, 20)
    until(lambda: any(reason == "NPULibraryUpdated" for reason, _ in node.events()))
    node.create("new", node.npus(memory=8192), annotations=SOFT)
    node.runs("new")


# ------------------------------------------------------------------ two vendors


def test_one_pod_of_two_vendors_on_one_machine_gets_both(make: Make) -> None:
    """Decision 40: whoever comes first leaves the lock to the other."""
    node = make("mixed/three-vendors", amd=True)
    node.create("p", {**GPU, **node.npus(memory=8000)}, node.npus(memory=16000), GPU)
    given = node.runs("p")
    assert given["c0"].envs["HIP_VISIBLE_DEVICES"] == "0"
    assert given["c0"].envs["ASCEND_VNPU_SPECS"] == "vir05_1c_8g"
    assert given["c1"].envs["ASCEND_VNPU_SPECS"] == "vir10_3c_16g"
    assert "HIP_VISIBLE_DEVICES" not in given["c1"].envs
    assert "ASCEND_VISIBLE_DEVICES" not in given["c2"].envs
    assert node.slices() == ["vir05_1c_8g", "vir10_3c_16g"]
    assert given["c0"].envs["HSA_CU_MASK"] != given["c2"].envs["HSA_CU_MASK"]
    assert node.unlocked()
    assert node.annotation("p", PHASE) == "success"


def test_killing_one_vendors_daemon_does_not_disturb_the_other(make: Make) -> None:
    node = make("mixed/three-vendors", amd=True)
    node.create("both", {**GPU, **node.npus(memory=8000)})
    node.runs("both")
    node.plugin.end(signal.SIGKILL)
    until(lambda: node.kubelet.allocatable(node.row.count) == 0)
    node.create("gpu", GPU)
    assert node.runs("gpu")["c0"].envs["HIP_VISIBLE_DEVICES"] == "0"
    node.plugin = node.launch()
    node.create("npu", node.npus(memory=8000))
    assert node.runs("npu")["c0"].envs["ASCEND_VNPU_SPECS"] == "vir05_1c_8g"
    assert node.unlocked()
