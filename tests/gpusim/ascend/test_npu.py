"""NPUs and what is cut out of them: never more than the chip has, and device nodes that follow."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim import GpusimError, Machine, NodeSpec, load
from gpusim.ascend.chips import CHIPS
from gpusim.ascend.health import Health
from gpusim.ascend.npu import NpuError, Npus
from gpusim.spec import NpuSpec, SpecError

KERNEL = "5.15.0-101-generic"


def node(chip: str = "910B4", count: int = 2) -> Machine:
    npus = tuple(NpuSpec(chip, f"0000:{i + 1:02x}:00.0") for i in range(count))
    return Machine(NodeSpec("n", KERNEL, npus=npus))


def vdavincis(machine: Machine) -> set[str]:
    return {name for name in machine.list("/dev") if name.startswith("vdavinci")}


def test_ids_of_vnpus_start_at_sixteen_times_the_physical_id_and_a_hundred() -> None:
    npus = node().npus
    assert [npus.create(npus.phy(phy), "vir05_1c_8g").number for phy in (0, 1, 1)] == [100, 116, 117]


def test_the_lowest_free_id_is_used_again() -> None:
    npus = node().npus
    for _ in range(3):
        npus.create(npus.phy(1), "vir05_1c_8g")
    npus.destroy(117)
    assert npus.create(npus.phy(1), "vir05_1c_8g").number == 117


@pytest.mark.parametrize(
    ("chip", "template", "fit"),
    [
        ("910A", "vir02", 15),
        ("910B2", "vir03_1c_8g", 6),  # AICPU, not memory, is what 910B2 runs out of
        ("910B3", "vir05_1c_16g", 4),
        ("910B4", "vir10_3c_16g", 2),
        ("310P3", "vir01", 7),
        ("310P3", "vir04", 1),
    ],
)
def test_as_many_fit_as_cores_cpus_and_memory_allow(chip: str, template: str, fit: int) -> None:
    npus = node(chip, 1).npus
    npu = npus.phy(0)
    for _ in range(fit):
        npus.create(npu, template)
    with pytest.raises(NpuError, match="not enough"):
        npus.create(npu, template)
    assert len(npu.vnpus) == fit


def test_what_cannot_be_made_leaves_everything_as_it_was() -> None:
    machine = node()
    npus = machine.npus
    made = npus.create(npus.phy(0), "vir10_3c_16g")
    before = machine.describe()
    for template, number in [("vir02", None), ("vir05_1c_8g", made.number), ("vir05_1c_8g", 116)]:
        with pytest.raises(NpuError):
            npus.create(npus.phy(0), template, number)
    with pytest.raises(NpuError):
        npus.destroy(115)
    assert machine.describe() == before


def test_a_vnpu_in_use_stays_until_its_container_lets_go() -> None:
    npus = node().npus
    number = npus.create(npus.phy(0), "vir05_1c_8g", container="0123456789ab").number
    with pytest.raises(NpuError, match="used by container 0123456789ab"):
        npus.destroy(number)
    with pytest.raises(NpuError, match="used by"):
        npus.use(number, "ba9876543210")
    npus.use(number, None)
    npus.destroy(number)
    assert not npus.phy(0).vnpus


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 1)), max_size=30)


@given(st.sampled_from(sorted(CHIPS)), STEPS)
def test_never_more_is_handed_out_than_the_chip_has(
    chip_name: str, steps: list[tuple[bool, int, int]]
) -> None:
    machine = node(chip_name)
    npus, chip = machine.npus, CHIPS[chip_name]
    for create, pick, phy in steps:
        npu = npus.phy(phy)
        existing = [number for each in npus for number in each.vnpus]
        if create:
            template = chip.templates[pick % len(chip.templates)]
            sums = [t.template for t in npu.vnpus.values()] + [template]
            fits = (
                sum(t.ai_cores for t in sums) <= chip.ai_cores
                and sum(t.ai_cpus for t in sums) <= chip.ai_cpus
                and sum(t.memory_mib for t in sums) <= chip.memory_mib
            )
            if fits:
                npus.create(npu, template.name)
            else:
                with pytest.raises(NpuError):
                    npus.create(npu, template.name)
        elif existing:
            npus.destroy(existing[pick % len(existing)])
        for each in npus:
            assert min(each.free) >= 0
            assert all(number in each.vnpu_ids for number in each.vnpus)
        assert vdavincis(machine) == {f"vdavinci{number}" for each in npus for number in each.vnpus}


@given(st.sampled_from(sorted(CHIPS)), st.data())
def test_creating_and_destroying_leaves_no_trace(chip_name: str, data: st.DataObject) -> None:
    machine = node(chip_name)
    before, names = machine.describe(), machine.list("/dev")
    made = []
    for template in data.draw(st.lists(st.sampled_from([t.name for t in CHIPS[chip_name].templates]))):
        try:
            made.append(machine.npus.create(machine.npus.phy(0), template).number)
        except NpuError:
            break
    for number in data.draw(st.permutations(made)):
        machine.npus.destroy(number)
    assert (machine.describe(), machine.list("/dev")) == (before, names)


# The machine


def test_device_nodes_open_while_they_exist() -> None:
    machine = node()
    for name in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"):
        machine.probe(f"/dev/{name}")
    number = machine.npus.create(machine.npus.phy(1), "vir05_1c_8g").number
    rdev = machine.stat(f"/dev/vdavinci{number}").rdev
    assert rdev is not None and rdev[1] == number
    machine.mknod("/run/kept", *rdev)
    machine.probe("/run/kept")
    machine.npus.destroy(number)
    with pytest.raises(OSError) as caught:
        machine.probe("/run/kept")
    assert caught.value.errno == errno.ENODEV


def test_majors_are_listed_and_none_is_kfds() -> None:
    for seed in range(21):
        spec = NodeSpec("n", KERNEL, seed=seed, npus=(NpuSpec("310P3", "0000:01:00.0"),))
        machine = Machine(spec)
        lines = [line.split() for line in machine.read("/proc/devices").decode().splitlines()[1:] if line]
        majors = {
            name: int(number)
            for number, name in (line for line in lines if len(line) == 2 and line[0] != "Block")
        }
        davinci = machine.stat("/dev/davinci0").rdev
        assert davinci == (majors["davinci"], 0)
        assert machine.driver.kfd_major not in majors.values()
        assert len(set(majors.values())) == len(majors)


def test_a_fork_has_npus_of_its_own() -> None:
    machine = node()
    machine.npus.create(machine.npus.phy(0), "vir05_1c_8g")
    twin = machine.fork()
    assert twin.describe() == machine.describe()
    twin.npus.create(twin.npus.phy(0), "vir05_1c_8g")
    twin.npus.phy(1).health = Health.ALARM
    machine.npus.destroy(100)
    assert vdavincis(machine) == set()
    assert vdavincis(twin) == {"vdavinci100", "vdavinci101"}
    assert machine.npus.phy(1).health is Health.OK
    machine.rewind(twin)
    assert vdavincis(machine) == {"vdavinci100", "vdavinci101"}
    machine.npus.destroy(101)
    assert vdavincis(machine) == {"vdavinci100"}
    assert vdavincis(twin) == {"vdavinci100", "vdavinci101"}


def test_a_driver_file_that_was_removed_stays_removed_in_a_fork() -> None:
    machine = node()
    machine.unlink("/usr/local/Ascend/driver/version.info")
    with pytest.raises(FileNotFoundError):
        machine.fork().read("/usr/local/Ascend/driver/version.info")


def test_the_installer_left_its_files() -> None:
    machine = node()
    assert b"Version=25.5.1\n" in machine.read("/usr/local/Ascend/driver/version.info")
    assert b"/usr/local/Ascend" in machine.read("/etc/ascend_install.info")
    assert "libdcmi.so" in machine.list("/usr/local/Ascend/driver/lib64/driver")


def test_a_node_without_npus_has_nothing_of_them() -> None:
    machine = Machine(load("mi210/two-hives"))
    assert "npus" not in machine.describe()
    assert machine.list("/usr") == []
    with pytest.raises(GpusimError, match="no NPUs"):
        _ = machine.npus
    with pytest.raises(FileNotFoundError):
        machine.run(["npu-smi", "info"])


@pytest.mark.parametrize("number", [("OK", 0), ("Warning", 1), ("Alarm", 2), ("Critical", 3)])
def test_only_ok_is_zero(number: tuple[str, int]) -> None:
    assert Health(number[0]).code == number[1]


# What cannot exist

A, B = "0000:01:00.0", "0000:02:00.0"


@pytest.mark.parametrize(
    ("npus", "path"),
    [
        ([NpuSpec("910D", A)], "npus[0].chip"),
        ([NpuSpec("910B4", A, health="fine")], "npus[0].health"),
        ([NpuSpec("910B4", A), NpuSpec("910B4", A)], "npus[1].bdf"),
        ([NpuSpec("910B4", A, phy=3), NpuSpec("910B4", B, phy=3)], "npus[1].phy"),
        ([NpuSpec("910B4", A, card=0), NpuSpec("910B4", B, card=0)], "npus[1].card"),
        ([NpuSpec("910B4", A, uuid="x")], "npus[0].uuid"),
        ([NpuSpec("910B4", A, busy=101)], "npus[0].busy"),
        ([NpuSpec("910B4", A, used_mib=32769)], "npus[0].used_mib"),
        ([NpuSpec("910B4", A, vnpus={"vir01": 1})], "npus[0].vnpus"),
        ([NpuSpec("910B4", A, vnpus={"vir10_3c_16g": 3})], "npus"),
        ([NpuSpec("910B4", A), NpuSpec("310P3", B)], "npus"),
    ],
)
def test_what_cannot_exist_is_refused_and_the_place_told(npus: list[NpuSpec], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        Machine(NodeSpec("n", KERNEL, npus=tuple(npus)))
    assert caught.value.path == path


def test_two_chips_of_910c_are_one_npu() -> None:
    npus = Npus(NodeSpec("n", KERNEL, npus=tuple(NpuSpec("910C", f"0000:0{i}:00.0") for i in range(5))))
    assert [(npu.card, npu.number, npu.phy) for npu in npus] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2),
        (1, 1, 3),
        (2, 0, 4),
    ]
