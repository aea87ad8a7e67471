"""The monitor in the plugin's process: whose memory, of which card, and never a number nobody wrote."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devplugin.ascend import metrics
from devplugin.ascend.inventory import Inventory
from devplugin.ascend.metrics import SERIES, samples
from devplugin.ascend.smi import Load, loads
from devplugin.hami import Pod
from devplugin.linux import LinuxHost
from devplugin.metered import Measured
from gpusim.ascend.ledger import Ledger
from gpusim.ascend.ledger140 import Ledger140, create
from gpusim.ascend.shm import MIB
from gpusim.machine import Machine

from . import npupods
from .nodes import chosen, look, node

GIB = 1 << 30
SOFT = chosen(soft=True)


class Host:
    """A simulated node whose container directories are real files: the runtime maps them."""

    def __init__(self, machine: Machine, root: Path) -> None:
        self.machine = machine
        self.files = LinuxHost(str(root))
        self.containers = root / SOFT.containers[1:]
        self.containers.mkdir(parents=True)

    def run(self, *words: Any, **more: Any) -> Any:
        return self.machine.run(*words, **more)

    def stat(self, path: str, *, follow: bool = True) -> Any:
        where = self.files if path.startswith(SOFT.containers) else self.machine
        return where.stat(path, follow=follow)

    def read(self, path: str) -> bytes:
        return self.files.read(path)

    def list(self, path: str) -> Sequence[str]:
        return self.files.list(path)

    def ledger(self, uid: str, container: str) -> str:
        """Where a container's ledger is, its directory made as Allocate makes it."""
        directory = self.containers / f"{uid}_{container}"
        directory.mkdir(exist_ok=True)
        return str(directory / "vnpu_local_shmem")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(node("910b4-soft"), tmp_path)


@pytest.fixture
def inventory(host: Host) -> Inventory:
    return look(host.machine, SOFT)


def soft(inventory: Inventory, *slots: Sequence[int], **fields: Any) -> Pod:
    """A running soft pod with a container for each of these lists of logic ids."""
    devices = [
        [npupods.device(inventory.npus[n].uuid, 8192, 25, "Ascend910B4") for n in one] for one in slots
    ]
    return npupods.pod(devices, None, chip=npupods.B4, **{"phase": "Running", **fields})


def seen(host: Host, inventory: Inventory, *pods: Pod) -> Measured:
    return samples(host, inventory, SOFT, pods)  # type: ignore[arg-type]


def values(measured: Measured, series: Any) -> dict[tuple[str, ...], float]:
    return {sample.labels: sample.value for sample in measured.samples if sample.series is series}


def use(path: str, *bytes_of: int, limit: int = 8 * GIB, pid: int = 1) -> Ledger:
    """A process of the container that has so much on each device."""
    ledger = Ledger(path, (limit,) * len(bytes_of), pid=pid, alive=lambda *_: True)
    for device, size in enumerate(bytes_of):
        ledger.set_device(device)
        if size:
            ledger.commit(ledger.reserve(size), (pid, device))
    return ledger


def test_a_containers_memory_is_told_device_by_device_and_its_limit_with_it(
    host: Host, inventory: Inventory
) -> None:
    pod = soft(inventory, [2, 5])
    use(host.ledger(pod.uid, "c0"), 3 * GIB, 1 * GIB)
    found = seen(host, inventory, pod)
    first, second = inventory.npus[2].uuid, inventory.npus[5].uuid
    assert values(found, metrics.USED) == {
        ("ns", "p", "c0", "0", first): 3.0 * GIB,
        ("ns", "p", "c0", "1", second): 1.0 * GIB,
    }
    assert set(values(found, metrics.LIMIT).values()) == {8.0 * GIB}
    assert values(found, metrics.READ) == {("ns", "p", "c0"): 1.0}
    for series in (metrics.CONTEXT, metrics.MODULE, metrics.BUFFER):
        assert set(values(found, series).values()) == {0.0}
    assert not found.problems


def test_the_ledgers_index_is_the_rank_by_physical_id_whatever_the_annotations_order(
    host: Host, inventory: Inventory
) -> None:
    pod = soft(inventory, [5, 2])
    use(host.ledger(pod.uid, "c0"), 3 * GIB, 0)
    lower = min(inventory.npus[2], inventory.npus[5], key=lambda npu: npu.phy)
    used = values(seen(host, inventory, pod), metrics.USED)
    assert {labels[4]: value for labels, value in used.items() if value} == {lower.uuid: 3.0 * GIB}


def test_each_container_of_a_pod_shows_its_own_devices_init_containers_first(
    host: Host, inventory: Inventory
) -> None:
    pod = soft(inventory, [0], [1], [2], init_containers=("prepare",), containers=("one", "two"))
    for n, name in enumerate(("prepare", "one", "two")):
        use(host.ledger(pod.uid, name), (n + 1) * GIB)
    found = values(seen(host, inventory, pod), metrics.USED)
    assert found == {
        ("ns", "p", name, "0", inventory.npus[n].uuid): (n + 1.0) * GIB
        for n, name in enumerate(("prepare", "one", "two"))
    }


def test_processes_of_a_container_are_added_up(host: Host, inventory: Inventory) -> None:
    pod = soft(inventory, [0])
    path = host.ledger(pod.uid, "c0")
    use(path, 1 * GIB, pid=1)
    use(path, 2 * GIB, pid=2)
    assert set(values(seen(host, inventory, pod), metrics.USED).values()) == {3.0 * GIB}


def test_a_v140_file_is_read_too(host: Host, inventory: Inventory) -> None:
    pod = soft(inventory, [0])
    path = host.ledger(pod.uid, "c0")
    create(path, 8 * GIB)
    client = Ledger140(path, 7, alive=lambda _: True)
    client.commit(client.reserve(2 * GIB), "h")
    found = seen(host, inventory, pod)
    assert set(values(found, metrics.USED).values()) == {2.0 * GIB}
    assert set(values(found, metrics.LIMIT).values()) == {8.0 * GIB}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:1159],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"\0",
        lambda data: b"\xff" * len(data),
        lambda data: b"",
        lambda data: (
            data[:24] + (int.from_bytes(data[24:32], "little") | 1).to_bytes(8, "little") + data[32:]
        ),
    ],
    ids=["short", "half", "long", "foreign", "empty", "torn"],
)
def test_a_file_that_cannot_be_believed_gives_success_0_and_no_number(
    damage: Callable[[bytes], bytes], host: Host, inventory: Inventory
) -> None:
    pod = soft(inventory, [0])
    path = Path(host.ledger(pod.uid, "c0"))
    use(str(path), 1 * GIB)
    path.write_bytes(damage(path.read_bytes()))
    found = seen(host, inventory, pod)
    assert values(found, metrics.READ) == {("ns", "p", "c0"): 0.0}
    owned = [s for s in found.samples if s.labels[:3] == ("ns", "p", "c0") and s.series is not metrics.READ]
    assert owned == []
    (problem,) = found.problems
    assert "pod ns/p, container c0" in problem


def test_a_young_directory_without_a_ledger_has_no_number_yet(host: Host, inventory: Inventory) -> None:
    pod = soft(inventory, [0])
    host.ledger(pod.uid, "c0")
    found = seen(host, inventory, pod)
    assert values(found, metrics.READ) == {("ns", "p", "c0"): 0.0}
    assert not values(found, metrics.USED)


def test_a_bad_container_hides_no_other(host: Host, inventory: Inventory) -> None:
    good, bad = soft(inventory, [0], name="good", uid="u1"), soft(inventory, [1], name="bad", uid="u2")
    use(host.ledger("u1", "c0"), 1 * GIB)
    Path(host.ledger("u2", "c0")).write_bytes(b"?")
    found = seen(host, inventory, good, bad)
    assert values(found, metrics.READ) == {("ns", "good", "c0"): 1.0, ("ns", "bad", "c0"): 0.0}
    assert len(values(found, metrics.USED)) == 1


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_or_that_nobody_knows_shows_nothing_and_keeps_its_directory(
    phase: str, host: Host, inventory: Inventory
) -> None:
    path = host.ledger("0000-uid", "c0")
    use(path, 1 * GIB)
    for pods in ((soft(inventory, [0], phase=phase),), ()):
        found = seen(host, inventory, *pods)
        assert not values(found, metrics.USED)
        assert not found.problems
        assert Path(path).exists()


def test_a_directory_moved_aside_is_of_an_earlier_life(host: Host, inventory: Inventory) -> None:
    pod = soft(inventory, [0])
    use(host.ledger(pod.uid, "c0"), 1 * GIB)
    old = host.containers / f"{pod.uid}_c0"
    old.rename(old.with_name(f"{old.name}.stale-1"))
    use(host.ledger(pod.uid, "c0"), 2 * GIB)
    assert set(values(seen(host, inventory, pod), metrics.USED).values()) == {2.0 * GIB}


def test_a_card_shows_what_its_containers_have_or_else_what_npu_smi_says(
    host: Host, inventory: Inventory
) -> None:
    pod = soft(inventory, [0])
    use(host.ledger(pod.uid, "c0"), 5 * GIB)
    found = values(seen(host, inventory, pod), metrics.HOST_USED)
    cards = {labels[1]: value for labels, value in found.items()}
    assert cards[inventory.npus[0].uuid] == 5.0 * GIB
    assert cards[inventory.npus[1].uuid] == host.machine.npus.at(1, 0).used_mib * float(MIB)
    assert {labels[2] for labels in found} == {"Ascend-910B4"}
    assert {labels[0] for labels in found} == {str(n) for n in range(8)}


def test_an_npu_smi_that_fails_costs_the_cards_and_no_container(host: Host, inventory: Inventory) -> None:
    pod = soft(inventory, [0])
    use(host.ledger(pod.uid, "c0"), 1 * GIB)
    host.machine.npu_smi_fails("info", "dcmi module initialize failed. ret is -8005\n")
    found = seen(host, inventory, pod)
    assert not values(found, metrics.HOST_USED)
    assert set(values(found, metrics.USED).values()) == {1.0 * GIB}
    assert set(values(found, metrics.BUSY).values()) == {0.0}, "an unknown card is not busy (B.8)"
    assert any("npu-smi info" in problem for problem in found.problems)


def test_a_device_the_node_lost_is_told_and_no_other_is_shown_in_its_place(
    host: Host, inventory: Inventory
) -> None:
    pod = soft(inventory, [0, 1])
    use(host.ledger(pod.uid, "c0"), 1 * GIB, 2 * GIB)
    without = replace(inventory, npus=inventory.npus[1:])
    found = seen(host, without, pod)
    assert not values(found, metrics.USED)
    assert any("does not have any more" in problem for problem in found.problems)


def test_a_priority_that_is_no_priority_changes_nothing(host: Host, inventory: Inventory) -> None:
    """HAMi 2931: nothing in a file that containers write is an index or a size."""
    pod = soft(inventory, [0])
    path = Path(host.ledger(pod.uid, "c0"))
    use(str(path), 1 * GIB)
    data = bytearray(path.read_bytes())
    data[256:264] = (2**31 - 1).to_bytes(8, "little")
    path.write_bytes(data)
    assert set(values(seen(host, inventory, pod), metrics.USED).values()) == {1.0 * GIB}


def test_no_two_samples_have_the_same_series_and_labels_and_every_one_is_declared(
    host: Host, inventory: Inventory
) -> None:
    pods = [soft(inventory, [n, n + 1], name=f"p{n}", uid=f"u{n}") for n in range(5)]
    for pod in pods:
        use(host.ledger(pod.uid, "c0"), GIB, GIB)
    found = seen(host, inventory, *pods).samples
    assert len({(sample.series.name, sample.labels) for sample in found}) == len(found)
    assert {sample.series for sample in found} == set(SERIES)
    assert all(len(sample.labels) == len(sample.series.labels) for sample in found)


def test_the_overviews_numbers_are_those_of_every_kind_of_chip() -> None:
    for fixture, busy in (("910b4", 0), ("310p3", 0), ("910c", 0)):
        machine = node(fixture)
        text = machine.run(["npu-smi", "info"]).stdout.decode()
        wanted = {(npu.card, npu.number): Load(busy, npu.used_mib) for npu in machine.npus}
        assert loads(text) == wanted


@contextmanager
def writing(*works: Callable[[], None]) -> Iterator[None]:
    """Other processes at work meanwhile."""
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            try:
                while True:
                    work()
            finally:
                os._exit(1)
        children.append(child)
    try:
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_while_other_processes_write_a_number_is_one_that_stood_there(
    host: Host, inventory: Inventory
) -> None:
    """v1.4.1 beside v1.4.0: on each device 1 GiB lies still, another comes and goes."""
    new, old = soft(inventory, [0, 1], name="new", uid="u1"), soft(inventory, [2], name="old", uid="u2")
    path = host.ledger("u1", "c0")
    use(path, GIB, GIB, limit=8 * GIB, pid=1)
    legacy = host.ledger("u2", "c0")
    create(legacy, 8 * GIB)
    resting = Ledger140(legacy, 5, alive=lambda _: True)
    resting.commit(resting.reserve(GIB), "h")

    def come_and_go() -> None:
        ledger = Ledger(path, None, pid=2, alive=lambda *_: True)
        for _ in range(1000):
            ledger.set_device(random.randrange(2))
            ledger.commit(ledger.reserve(GIB), "h")
            ledger.free("h")

    def the_same_as_before() -> None:
        client = Ledger140(legacy, 6, alive=lambda _: True)
        for _ in range(1000):
            client.commit(client.reserve(GIB), "h")
            client.free("h")

    looks = 0
    with writing(come_and_go, the_same_as_before):
        until = time.monotonic() + 3
        while time.monotonic() < until:
            found = seen(host, inventory, new, old)
            for labels, value in values(found, metrics.USED).items():
                assert value in (1.0 * GIB, 2.0 * GIB), labels
            for labels, value in values(found, metrics.LIMIT).items():
                assert value == 8.0 * GIB, labels
            looks += sum(values(found, metrics.READ).values()) == 2
    assert looks > 10, "it was read while they wrote"
