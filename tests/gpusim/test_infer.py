"""A node's fixture is read back from its files, whole or in part; what is guessed is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim import fixture
from gpusim.amd.gpufacts import gpu_facts
from gpusim.errors import GpusimError
from gpusim.kernel import MODES
from gpusim.machine import Machine
from gpusim.snapshots import record
from gpusim.snapshots.diff import Finding, State, compare
from gpusim.snapshots.host import CaptureHost
from gpusim.snapshots.infer import infer
from gpusim.spec import CardSpec, Cpus, GpuSpec, NodeSpec, SpecError

from .infer_sources import RELEASES, Partial
from .kfdnodes import BUSES, node

SAME = (State.EQUAL, State.RENAMED, State.IGNORED)
KFD = "/sys/class/kfd/kfd/topology"
_LOADED = {name: fixture.load(name) for name in fixture.names()}
FIXTURES = [name for name, spec in _LOADED.items() if not spec.npus and not spec.ppus]
"""Those whose files tell what they are; of NPUs and PPUs only what npu-smi and ppu-smi say does."""


def differing(
    a: Machine | Partial, b: Machine | Partial, only: Sequence[str] = (), *, one_way: bool = False
) -> list[Finding]:
    return [f for f in compare(a, b, ignore=(), only=only, one_way=one_way) if f.state is not State.EQUAL]


@pytest.mark.parametrize("name", FIXTURES)
def test_every_fixture_is_read_back_from_its_machine_file_by_file(name: str) -> None:
    machine = Machine(fixture.load(name))
    found = infer(machine, name).spec
    wrong = {f.path.rpartition("/")[2] for f in differing(machine, Machine(found))}
    bound = all(gpu.bound for gpu in machine.driver.gpus.values())
    # GPUs without a driver have no minors, which tell the order of probing: interrupts are numbered by it.
    assert wrong == (set() if bound else {"irq"})
    assert (found.kernel, found.driver) == (machine.spec.kernel, machine.spec.driver)


@pytest.mark.parametrize("name", FIXTURES)
def test_what_is_written_is_short_and_reads_back_as_the_same_node(name: str) -> None:
    found = infer(Machine(fixture.load(name)), name)
    assert len(found.text().splitlines()) <= 80
    assert fixture.loads(found.text()) == found.spec


@pytest.mark.parametrize("name", ["ascend/910b4", "ppu/zw810e-1"])
def test_a_node_of_other_cards_alone_is_not_taken_for_one_without_accelerators(name: str) -> None:
    with pytest.raises(GpusimError, match="no GPU in this capture"):
        infer(Machine(fixture.load(name)), "others")


@st.composite
def nodes(draw: st.DrawFn) -> NodeSpec:
    """One to three GPUs; shrinks to a single MI355X in SPX."""
    product = draw(
        st.sampled_from(["MI355X", "MI300X", "MI308X", "MI300A", "MI210", "MI350X-VF", "RX7600", "PHOENIX"])
    )
    release = draw(
        st.sampled_from(
            [
                ("6.14", "dkms-6.14.14"),
                ("6.8.0-79-generic", "dkms-6.14.14"),
                ("6.14", "in-tree"),
                ("7.0", "in-tree"),
                ("6.18", "in-tree"),
                ("6.8.0-136-generic", "dkms-6.16.13"),
            ]
        )
    )
    cpus = Cpus(
        nodes=draw(st.integers(1, 3)),
        threads_per_node=draw(st.sampled_from([96, 4])),
        first_apic_ids=draw(st.sampled_from([(0, 128), (0,), (0, 32, 128)])),
        vendor=draw(st.sampled_from(["amd", "intel"])),
        distance=draw(st.sampled_from([32, 21])),
        max_mhz=draw(st.sampled_from([2400, 0])),
        bytes_per_node=draw(st.sampled_from([(1 << 40,), (1 << 36, 1 << 37)])),
        dmi_width=draw(st.sampled_from([64, 72])),
    )
    gpus = []
    for bus in BUSES[: draw(st.integers(1, 3))]:
        mode = draw(st.sampled_from(MODES))
        gpus.append(
            GpuSpec(
                product,
                f"0000:{bus:02x}:00.0",
                numa=draw(st.sampled_from([0, cpus.nodes - 1, -1])),
                mode=mode,
                boot_mode=draw(st.sampled_from([None, None, "SPX"])) if gpus == [] else gpus[0].boot_mode,
                nps=draw(st.sampled_from([1, 1, 2, 4])),
                unique_id=draw(st.sampled_from([None, 1 << 40 | bus])),
                hive_id=draw(st.sampled_from([None, 0])) if gpus == [] else gpus[0].hive_id,
                subsystem=draw(st.sampled_from([None, (0x1028, 0x1234)])),
                fw_version=draw(st.sampled_from([None, 77])),
                vram_used=draw(st.sampled_from([300 << 20, 0])),
            )
        )
    cards = draw(
        st.sampled_from([(), (CardSpec("i915", "0000:00:02.0", vendor=0x8086, device=0xA780, render=True),)])
    )
    return NodeSpec(
        "drawn",
        *release,
        gpus=tuple(gpus),
        cpus=cpus,
        bmc=draw(st.booleans()),
        cards=cards,
        large_bar=draw(st.booleans()) or product == "PHOENIX",
        p2p=draw(st.booleans()),
        pcie_generation=draw(st.sampled_from([5, 4, 3])),
        platform_oem=draw(st.sampled_from([0, 77])),
        kfd_partitions=draw(st.sampled_from(["listed", "listed", "hidden", "truncated"])),
        seed=draw(st.integers(0, 20)),
        cgroup_driver=draw(st.sampled_from(["systemd", "cgroupfs"])),
    )


def possible(spec: NodeSpec) -> NodeSpec:
    """`spec` with GPUs that cannot be as drawn put into SPX and NPS1."""
    try:
        Machine(spec)
    except SpecError:
        spec = replace(spec, gpus=tuple(replace(gpu, mode="SPX", nps=1, boot_mode=None) for gpu in spec.gpus))
    return spec


@given(nodes().map(possible))
def test_any_node_is_read_back(spec: NodeSpec) -> None:
    machine = Machine(spec)
    found = infer(machine, spec.name)
    wrong = [f for f in compare(machine, Machine(found.spec)) if f.state not in SAME]
    assert wrong == [], found.text()


@given(nodes().map(possible))
def test_the_release_is_read_from_traces_where_nothing_says_it(spec: NodeSpec) -> None:
    machine = Machine(spec)
    found = infer(Partial(machine, RELEASES, padded=True), spec.name)
    wrong = [f for f in compare(machine, Machine(found.spec), only=[f"{KFD}/*"]) if f.state not in SAME]
    assert wrong == [], found.text()
    assert any("not recorded" in note and "stands for" in note for note in found.notes)


def test_kfd_alone_is_enough_for_its_own_files() -> None:
    machine = Machine(fixture.load("mi300x/cpx-6.8-bmc-63"))
    found = infer(
        Partial(machine, ["/sys/class/drm", "/sys/bus", "/sys/devices/pci*", "/sys/module", "/proc"])
    )
    assert found.spec.bmc
    assert {gpu.boot_mode for gpu in found.spec.gpus} == {"SPX"}
    assert differing(machine, Machine(found.spec), [f"{KFD}/*"]) == []


def test_another_mode_of_an_inferred_node_is_a_different_valid_tree() -> None:
    found = infer(Machine(fixture.load("mi355x/spx-6.14"))).spec
    other = Machine(replace(found, gpus=tuple(replace(gpu, mode="QPX") for gpu in found.gpus)))
    assert len(list(other.driver.topology.gpu_nodes())) == 32
    assert infer(other).spec.gpus[0].mode == "QPX"


def test_fused_cus_are_read_from_the_l1_caches() -> None:
    fused = {2: (0x0FF, 0x1EF, 0x0F7, 0x1FF)}
    spec = node(modes=["CPX", "CPX"])
    spec = replace(spec, gpus=(spec.gpus[0], replace(spec.gpus[1], fused=fused)))
    found = infer(Machine(spec)).spec
    assert found.gpus[0].fused == {}
    assert found.gpus[1].fused == fused


def test_xgmi_places_are_read_from_the_engines_of_the_links() -> None:
    places = (7, 3, 5, 1, 0, 2, 6, 4)
    spec = node(modes=["SPX"] * 8)
    spec = replace(
        spec, gpus=tuple(replace(g, xgmi_physical=p) for g, p in zip(spec.gpus, places, strict=True))
    )
    machine = Machine(spec)
    found = infer(Partial(machine, ["*/xgmi_physical_id", "*/xgmi_*"])).spec
    assert tuple(gpu_facts(found, index).xgmi_physical for index in range(8)) == places


def test_a_subsystem_is_found_that_gives_the_recorded_gpu_id() -> None:
    spec = node(modes=["QPX"])
    spec = replace(spec, gpus=(replace(spec.gpus[0], subsystem=(0x1002, 0xBEEF)),))
    found = infer(Partial(Machine(spec), ["/sys/bus", "/sys/class/drm", "/sys/devices/pci*", "/sys/module"]))
    assert found.spec.gpus[0].subsystem == (0x1002, 0xBEEF)
    assert any("beef" in note and "gpu_id" in note for note in found.notes)


def test_a_switch_nobody_can_tell_is_said_and_the_rest_stays() -> None:
    machine = Machine(node(modes=["SPX", "SPX"]))
    bdf = machine.spec.gpus[0].bdf
    for mode in (b"DPX", b"QPX", b"SPX"):
        machine.write(f"/sys/bus/pci/devices/{bdf}/current_compute_partition", mode)
    found = infer(machine)
    assert [gpu.bdf for gpu in found.spec.gpus] == [gpu.bdf for gpu in machine.spec.gpus]
    assert any("switches or reloads" in note for note in found.notes)


def test_one_gpu_switched_since_boot_keeps_its_place_in_probe_order() -> None:
    machine = Machine(node(modes=["SPX", "SPX", "SPX"]))
    bdf = machine.spec.gpus[2].bdf
    machine.write(f"/sys/bus/pci/devices/{bdf}/current_compute_partition", b"CPX")
    found = infer(machine)
    assert found.notes == ()
    assert [gpu.boot_mode for gpu in found.spec.gpus] == [None, None, "SPX"]
    assert differing(machine, Machine(found.spec)) == []


def test_a_gpu_of_no_known_product_is_left_out_and_named() -> None:
    machine = Machine(node(modes=["SPX", "SPX"]))
    top = f"{KFD}/nodes/2/properties"
    text = machine.read(top).replace(b"device_id 30115", b"device_id 4660")
    source = Partial(machine, ["/sys/bus", "/sys/class/drm", "/sys/devices/pci*", "/sys/module"], {top: text})
    found = infer(source)
    assert [gpu.bdf for gpu in found.spec.gpus] == [machine.spec.gpus[1].bdf]
    assert any("0x1234" in note for note in found.notes)


def test_a_node_that_is_a_copy_of_another_is_left_out_and_named() -> None:
    recorded = record.record(Machine(fixture.load("vega10/legacy-kernel")))
    nodes = recorded.tree["sys"]["devices"]["virtual"]["kfd"]["kfd"]["topology"]["nodes"]
    nodes["2"] = nodes["1"]
    found = infer(CaptureHost(recorded))
    assert len(found.spec.gpus) == 1
    assert any(note.startswith("KFD node 2 has the address of node 1") for note in found.notes)


def test_a_capture_without_a_gpu_is_refused_with_what_was_seen() -> None:
    with pytest.raises(GpusimError, match="no GPU in this capture"):
        infer(Machine(NodeSpec("bare", "6.14")))
