"""The container runtime on an Ascend node: what a container's environment gives it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim import GpusimError, Machine, load
from gpusim.cluster.ascendruntime import AscendRuntime, AscendRuntimeError, Given

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


def test_a_soft_container_sees_its_quota() -> None:
    _, runtime = rig("ascend/910b4-soft")
    got = runtime.start(ID, {"ASCEND_VISIBLE_DEVICES": "3", "NPU_MEM_QUOTA": "8192"})
    assert got.devices[0] == "/dev/davinci3"
    assert got.smi is not None and b"/ 8192 " in got.smi.run(["npu-smi", "info"]).stdout


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
    with pytest.raises(AscendRuntimeError, match="no container"):
        runtime.stop(ID)


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
