"""The node around the cards: PPU-HAMi-core put in place, directories swept, and what -check looks at."""

from __future__ import annotations

from typing import Any, cast

import pytest

from devplugin.answers import Prepared, Turn
from devplugin.deeds import RemoveDir, carry_out
from devplugin.hami import Pod
from devplugin.ppu import hostprep, library, ready
from devplugin.ppu.inventory import Library
from devplugin.ppu.settings import Settings
from devplugin.ppu.sweep import PERIOD
from devplugin.ppu.vendor import Ppu as Vendor
from devplugin.ppu.words import ASSETS, CONTAINERS, HOST, PRELOAD
from gpusim.machine import Machine

from .nodes import LIBRARY, device, install, look, node, pod, some

HELD = [[device("GPU-1", 1)]]


def assets(machine: Machine, **files: bytes) -> None:
    """What the image of this plugin has (deploy/image)."""
    for name, data in {
        LIBRARY: b"\x7fELF new",
        PRELOAD: b"/ppu-hami-core/libppu-hami-core.so\n",
        **files,
    }.items():
        machine.mkdir(f"{ASSETS}/{name}".rpartition("/")[0])
        machine.put(f"{ASSETS}/{name}", data)


def prepared(machine: Machine, *pods: Pod) -> Prepared:
    return hostprep.prepare(cast("Any", machine), look(machine), pods)


def test_an_image_without_the_library_has_nothing_to_prepare() -> None:
    assert not Vendor().prepares(look(node()), Settings())


def test_an_image_with_it_puts_it_onto_the_host_the_list_last() -> None:
    machine = node("zw810e-1", hook=False)
    assets(machine, **{"lib/helper.so": b"\x7fELF 2"})
    found = look(machine)
    assert found.assets == ("lib/helper.so", LIBRARY, PRELOAD)
    assert Vendor().prepares(found, Settings())
    done = prepared(machine)
    assert [line.partition(":")[0] for line in done.done] == [
        f"{HOST}/lib/helper.so",
        f"{HOST}/{LIBRARY}",
        f"{HOST}/{PRELOAD}",
    ]
    assert (done.troubles, done.changed, done.fatal) == ((), True, "")
    assert machine.read(f"{HOST}/{LIBRARY}") == b"\x7fELF new"
    assert (machine.stat(f"{HOST}/{LIBRARY}").mode, machine.stat(f"{HOST}/{PRELOAD}").mode) == (0o755, 0o644)
    assert look(machine).library == Library((f"{HOST}/{PRELOAD}", f"{HOST}/{LIBRARY}"))
    again = prepared(machine)
    assert (again.done, again.changed) == ((), False)


def test_a_library_that_pods_use_is_kept_and_they_are_named() -> None:
    machine = node("zw810e-1")
    assets(machine)
    done = prepared(machine, pod(HELD, name="mine"))
    assert machine.read(f"{HOST}/{LIBRARY}") == b"\x7fELF"
    (trouble,) = done.troubles
    assert trouble.startswith(
        f"{HOST}/{LIBRARY}: another than the image's, kept while pods hold PPUs (ns/mine)"
    )
    assert not done.changed
    done = prepared(machine, pod(HELD, phase="Succeeded"), pod([[]], name="without"))
    assert machine.read(f"{HOST}/{LIBRARY}") == b"\x7fELF new"
    assert done.changed


def test_a_library_that_is_missing_is_put_there_even_while_pods_hold_cards() -> None:
    machine = node("zw810e-1", hook=False)
    assets(machine)
    assert prepared(machine, pod(HELD)).troubles == ()
    assert look(machine).library.trouble == ""


def test_a_record_that_cannot_be_read_counts_as_held() -> None:
    assert hostprep.holds(pod([[]], annotations={"hami.io/ppu-devices-allocated": "a,b:;"}))


def test_a_host_that_takes_no_file_is_told_and_keeps_what_it_has() -> None:
    machine = node("zw810e-1")
    assets(machine)

    class Full:
        def __getattr__(self, name: str) -> Any:
            return getattr(machine, name)

        def copy(self, source: str, target: str, mode: int) -> None:
            raise OSError(28, "full", target)

    done = hostprep.prepare(cast("Any", Full()), look(machine), ())
    assert done.troubles == (f"PPU-HAMi-core not installed: {HOST}/{LIBRARY}: ENOSPC",)
    assert (done.fatal, done.changed) == ("", False)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b"/ppu-hami-core/a.so\n", ("a.so",)),
        (b"  /ppu-hami-core/a.so:/ppu-hami-core/b.so\t/lib/c.so # /ppu-hami-core/d.so\n", ("a.so", "b.so")),
        (b"/ppu-hami-core/sub/a.so /ppu-hami-core/sub/a.so", ("sub/a.so",)),
        (b"/ppu-hami-core/./a.so /ppu-hami-core/.. /ppu-hami-core/", ()),
        (b"\xff\xfe/ppu-hami-core/a.so", ()),
    ],
)
def test_the_preload_list_is_read_as_the_linker_reads_it(text: bytes, names: tuple[str, ...]) -> None:
    assert library.preloaded(text) == names


# ------------------------------------------------------------------ the sweep


def swept(machine: Machine, memory: Any, now: float, *pods: Pod) -> tuple[list[str], Any]:
    effects, memory = Vendor().sweep(machine, look(machine), Settings(), Turn(pods, memory, now))
    assert all(isinstance(effect, RemoveDir) for effect in effects)
    for effect in effects:
        carry_out(cast("Any", machine), cast("RemoveDir", effect))
    return sorted(cast("RemoveDir", effect).path.rpartition("/")[2] for effect in effects), memory


def test_directories_of_pods_that_are_gone_are_removed_after_five_minutes() -> None:
    machine = node("zw810e-1")
    for name in ("gone_c", "done_c", "here_c", "here_c.stale-1", "not ours", "gone_c.stale-2"):
        machine.mkdir(f"{CONTAINERS}/{name}")
    machine.put(f"{CONTAINERS}/gone_c/ledger", b"x")
    pods = (pod([[]], uid="here", phase="Running"), pod([[]], uid="done", phase="Failed"))
    found, memory = swept(machine, None, 0.0, *pods)
    assert found == []
    assert swept(machine, memory, 299.0, *pods)[0] == []
    # a pod whose directory was just made may be missing from a list: its time begins anew when it shows up
    _, memory = swept(machine, memory, 299.0, *pods, pod([[]], uid="gone"))
    found, memory = swept(machine, memory, 301.0, *pods)
    assert found == ["done_c"]
    found, memory = swept(machine, memory, 602.0, *pods)
    assert found == ["gone_c", "gone_c.stale-2"]
    assert list(machine.list(CONTAINERS)) == ["here_c", "here_c.stale-1", "not ours"]


def test_the_sweep_comes_every_minute_and_a_node_without_containers_is_clean() -> None:
    assert Vendor().sweeps(Settings()) == PERIOD == 60.0
    assert swept(some(1), None, 0.0) == ([], {})


# ------------------------------------------------------------------ -check


def verdicts(machine: Machine) -> dict[str, str]:
    return {one.name: one.verdict for one in ready.checks(machine, look(machine), Settings())}


def test_a_node_that_is_ready_has_nothing_missing() -> None:
    assert set(verdicts(node()).values()) == {"ok"}


def test_what_is_missing_is_named_with_its_remedy() -> None:
    found = {
        one.name: one
        for one in ready.checks(
            node("zw810e-driver-down", hook=False), look(node("zw810e-driver-down", hook=False)), Settings()
        )
    }
    assert {name for name, one in found.items() if one.verdict == "missing"} == {
        *("ppu-smi", "/dev/alixpu", "/dev/alixpu_ctl", "/dev/alixpu_sep", "PPU-HAMi-core")
    }
    assert "driver is not loaded" in found["ppu-smi"].found
    assert all(one.remedy for one in found.values() if one.verdict != "ok")


def test_a_card_that_the_driver_does_not_list_is_counted_on_the_bus() -> None:
    class Hidden:
        def __init__(self, machine: Machine) -> None:
            self.machine = machine

        def __getattr__(self, name: str) -> Any:
            return getattr(self.machine, name)

        def run(self, argv: Any, **more: Any) -> Any:
            done = self.machine.run(argv, **more)
            lines = done.stdout.splitlines(keepends=True)
            short = b"".join(lines[:-1]) if len(argv) == 3 else done.stdout
            return type(done)(done.status, short, done.stderr)

    host = cast("Any", Hidden(some(3)))
    found = {one.name: one for one in ready.checks(host, look(host), Settings())}
    assert found["PCI bus"].verdict == "warning"
    assert found["PCI bus"].found == "3 PPUs on the bus, ppu-smi lists 2"


def test_a_card_that_is_ill_is_a_warning() -> None:
    machine = some(2)
    before = look(machine)
    machine.ppu_health(1, "Hung")
    found = ready.checks(machine, look(machine, previous=before), Settings())
    assert {one.name: one.verdict for one in found}["PPU 1"] == "warning"


def test_installing_makes_the_check_pass() -> None:
    machine = node(hook=False)
    assert verdicts(machine)["PPU-HAMi-core"] == "missing"
    install(machine)
    assert verdicts(machine)["PPU-HAMi-core"] == "ok"
