"""The PPU monitor's values: whose memory, of which card, never a number nobody wrote (B.8, decision 53)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from devplugin.hami import Pod
from devplugin.linux import LinuxHost
from devplugin.metered import Measured, Watched
from devplugin.ppu.inventory import Inventory
from devplugin.ppu.metrics import SERIES, PpuMonitor, samples
from devplugin.ppu.registered import RegistrationError, indices
from devplugin.ppu.registration import registration
from devplugin.ppu.settings import Settings
from devplugin.ppu.words import CONTAINERS
from gpusim.machine import Machine
from gpusim.ppu.statefile import StateFile

from .nodes import NODE, device, look, node, pod

GIB = 1 << 30


class Host:
    """A simulated node whose container directories are real files: the runtime maps them."""

    def __init__(self, machine: Machine, root: Path) -> None:
        self.machine = machine
        self.files = LinuxHost(str(root))
        self.containers = root / CONTAINERS[1:]
        self.containers.mkdir(parents=True)
        self.states: list[StateFile] = []

    def run(self, *words: Any, **more: Any) -> Any:
        return self.machine.run(*words, **more)

    def stat(self, path: str, *, follow: bool = True) -> Any:
        where = self.files if path.startswith(CONTAINERS) else self.machine
        return where.stat(path, follow=follow)

    def read(self, path: str) -> bytes:
        return self.files.read(path)

    def list(self, path: str) -> Sequence[str]:
        return self.files.list(path)

    def directory(self, uid: str, container: str) -> Path:
        """As Allocate makes it."""
        made = self.containers / f"{uid}_{container}"
        made.mkdir(exist_ok=True)
        return made

    def state(self, uid: str, container: str, *limits: int, sm: int = 30) -> StateFile:
        path = str(self.directory(uid, container) / "ledger")
        made = StateFile(path, limits, (sm,) * len(limits))
        self.states.append(made)
        return made


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(node("zw810e-minor-shift"), tmp_path)
    yield made
    for state in made.states:
        state.close()


@pytest.fixture
def inventory(host: Host) -> Inventory:
    return look(host.machine)


def running(inventory: Inventory, *slots: Sequence[int], **fields: Any) -> Pod:
    """A running pod with a container for each of these lists of indices."""
    asked = [[device(inventory.ppus[n].uuid, 8192, 25) for n in one] for one in slots]
    return pod(asked, **{"phase": "Running", **fields})


def scrape(host: Host, inventory: Inventory, *pods: Pod, **more: Any) -> Measured:
    text = json.dumps(registration(inventory, Settings()))
    watched = Watched(node=NODE, registration=text, pods=pods)
    return samples(cast("Any", host), replace(watched, **more))


def values(measured: Measured, name: str) -> Mapping[tuple[str, ...], float]:
    return {one.labels: one.value for one in measured.samples if one.series.name == name}


USED = "hami_vgpu_memory_used_bytes"
READ = "hami_vgpu_ledger_read_success"


def test_the_series_are_b8s_and_two_about_reading() -> None:
    found = {one.name: one.labels for one in SERIES}
    card = ("device_index", "device_uuid", "device_type")
    share = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
    assert found == {
        "hami_host_gpu_memory_used_bytes": card,
        "hami_host_gpu_utilization_ratio": card,
        USED: share,
        "hami_vgpu_memory_limit_bytes": share,
        "hami_container_device_utilization_ratio": share,
        "hami_vgpu_memory_context_bytes": share,
        "hami_vgpu_memory_module_bytes": share,
        "hami_vgpu_memory_buffer_bytes": share,
        READ: ("namespace", "pod", "container"),
        "hami_vgpumonitor_collect_success": ("node",),
    }
    assert PpuMonitor().series() == SERIES
    assert PpuMonitor().registered_under == "hami.io/node-register-ppu"


def test_every_card_has_what_ppu_smi_shows(host: Host, inventory: Inventory) -> None:
    found = scrape(host, inventory)
    assert found.problems == ()
    labels = [(str(ppu.index), ppu.uuid, "PPU-ZW810E") for ppu in inventory.ppus]
    mib = (49, 8192, 98304, 49)
    assert values(found, "hami_host_gpu_memory_used_bytes") == {
        label: float(one << 20) for label, one in zip(labels, mib, strict=True)
    }
    assert list(values(found, "hami_host_gpu_utilization_ratio").values()) == [0.0, 4.0, 100.0, 0.0]
    assert values(found, "hami_vgpumonitor_collect_success") == {(NODE,): 1.0}


def test_a_containers_numbers_are_its_state_files(host: Host, inventory: Inventory) -> None:
    state = host.state("u1", "c0", 8 * GIB, sm=25)
    state.allocate(0, 3 * GIB)
    state.report(0, 42)
    found = scrape(host, inventory, running(inventory, [1], uid="u1"))
    label = ("ns", "p", "c0", "0", inventory.ppus[1].uuid)
    assert values(found, USED) == {label: 3.0 * GIB}
    assert values(found, "hami_vgpu_memory_limit_bytes") == {label: 8.0 * GIB}
    assert values(found, "hami_container_device_utilization_ratio") == {label: 42.0}
    for name in ("context", "module", "buffer"):
        assert values(found, f"hami_vgpu_memory_{name}_bytes") == {label: 0.0}
    assert values(found, READ) == {("ns", "p", "c0"): 1.0}
    # what containers have counts for more than what the tool says
    host_used = values(found, "hami_host_gpu_memory_used_bytes")
    assert host_used[("1", inventory.ppus[1].uuid, "PPU-ZW810E")] == 3.0 * GIB


def test_indices_are_the_containers_own_whatever_order_the_scheduler_wrote(
    host: Host, inventory: Inventory
) -> None:
    state = host.state("u1", "c0", 1 * GIB, 2 * GIB, 3 * GIB)
    for card in range(3):
        state.allocate(card, card + 1)
    found = scrape(host, inventory, running(inventory, [3, 0, 2], uid="u1"))
    assert values(found, USED) == {
        ("ns", "p", "c0", "0", inventory.ppus[0].uuid): 1.0,
        ("ns", "p", "c0", "1", inventory.ppus[2].uuid): 2.0,
        ("ns", "p", "c0", "2", inventory.ppus[3].uuid): 3.0,
    }


def test_two_containers_of_a_pod_are_told_apart_and_init_containers_are_known(
    host: Host, inventory: Inventory
) -> None:
    host.state("u1", "setup", GIB).allocate(0, 1)
    host.state("u1", "main", GIB).allocate(0, 2)
    mine = running(inventory, [0], [], [1], uid="u1", init_containers=("setup",), containers=("side", "main"))
    found = values(scrape(host, inventory, mine), USED)
    assert {(label[2], label[4]): value for label, value in found.items()} == {
        ("setup", inventory.ppus[0].uuid): 1.0,
        ("main", inventory.ppus[1].uuid): 2.0,
    }


@pytest.mark.parametrize("data", [b"", b"VPPUREGN", b"simVNPU\x01" + bytes(36_952), bytes(36_960)])
def test_a_file_that_cannot_be_read_has_no_number_and_says_so(
    host: Host, inventory: Inventory, data: bytes
) -> None:
    (host.directory("u1", "c0") / "ledger").write_bytes(data)
    good = host.state("u2", "c0", GIB)
    good.allocate(0, 5)
    found = scrape(
        host, inventory, running(inventory, [0], uid="u1"), running(inventory, [0], uid="u2", name="q")
    )
    assert values(found, READ) == {("ns", "p", "c0"): 0.0, ("ns", "q", "c0"): 1.0}
    assert set(values(found, USED)) == {("ns", "q", "c0", "0", inventory.ppus[0].uuid)}
    assert len(found.problems) == 1
    assert values(found, "hami_vgpumonitor_collect_success") == {(NODE,): 0.0}


def test_a_container_that_has_not_begun_to_count_reads_0(host: Host, inventory: Inventory) -> None:
    host.directory("u1", "c0")
    found = scrape(host, inventory, running(inventory, [0], uid="u1"))
    assert values(found, READ) == {("ns", "p", "c0"): 0.0}
    assert values(found, USED) == {}
    assert found.problems == (), "an idle container is nothing that went wrong"


def test_directories_of_other_lives_and_other_pods_are_passed_over(host: Host, inventory: Inventory) -> None:
    for uid, name in (("u1", "c0"), ("gone", "c0"), ("u2", "c0")):
        host.state(uid, name, GIB).allocate(0, 7)
    (host.containers / "u1_c0").rename(host.containers / "u1_c0.stale-1")
    (host.containers / "no directory of ours").mkdir()
    found = scrape(
        host,
        inventory,
        running(inventory, [0], uid="u1"),
        running(inventory, [0], uid="u2", phase="Succeeded"),
    )
    assert values(found, READ) == {}
    assert found.problems == ()


@pytest.mark.parametrize("registered", [None, "", "{}", "[1]", '[{"id":"a"},{"id":"a"}]', "[" * 5000])
def test_without_a_registration_cards_are_still_shown(
    host: Host, inventory: Inventory, registered: str | None
) -> None:
    host.state("u1", "c0", GIB)
    found = scrape(host, inventory, running(inventory, [0], uid="u1"), registration=registered)
    assert len(values(found, "hami_host_gpu_utilization_ratio")) == 4
    assert values(found, USED) == {}
    assert values(found, "hami_vgpumonitor_collect_success") == {(NODE,): 0.0}
    assert any("hami.io/node-register-ppu" in line for line in found.problems)


def test_without_ppu_smi_containers_are_still_shown(host: Host, inventory: Inventory) -> None:
    host.state("u1", "c0", GIB).allocate(0, 9)
    host.machine.ppu_unload()
    found = scrape(host, inventory, running(inventory, [0], uid="u1"))
    assert list(values(found, USED).values()) == [9.0]
    assert values(found, "hami_host_gpu_utilization_ratio") == {}
    assert "driver is not loaded" in found.problems[0]


def test_values_that_ppu_smi_does_not_know_are_left_out(host: Host, inventory: Inventory) -> None:
    host.machine.ppu_smi_unknown(2, ["memory.used", "utilization.ppu"])
    found = scrape(host, inventory)
    assert len(values(found, "hami_host_gpu_memory_used_bytes")) == 3
    assert len(values(found, "hami_host_gpu_utilization_ratio")) == 3
    assert found.problems == ()


@pytest.mark.parametrize(
    "text", ["nonsense", "a,b:;", "GPU-none,PPU,1,1:;", ";"], ids=["no device", "short", "foreign", "no slot"]
)
def test_a_record_that_does_not_tell_the_cards_gives_no_numbers(
    host: Host, inventory: Inventory, text: str
) -> None:
    host.state("u1", "c0", GIB)
    host.state("u1", "c3", GIB)
    mine = running(
        inventory, [0], uid="u1", annotations={"hami.io/ppu-devices-allocated": text}, containers=("c0",)
    )
    assert values(scrape(host, inventory, mine), USED) == {}


def test_the_registration_is_read_back_as_it_was_written(inventory: Inventory) -> None:
    text = json.dumps(registration(inventory, Settings()))
    assert indices(text) == {ppu.uuid: ppu.index for ppu in inventory.ppus}
    with pytest.raises(RegistrationError, match="twice"):
        indices('[{"id":"a"},{"id":"a"}]')
