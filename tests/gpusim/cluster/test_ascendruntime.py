"""The container runtime on an Ascend node: what a container's environment gives it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim import GpusimError, Machine, load
from gpusim.ascend.ledger import Ledger
from gpusim.ascend.mapping import bytes_of
from gpusim.ascend.reading import Reading, Slot, fresh, with_slots, write
from gpusim.ascend.shm import MIB, V140
from gpusim.cluster.ascendruntime import AscendRuntime, AscendRuntimeError, Given
from gpusim.cluster.kubelet_edits import Mount
from gpusim.remote import RemoteMachine
from gpusim.serve import serve

COMMON = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
ID = "0123456789abcdef"


def rig(name: str = "ascend/910b4") -> tuple[Machine, AscendRuntime]:
    machine = Machine(load(name))
    return machine, AscendRuntime(machine)


def test_whole_cards_are_handed_in_in_ascending_order() -> None:
    machine, runtime = rig()
    got = runtime.start(ID, {"ASCEND_VISIBLE_DEVICES": "5,4"})
    assert got.devices == ("/dev/davinci4", "/dev/davinci5", *COMMON)
    assert got.vnpu is None
    for path in got.devices:
        machine.probe(path)


def test_a_template_makes_a_vnpu_for_the_life_of_the_container() -> None:
    machine, runtime = rig()
    before = machine.describe()
    got = runtime.start(ID, {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_VNPU_SPECS": "vir05_1c_8g"})
    assert (got.devices, got.vnpu) == (("/dev/vdavinci116", *COMMON), 116)
    assert machine.npus.vnpu(116)[1].container == ID[:12]
    machine.probe("/dev/vdavinci116")
    assert got.smi is not None and b"910B4vir05_1c_8g" in got.smi.run(["npu-smi", "info"]).stdout
    runtime.stop(ID)
    assert machine.describe() == before


def test_a_vnpu_whose_containers_end_nobody_saw_is_left_idle() -> None:
    machine, runtime = rig()
    runtime.start(ID, {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_VNPU_SPECS": "vir05_1c_8g"})
    runtime.stop(ID, seen=False)
    assert machine.npus.vnpu(116)[1].container is None


SOFT = {
    "ASCEND_VISIBLE_DEVICES": "5,3",
    "NPU_MEM_QUOTA": "8192",
    "NPU_LOCAL_SHM_PATH": "/hami-vnpu-shmem/vnpu_local_shmem",
}
MOUNTS = (
    Mount("/hami-shared-region", "/usr/local/hami-shared-region", False),
    Mount("/hami-vnpu-shmem", "/usr/local/hami-vnpu-core/containers/u_main", False),
)
ON_HOST = "/usr/local/hami-vnpu-core/containers/u_main/vnpu_local_shmem"


def shown(given: Given) -> list[str]:
    """What npu-smi in the container says is used of what, a device a line."""
    assert given.smi is not None
    text = given.smi.run(["npu-smi", "info"]).stdout.decode()
    return re.findall(r"(\w+) */ 8192 ", text)


def test_a_soft_container_sees_its_quota() -> None:
    _, runtime = rig("ascend/910b4-soft")
    got = runtime.start(ID, SOFT)
    assert got.devices[:2] == ("/dev/davinci3", "/dev/davinci5")
    assert shown(got) == ["0", "0"]


def test_a_soft_container_sees_what_its_ledger_tracks_and_how_busy_the_whole_card_is(tmp_path: Path) -> None:
    """Decision 51, with the ledger that the container's processes map."""
    machine, _ = rig("ascend/910b4-soft")
    quota = 8192 * MIB

    def read(path: str) -> bytes:
        return bytes_of(f"{tmp_path}{path}")

    runtime = AscendRuntime(machine, read)
    got = runtime.start(ID, SOFT, MOUNTS)
    assert shown(got) == ["0", "0"]  # nobody has made a ledger yet
    assert list(tmp_path.iterdir()) == []  # and looking made none
    process = Ledger(f"{tmp_path}{ON_HOST}", (quota, quota), pid=1, alive=lambda *_: True)
    process.commit(process.reserve(300 * MIB), "a")
    process.set_device(1)
    held = process.reserve(5000 * MIB)
    assert shown(got) == ["300", "5000"]  # device 0 of the container is the card with the smallest id
    process.rollback(held)
    assert shown(got) == ["300", "0"]
    machine.npus.phy(3).busy = 77
    assert got.smi is not None and b"| 77 " in got.smi.run(["npu-smi", "info"]).stdout
    process.close()


@pytest.mark.parametrize("foreign", [b"", b"vendor", bytes(10560), fresh((8192 * MIB, 8192 * MIB))[:-1]])
def test_a_ledger_that_cannot_be_believed_has_no_number_in_the_container_either(foreign: bytes) -> None:
    machine, runtime = rig("ascend/910b4-soft")
    machine.mkdir("/usr/local/hami-vnpu-core/containers/u_main")
    machine.put(ON_HOST, foreign)
    assert shown(runtime.start(ID, SOFT, MOUNTS)) == ["NA", "NA"]


def test_a_ledger_of_the_old_library_is_read_too() -> None:
    machine, runtime = rig("ascend/910b4-soft")
    machine.mkdir("/usr/local/hami-vnpu-core/containers/u_main")
    slot = Slot(0, 7, 0, (100 * MIB, 200 * MIB, 0, 0, 0, 0, 0, 0), (0,) * 8)
    machine.put(ON_HOST, write(with_slots(Reading(V140, (8192 * MIB,) * 8, (), 0, 0), [slot])))
    assert shown(runtime.start(ID, SOFT, MOUNTS)) == ["100", "200"]
    assert shown(runtime.start("f" * 64, SOFT)) == ["0", "0"]  # no mount leads to it


def test_a_served_machine_shows_the_same_inside(tmp_path: Path) -> None:
    machine, runtime = rig("ascend/910b4-soft")
    with serve(machine, str(tmp_path / "s")):
        remote = RemoteMachine(str(tmp_path / "s"))
        there = AscendRuntime(remote)
        for environ in (SOFT, {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_VNPU_SPECS": "vir05_1c_8g"}):
            here, far = runtime.start("a" * 12, environ), there.start("b" * 12, environ)
            assert here.smi is not None and far.smi is not None
            said = here.smi.run(["npu-smi", "info"])
            if here.vnpu is None:
                assert far.smi.run(["npu-smi", "info"]) == said
            else:
                assert far.vnpu == here.vnpu + 1
                assert far.smi.run(["npu-smi", "info"]).status == 0
            runtime.stop("a" * 12)
            there.stop("b" * 12)
        with pytest.raises(AscendRuntimeError, match="core_need:10, used:15, total:20"):
            for each in range(4):
                size = "vir10_3c_16g" if each == 3 else "vir05_1c_8g"
                there.start(f"{each:012}", {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_VNPU_SPECS": size})
        remote.disconnect()


def test_a_container_that_asks_for_no_npu_gets_none() -> None:
    _, runtime = rig()
    assert runtime.start(ID, {"PATH": "/bin"}) == Given()
    runtime.stop(ID)


@pytest.mark.parametrize(
    "environ",
    [
        {"ASCEND_VISIBLE_DEVICES": "9"},
        {"ASCEND_VISIBLE_DEVICES": "0,x"},
        {"ASCEND_VISIBLE_DEVICES": "0,1", "ASCEND_VNPU_SPECS": "vir05_1c_8g"},
        {"ASCEND_VISIBLE_DEVICES": "0", "ASCEND_VNPU_SPECS": "vir01"},
        {"ASCEND_VNPU_SPECS": "vir05_1c_8g"},
        {"ASCEND_VISIBLE_DEVICES": "0", "NPU_MEM_QUOTA": "8Gi"},
    ],
)
def test_what_cannot_be_given_is_refused_and_leaves_nothing(environ: dict[str, str]) -> None:
    machine, runtime = rig()
    before = machine.describe()
    with pytest.raises(AscendRuntimeError, match=ID):
        runtime.start(ID, environ)
    assert machine.describe() == before
    runtime.stop(ID)
    assert machine.describe() == before


def test_the_runtime_of_a_rewound_machine_cuts_from_what_is_there_now() -> None:
    machine, runtime = rig()
    saved = machine.fork()
    runtime.start(ID, {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_VNPU_SPECS": "vir05_1c_8g"})
    machine.rewind(saved)
    got = runtime.start("f" * 12, {"ASCEND_VISIBLE_DEVICES": "1", "ASCEND_VNPU_SPECS": "vir10_3c_16g"})
    assert got.vnpu == 116
    assert machine.npus.vnpu(116)[1].template.name == "vir10_3c_16g"


def test_a_container_starts_once() -> None:
    _, runtime = rig()
    runtime.start(ID, {"ASCEND_VISIBLE_DEVICES": "0"})
    with pytest.raises(AscendRuntimeError, match="already"):
        runtime.start(ID, {"ASCEND_VISIBLE_DEVICES": "1"})


def test_a_node_without_npus_has_no_such_runtime() -> None:
    with pytest.raises(GpusimError, match="no NPUs"):
        AscendRuntime(Machine(load("mi210/two-hives")))


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from(["vir01", "vir02", "vir04"])), max_size=25
    )
)
def test_every_vnpu_belongs_to_a_running_container(steps: list[tuple[bool, int, str]]) -> None:
    machine, runtime = rig("ascend/310p3")
    running: dict[str, int] = {}
    for start, which, template in steps:
        name = f"{which:012x}"
        if start and name not in running:
            phy = str(which % 2)
            try:
                got = runtime.start(name, {"ASCEND_VISIBLE_DEVICES": phy, "ASCEND_VNPU_SPECS": template})
            except AscendRuntimeError:
                continue
            assert got.vnpu is not None
            running[name] = got.vnpu
        elif not start and name in running:
            runtime.stop(name)
            del running[name]
        holders = {v.container: v.number for npu in machine.npus for v in npu.vnpus.values()}
        assert holders == running
