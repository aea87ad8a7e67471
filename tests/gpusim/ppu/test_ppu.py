"""PPUs on a node: files follow who is there, and what happens to one leaves the others alone."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusim import GpusimError, Machine, NodeSpec, RemoteMachine, load
from gpusim.ppu.ppu import PpuError
from gpusim.ppu.products import PRODUCTS
from gpusim.serve import serve
from gpusim.spec import PpuSpec, SpecError

KERNEL = "5.15.0-101-generic"
COMMON = {"alixpu", "alixpu_ctl", "alixpu_sep"}
BUS = "/sys/bus/pci/devices"
A, B = "0000:05:00.0", "0000:15:00.0"


def node(count: int = 2, **changes: object) -> Machine:
    ppus = tuple(PpuSpec("PPU-ZW810E", f"0000:{i + 1:02x}:00.0") for i in range(count))
    return Machine(NodeSpec("n", KERNEL, ppus=ppus, **changes))  # type: ignore[arg-type]


def nodes(machine: Machine | RemoteMachine) -> set[str]:
    return {name for name in machine.list("/dev") if name.startswith("alixpu")}


def code(machine: Machine, path: str) -> str | None:
    try:
        machine.probe(path)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return None


def described(machine: Machine | RemoteMachine) -> dict[int, dict[str, object]]:
    """Minor → PPU."""
    return {ppu["minor"]: ppu for ppu in machine.describe()["ppus"]["devices"]}  # type: ignore[index]


# Files


def test_every_ppu_has_a_node_by_its_minor_beside_the_three_common_ones() -> None:
    machine = Machine(load("ppu/zw810e-minor-shift"))
    assert nodes(machine) == COMMON | {f"alixpu_ppu{minor}" for minor in range(4)}
    assert all(code(machine, f"/dev/{name}") is None for name in nodes(machine))
    rdev = machine.stat("/dev/alixpu_ppu3").rdev
    assert rdev is not None and rdev[1] == 3


def test_a_pci_directory_says_vendor_class_numa_node_and_driver() -> None:
    machine = Machine(load("ppu/zw810e-8"))
    found = [name for name in machine.list(BUS) if machine.read(f"{BUS}/{name}/vendor") == b"0x1ded\n"]
    assert found == sorted(ppu.bdf for ppu in machine.ppus)
    for ppu in machine.ppus:
        home = f"{BUS}/{ppu.bdf}"
        assert machine.read(f"{home}/class") == b"0x120000\n"
        assert machine.read(f"{home}/numa_node") == f"{ppu.numa}\n".encode()
        assert machine.readlink(f"{home}/driver").endswith("/bus/pci/drivers/alixpu")
        assert ppu.bdf in machine.list("/sys/bus/pci/drivers/alixpu")
        assert machine.read(f"/sys/bus/pci/drivers/alixpu/{ppu.bdf}/vendor") == b"0x1ded\n"
    assert machine.read("/sys/module/alixpu/initstate") == b"live\n"


@pytest.mark.parametrize(
    ("name", "directory"), [("ppu/zw810e-1", "lib64"), ("ppu/zw810e-minor-shift", "lib")]
)
def test_the_sdk_has_its_libraries_in_lib64_or_in_lib(name: str, directory: str) -> None:
    machine = Machine(load(name))
    assert {"libhggc.so", "libhgml.so"} <= set(machine.list(f"/usr/local/PPU_SDK/{directory}"))
    assert [d for d in machine.list("/usr/local/PPU_SDK") if d.startswith("lib")] == [directory]


def test_majors_are_listed_and_nobody_elses() -> None:
    for seed in range(21):
        spec = load("mixed/three-vendors")
        machine = Machine(NodeSpec("n", KERNEL, npus=spec.npus, ppus=spec.ppus, seed=seed))
        rows = [line.split() for line in machine.read("/proc/devices").decode().splitlines()]
        majors = {
            name: int(number)
            for number, name in (row for row in rows if len(row) == 2 and row[0] != "Block")
            if name not in ("devices:",)
        }
        for name in ("alixpu", "alixpu_ctl", "alixpu_sep"):
            assert machine.stat(f"/dev/{name}").rdev == (majors[name], 0)
        assert machine.stat("/dev/alixpu_ppu0").rdev == (majors["alixpu_ppu"], 0)
        assert machine.driver.kfd_major not in majors.values()
        assert len(set(majors.values())) == len(majors)


def test_a_node_without_ppus_has_nothing_of_them_and_says_which_fixture_has() -> None:
    machine = Machine(load("mi210/two-hives"))
    assert "ppus" not in machine.describe()
    assert machine.list("/usr") == []
    with pytest.raises(GpusimError, match="no PPUs: use a fixture with ppus"):
        machine.ppu_vanish(0)
    with pytest.raises(FileNotFoundError):
        machine.run(["ppu-smi", "-L"])


# What happens


def test_a_ppu_that_vanishes_takes_its_node_and_its_directory_and_no_other() -> None:
    machine = Machine(load("ppu/zw810e-minor-shift"))
    before, bus = nodes(machine), set(machine.list(BUS))
    (gone,) = [ppu for ppu in machine.ppus if ppu.minor == 3]
    machine.ppu_vanish(3)
    assert nodes(machine) == before - {"alixpu_ppu3"}
    assert set(machine.list(BUS)) == bus - {gone.bdf}
    assert gone.bdf not in machine.list("/sys/bus/pci/drivers/alixpu")
    assert [described(machine)[minor]["index"] for minor in (2, 3, 0, 1)] == [0, None, 1, 2]
    with pytest.raises(PpuError, match="gone already; let it return first"):
        machine.ppu_vanish(3)
    machine.ppu_return(3)
    assert (nodes(machine), set(machine.list(BUS))) == (before, bus)
    assert described(machine)[3]["uuid"] == gone.uuid
    assert [event["event"] for event in machine.events] == ["ppu vanished", "ppu returned"]


def test_who_holds_a_ppu_that_vanishes_gets_enodev_also_after_it_returned() -> None:
    machine = node()
    process = machine.process()
    held, other = machine.open("/dev/alixpu_ppu0", process), machine.open("/dev/alixpu_ppu1", process)
    common = machine.open("/dev/alixpu_ctl", process)
    machine.ppu_vanish(0)
    for twin in (machine, machine.fork()):
        with pytest.raises(OSError) as caught:
            twin.use(twin.processes.handle(held.number))
        assert caught.value.errno == errno.ENODEV
    machine.ppu_return(0)
    with pytest.raises(OSError):
        machine.use(held)
    machine.use(other)
    machine.use(common)
    machine.use(machine.open("/dev/alixpu_ppu0", process))


def test_a_number_kept_elsewhere_asks_the_driver() -> None:
    machine = node()
    rdev = machine.stat("/dev/alixpu_ppu1").rdev
    assert rdev is not None
    machine.mknod("/run/kept", *rdev)
    assert code(machine, "/run/kept") is None
    machine.ppu_health(1, "Hung")
    assert (code(machine, "/run/kept"), code(machine, "/dev/alixpu_ppu0")) == ("EIO", None)
    machine.ppu_vanish(1)
    assert code(machine, "/run/kept") == "ENODEV"
    machine.ppu_unload()
    assert code(machine, "/run/kept") == "ENXIO"
    machine.ppu_load()
    machine.ppu_return(1)
    assert code(machine, "/run/kept") is None


def test_the_driver_goes_when_nobody_holds_it_and_comes_back() -> None:
    machine = node()
    process = machine.process()
    handle = machine.open("/dev/alixpu", process)
    with pytest.raises(OSError) as caught:
        machine.ppu_unload()
    assert caught.value.errno == errno.EBUSY
    machine.close(handle)
    machine.ppu_unload()
    assert nodes(machine) == set()
    assert b"alixpu" not in machine.read("/proc/devices")
    assert "alixpu" not in machine.list("/sys/module")
    assert machine.read(f"{BUS}/0000:01:00.0/vendor") == b"0x1ded\n"
    assert "driver" not in machine.list(f"{BUS}/0000:01:00.0")
    with pytest.raises(PpuError, match="not loaded already"):
        machine.ppu_unload()
    machine.ppu_load()
    assert nodes(machine) == COMMON | {"alixpu_ppu0", "alixpu_ppu1"}
    with pytest.raises(PpuError, match="loaded already"):
        machine.ppu_load()


def test_what_cannot_be_done_says_what_there_is() -> None:
    machine = node()
    for call, told in (
        (lambda: machine.ppu_health(7, "OK"), "no PPU has minor 7; this node has 0, 1"),
        (lambda: machine.ppu_health(0, "ill"), "use one of OK, Hung"),
        (lambda: machine.ppu_use(0, 98305), "0 to 98304 MiB"),
        (lambda: machine.ppu_use(0, 0, 101), "0 to 100 percent"),
        (lambda: machine.ppu_return(0), "there already; let it vanish first"),
        (lambda: machine.ppu_smi_fails("-x", "no"), "it has table, -L, -q, --query-ppu"),
        (lambda: machine.ppu_smi_fails("-L", "no", 256), "0 to 255"),
        (lambda: machine.ppu_smi_unknown(0, ["minor"]), "minor_number"),
    ):
        with pytest.raises(PpuError, match=told):
            call()  # type: ignore[no-untyped-call]
    assert described(machine) == described(node())


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["vanish", "return", "load", "unload", "hang", "well", "fork"]), st.integers(0, 3)
    ),
    max_size=25,
)


@given(STEPS)
def test_files_and_ppu_smi_always_tell_of_the_same_ppus(steps: list[tuple[str, int]]) -> None:
    machine = Machine(load("ppu/zw810e-minor-shift"))
    present, loaded = [2, 3, 0, 1], True
    hung: set[int] = set()
    order = [2, 3, 0, 1]
    for step, minor in steps:
        try:
            if step == "fork":
                machine = machine.fork()
            elif step in ("hang", "well"):
                machine.ppu_health(minor, "Hung" if step == "hang" else "OK")
                (hung.add if step == "hang" else hung.discard)(minor)
            elif step in ("load", "unload"):
                getattr(machine, f"ppu_{step}")()
                loaded = step == "load"
            else:
                getattr(machine, f"ppu_{step}")(minor)
                present = [
                    m for m in order if (m in present or m == minor) and (step == "return" or m != minor)
                ]
                hung.discard(minor) if step == "return" else None
        except PpuError:
            assert (step in ("load", "unload") and (step == "load") == loaded) or (
                step in ("vanish", "return") and (step == "return") == (minor in present)
            )
        listed = present if loaded else []
        assert nodes(machine) == ({f"alixpu_ppu{m}" for m in listed} | (COMMON if loaded else set()))
        bdfs = {ppu.bdf: ppu.minor for ppu in machine.ppus}
        assert [m for bdf, m in bdfs.items() if bdf in machine.list(BUS)] == present
        lines = machine.run(["ppu-smi", "-L"]).stdout.decode().splitlines()
        uuids = {ppu.minor: ppu.uuid for ppu in machine.ppus}
        if listed:
            assert lines == [f"PPU {i}: PPU (UUID: {uuids[m]})" for i, m in enumerate(listed)]
        else:
            assert lines == ["No devices were found" if loaded else "init HGML error: driver is not loaded"]
        for m in listed:
            assert code(machine, f"/dev/alixpu_ppu{m}") == ("EIO" if m in hung else None)


def test_a_fork_has_ppus_of_its_own_and_a_rewind_brings_them_back() -> None:
    machine = node()
    machine.ppu_use(1, 8192, 4)
    twin = machine.fork()
    assert twin.describe() == machine.describe()
    twin.ppu_vanish(0)
    twin.ppu_use(1, 0)
    assert "alixpu_ppu0" in nodes(machine) and "alixpu_ppu0" not in nodes(twin)
    assert described(machine)[1]["used_mib"] == 8192
    machine.rewind(twin)
    assert machine.describe() == twin.describe()
    machine.ppu_return(0)
    assert "alixpu_ppu0" in nodes(machine) and "alixpu_ppu0" not in nodes(twin)
    assert machine.list(BUS) != twin.list(BUS)


# Over the socket


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Machine, RemoteMachine]]:
    machine = Machine(load("ppu/zw810e-minor-shift"))
    with serve(machine, str(tmp_path / "s")):
        yield machine, RemoteMachine(str(tmp_path / "s"))


def test_a_served_machine_has_every_action(served: tuple[Machine, RemoteMachine]) -> None:
    machine, far = served
    far.ppu_vanish(2)
    far.ppu_use(3, 77, 5)
    far.ppu_health(0, "Hung")
    far.ppu_smi_unknown(1, ["uuid"])
    assert described(far) == described(machine)
    now = described(machine)
    assert (now[2]["present"], now[3]["used_mib"], now[3]["busy"]) == (False, 77, 5)
    assert (now[0]["health"], now[1]["unknown"]) == ("Hung", ["uuid"])
    far.ppu_smi_fails("-L", "broken\n", 3)
    assert far.run(["ppu-smi", "-L"]) == machine.run(["ppu-smi", "-L"])
    assert far.run(["ppu-smi", "-L"]).status == 3
    far.ppu_smi_fails("-L", None)
    given = ["/dev/alixpu", "/dev/alixpu_ctl", "/dev/alixpu_sep", "/dev/alixpu_ppu3"]
    assert far.ppu_smi_inside(["ppu-smi", "-q"], given) == machine.ppu_smi_inside(["ppu-smi", "-q"], given)
    far.ppu_return(2)
    far.ppu_unload()
    assert nodes(far) == set()
    far.ppu_load()
    with pytest.raises(GpusimError, match="no PPU has minor 9; this node has 2, 3, 0, 1"):
        far.ppu_vanish(9)
    with pytest.raises(GpusimError, match="needs /dev/alixpu, too"):
        far.ppu_smi_inside(["ppu-smi", "-L"], ["/dev/alixpu_ppu3"])


# What cannot exist


@pytest.mark.parametrize(
    ("ppus", "path"),
    [
        ([PpuSpec("PPU-X", A)], "ppus[0].product"),
        ([PpuSpec("PPU-ZW810E", A), PpuSpec("PPU-ZW810E", A)], "ppus[1].bdf"),
        ([PpuSpec("PPU-ZW810E", "05:00.0")], "ppus[0].bdf"),
        ([PpuSpec("PPU-ZW810E", A, minor=1), PpuSpec("PPU-ZW810E", B)], "ppus[1].minor"),
        ([PpuSpec("PPU-ZW810E", A, minor=256)], "ppus[0].minor"),
        ([PpuSpec("PPU-ZW810E", A, numa=2)], "ppus[0].numa"),
        ([PpuSpec("PPU-ZW810E", A, uuid="PPU-019ea108-c110-0828-0000-0000c07e1a46")], "ppus[0].uuid"),
        ([PpuSpec("PPU-ZW810E", A, health="fine")], "ppus[0].health"),
        ([PpuSpec("PPU-ZW810E", A, used_mib=98305)], "ppus[0].used_mib"),
        ([PpuSpec("PPU-ZW810E", A, busy=101)], "ppus[0].busy"),
        ([PpuSpec("PPU-ZW810E", A, unknown=("minor",))], "ppus[0].unknown"),
        ([PpuSpec("PPU-ZW810E", f"0000:{i:02x}:00.0") for i in range(17)], "ppus"),
    ],
)
def test_what_cannot_exist_is_refused_and_the_place_told(ppus: list[PpuSpec], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        Machine(NodeSpec("n", KERNEL, ppus=tuple(ppus)))
    assert caught.value.path == path


@pytest.mark.parametrize(
    "changes",
    [{"ppu_driver": "new"}, {"ppu_smi_status": 256}, {"ppu_smi": ("/opt/ppu-smi",)}, {"ppu_sdk": "lib32"}],
)
def test_a_node_that_cannot_exist_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(SpecError) as caught:
        node(1, **changes)
    assert caught.value.path.partition("[")[0] in changes


def test_uuids_begin_with_gpu_and_differ_between_cards_and_seeds() -> None:
    uuids = [ppu.uuid for seed in range(5) for ppu in node(16, seed=seed).ppus]
    assert all(uuid.startswith("GPU-") and "-0000-0000" in uuid for uuid in uuids)
    assert len(set(uuids)) == len(uuids)
    assert [ppu.uuid for ppu in node(3).ppus] == [ppu.uuid for ppu in node(3).ppus]


def test_the_model_has_the_numbers_that_are_recorded() -> None:
    card = PRODUCTS["PPU-ZW810E"]
    assert (card.memory_mib, card.power_watts, card.idle_mib) == (98304, 400, 49)
