"""Whole lives of PPU pods, from the webhook to the device node and back, and of daemons killed in the middle.

Everything is real but the machine: daemon processes, kubelet, API server, scheduler, sockets. What containers
got is recounted from their edits by what the simulated driver and runtime make of them. ascend_ppu_hami.md
C.2; decisions 17, 19, 40, 50, 52, 53.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpusim.cluster.apifaults import Fault
from gpusim.ppu import layout
from gpusim.ppu.layout import Card, Slot
from gpusim.ppu.statefile import StateFile

from ..devplugin.daemon.rig import NODE, Plugin, Rig, until
from .support_monitor import COMMAND, Client, port
from .support_ppu import AGENT, COMMON, CONTAINERS, HOST, MEMORY, PHASE, SHARE, PpuNode

pytestmark = pytest.mark.daemon

GIB = 1 << 30
USED, LIMIT = "hami_vgpu_memory_used_bytes", "hami_vgpu_memory_limit_bytes"


@pytest.fixture
def make() -> Iterator[Callable[..., PpuNode]]:
    with ExitStack() as stack:
        yield lambda *args, **named: stack.enter_context(PpuNode(*args, **named))


Make = Callable[..., PpuNode]


# ------------------------------------------------------------------ slices and cards


def test_a_slice_is_limited_and_gets_one_cards_node_and_a_directory_of_its_own(make: Make) -> None:
    node = make()
    node.create("p", node.ppus(memory=24576, cores=25))
    edits = node.runs("p")["c0"]
    ((uuid, mib),) = node.cards(edits)
    assert mib == 24576
    minor = next(ppu.minor for ppu in node.machine.ppus if ppu.uuid == uuid)
    assert [one.host_path for one in edits.devices] == [*COMMON, f"/dev/alixpu_ppu{minor}"]
    uid = node.pod("p")["metadata"]["uid"]
    directory = f"{CONTAINERS}/{uid}_c0"
    assert dict(edits.envs) == {
        "HGGC_DEVICE_MEMORY_LIMIT_0": "24576",
        "HGGC_DEVICE_SM_LIMIT": "25",
        "HGGC_LEDGER_PATH": "/ppu-hami-shmem/ledger",
    }
    assert {(one.container_path, one.host_path, one.read_only) for one in edits.mounts} == {
        ("/ppu-hami-core", HOST, True),
        ("/etc/ld.so.preload", f"{HOST}/ld.so.preload", True),
        ("/ppu-hami-shmem", directory, False),
    }
    assert node.machine.stat(directory).mode == 0o777
    assert node.machine.list(directory) == []
    assert node.annotation("p", PHASE) == "success"
    assert node.unlocked()


def test_slices_fill_every_card_and_what_is_deleted_is_free(make: Make) -> None:
    node = make("ppu/zw810e-minor-shift")
    names = [f"p{number}" for number in range(8)]
    for name in names:
        node.create(name, node.ppus(memory=MEMORY // 2, cores=50))
    taken = node.taken(names)
    assert taken == {ppu.uuid: MEMORY for ppu in node.machine.ppus}
    node.create("late", node.ppus(memory=MEMORY // 2))
    until(lambda: any(e.kind == "unplaced" and e.detail.get("pod") == "late" for e in node.scheduler.events))
    assert node.phase("late") == "Pending"
    freed = node.cards(node.runs("p3")["c0"])
    node.delete("p3")
    assert node.cards(node.runs("late")["c0"]) == freed
    assert node.unlocked()


def test_a_whole_card_is_what_no_other_pod_gets(make: Make) -> None:
    node = make("ppu/zw810e-1")
    node.create("whole", node.ppus(1))
    ((_, mib),) = node.cards(node.runs("whole")["c0"])
    assert mib == MEMORY
    node.create("more", node.ppus(memory=1024))
    until(lambda: any(e.kind == "unplaced" and e.detail.get("pod") == "more" for e in node.scheduler.events))
    node.delete("whole")
    assert node.cards(node.runs("more")["c0"])[0][1] == 1024


def test_several_cards_of_one_container_are_limited_in_the_order_it_counts_them(make: Make) -> None:
    node = make("ppu/zw810e-minor-shift")
    node.create("small", node.ppus(memory=MEMORY - 100))
    node.create("p", node.ppus(3, memory=500, cores=10))
    cards = node.cards(node.runs("p")["c0"])
    order = [ppu.uuid for ppu in node.machine.ppus]
    assert [mib for _, mib in cards] == [500, 500, 500]
    assert [uuid for uuid, _ in cards] == sorted((uuid for uuid, _ in cards), key=order.index)
    assert len({uuid for uuid, _ in cards}) == 3


def test_containers_of_a_pod_have_limits_indices_and_state_files_of_their_own(make: Make) -> None:
    node = make()
    node.create("p", node.ppus(memory=1000, cores=10), None, node.ppus(2, memory=2000, cores=20))
    edits = node.runs("p")
    assert [mib for _, mib in node.cards(edits["c0"])] == [1000]
    assert [mib for _, mib in node.cards(edits["c2"])] == [2000, 2000]
    assert not edits["c1"].envs
    assert not edits["c1"].devices
    uid = node.pod("p")["metadata"]["uid"]
    assert node.directories() == [f"{uid}_c0", f"{uid}_c2"]
    assert node.annotation("p", PHASE) == "success"
    assert node.annotation("p", "hami.io/ppu-devices-to-allocate") in {";;;", ";;", ""}
    assert node.unlocked()


def test_memory_may_be_a_percentage_and_the_count_may_be_left_out(make: Make) -> None:
    node = make()
    node.create("p", {**node.ppus(1), SHARE: 25})
    assert node.cards(node.runs("p")["c0"])[0][1] == MEMORY // 4
    node.create("q", {node.row.memory: 4096})
    assert node.cards(node.runs("q")["c0"])[0][1] == 4096


def test_the_configurations_numbers_and_names_hold_for_plugin_and_scheduler(make: Make) -> None:
    block = {
        "deviceSplitCount": 4,
        "deviceMemoryScaling": 1.5,
        "deviceCoreScaling": 2.0,
        "resourceCountName": "example.com/ppu",
    }
    node = make("ppu/zw810e-1", block=block)
    assert node.kubelet.capacity("example.com/ppu") == 4
    (entry,) = node.registered()
    assert (entry["count"], entry["devmem"], entry["devcore"]) == (4, 147456, 200)
    for name in ("a", "b", "c"):
        node.create(name, node.ppus(memory=49152, cores=60))
    assert list(node.taken(("a", "b", "c")).values()) == [147456]
    node.create("d", node.ppus(memory=1))
    until(lambda: any(e.kind == "unplaced" and e.detail.get("pod") == "d" for e in node.scheduler.events))


# ------------------------------------------------------------------ refusals


def test_without_the_library_a_pod_is_refused_its_owner_told_and_the_next_one_runs(make: Make) -> None:
    node = make(hook=False)
    node.create("p", node.ppus(memory=1000))
    message = node.fails("p")
    assert "/usr/local/ppu-hami-core/ld.so.preload: ENOENT: nothing would limit" in message
    assert "put PPU-HAMi-core into /usr/local/ppu-hami-core" in message
    assert node.annotation("p", PHASE) == "failed"
    assert node.unlocked()
    assert node.directories() == []
    (told,) = until(lambda: [text for reason, text in node.events() if reason == "AllocateRefused"])
    assert "nothing would limit the container's memory; put PPU-HAMi-core into" in told
    node.delete("p")
    node.install()
    node.plugin.end()
    node.plugin = node.launch_ppu()
    node.create("q", node.ppus(memory=1000))
    assert node.cards(node.runs("q")["c0"])[0][1] == 1000


def test_a_library_that_is_taken_away_later_is_missed_by_the_next_pod(make: Make) -> None:
    node = make()
    node.create("p", node.ppus(memory=1000))
    node.runs("p")
    node.machine.unlink(f"{HOST}/libppu.so")
    node.create("q", node.ppus(memory=1000))
    assert "libppu.so" in node.fails("q")
    assert node.phase("p") == "Running"
    assert node.unlocked()


# ------------------------------------------------------------------ killed in the middle


def test_killed_in_the_middle_of_an_allocate_nothing_is_lost(make: Make) -> None:
    node = make()
    node.create("before", node.ppus(memory=1000))
    node.runs("before")
    node.server.faults.add(Fault(verb="patch", resource="pods", agent=AGENT, action="drop", delay=2.0))
    node.create("p", node.ppus(memory=2000))
    until(lambda: node.annotation("p", PHASE) == "allocating")
    time.sleep(0.3)
    node.plugin.end(signal.SIGKILL)
    node.plugin = node.launch_ppu()
    assert node.ends_in("p") in {"Running", "Failed"}
    assert node.unlocked()
    node.create("after", node.ppus(memory=3000))
    assert node.cards(node.runs("after", 60)["c0"])[0][1] == 3000
    assert node.phase("before") == "Running"
    assert node.unlocked()


def test_a_successor_offers_and_serves_the_same(make: Make) -> None:
    node = make("ppu/zw810e-minor-shift")
    node.create("p", node.ppus(memory=MEMORY // 2))
    held = node.cards(node.runs("p")["c0"])
    before = node.registered()
    for number in (signal.SIGKILL, signal.SIGTERM):
        node.plugin.end(number)
        node.plugin = node.launch_ppu()
        assert node.registered() == before
    node.create("q", node.ppus(1))
    assert node.cards(node.runs("q")["c0"])[0][0] != held[0][0]


def test_a_kubelet_that_restarts_finds_plugin_and_pods_again(make: Make) -> None:
    node = make()
    node.create("p", node.ppus(memory=1000))
    node.runs("p")
    node.kubelet.restart()
    until(lambda: node.kubelet.allocatable(node.row.count) == 16, 20)
    node.create("q", node.ppus(memory=2000))
    assert node.cards(node.runs("q")["c0"])[0][1] == 2000
    assert node.phase("p") == "Running"


# ------------------------------------------------------------------ the monitor


def monitor(rig: Rig, *flags: str) -> Plugin:
    """A monitor process of the node."""
    saved, rig.command = rig.command, COMMAND
    plugin = Plugin(
        [*COMMAND, "-vendor=ppu", "-metrics_bind_address=127.0.0.1:0", *flags],
        {"NODE_NAME": NODE, "KUBECONFIG": str(rig.path / "kubeconfig"), "PATH": "/usr/bin:/bin"},
        rig.path / "monitor.log",
    )
    rig.plugins.append(plugin)
    rig.command = saved
    return plugin


def test_the_monitor_shows_what_pods_use_and_stops_when_they_are_gone(make: Make) -> None:
    node = make("ppu/zw810e-minor-shift")
    node.create("p", node.ppus(2, memory=8192))
    edits = node.runs("p")["c0"]
    cards = node.cards(edits)
    client = Client(port(monitor(node, "-simulate", f"unix:{node.socket}")))
    read = {"namespace": "default", "pod": "p", "container": "c0"}
    until(lambda: client.scrape().of("hami_vgpu_ledger_read_success", **read), 15)
    assert client.scrape().one("hami_vgpu_ledger_read_success", **read) == 0.0  # nobody counted yet
    counted = [Card(8 * GIB, 3, 0, 55, (Slot(0, 7, GIB), Slot(1, 8, 2))), Card(8 * GIB)]
    node.machine.put(node.state_of(edits), layout.write(counted))
    scrape = client.scrape()
    assert scrape.one("hami_vgpu_ledger_read_success", **read) == 1.0
    for place, (uuid, _) in enumerate(cards):
        of = {**read, "vdevice_index": str(place), "device_uuid": uuid}
        assert scrape.one(USED, **of) == (GIB + 2 if place == 0 else 0)
        assert scrape.one(LIMIT, **of) == 8 * GIB
    busy = "hami_container_device_utilization_ratio"
    assert scrape.one(busy, **read, vdevice_index="0") == 55
    assert scrape.success == 1.0
    assert len(scrape.of("hami_host_gpu_memory_used_bytes")) == 4
    node.machine.put(node.state_of(edits), b"VPPUREGN, cut")
    scrape = client.scrape()
    assert scrape.one("hami_vgpu_ledger_read_success", **read) == 0.0
    assert not scrape.of(USED)
    node.delete("p")
    until(lambda: not client.scrape().of("hami_vgpu_ledger_read_success"), 15)
    assert client.scrape().success == 1.0
    client.close()


WRITER = """
import sys
from gpusim.ppu.statefile import StateFile
state = StateFile(sys.argv[1])
state.allocate(0, int(sys.argv[2]))
print("charged", flush=True)
sys.stdin.read()
"""


def test_the_monitor_reads_real_state_files_that_other_processes_write(tmp_path: Path) -> None:
    """On a directory with ppu-smi as a script: in the monitor's process nothing is simulated."""
    root = tmp_path / "node"
    tool = root / "usr/local/bin/ppu-smi"
    tool.parent.mkdir(parents=True)
    uuid = "GPU-019ea108-c110-0828-0000-0000c07e1a46"
    tool.write_text(
        "#!/bin/sh\n"
        f'if [ -n "$1" ]; then echo "0, PPU-ZW810E, {uuid}, 00000000:05:00.0, 98304"; else\n'
        "echo '|   0  PPU-ZW810E | 00000000:05:00.0 | 4% |'\n"
        "echo '|      400W | 49MiB / 98304MiB | |'; fi\n"
    )
    tool.chmod(0o755)
    with Rig() as rig, ExitStack() as stack:
        rig.store.patch(
            "nodes",
            NODE,
            {"metadata": {"annotations": {"hami.io/node-register-ppu": f'[{{"id":"{uuid}"}}]'}}},
        )
        slot = f"{uuid},PPU-ZW810E,8192,0:;"
        rig.store.create(
            "pods",
            {
                "metadata": {"name": "p", "annotations": {"hami.io/ppu-devices-allocated": slot}},
                "spec": {"nodeName": NODE, "containers": [{"name": "c0", "image": "i"}]},
            },
        )
        running = {"phase": "Running", "containerStatuses": [{"name": "c0", "containerID": "containerd://1"}]}
        rig.store.patch("pods", "p", {"status": running}, subresource="status")
        directory = root / f"{CONTAINERS[1:]}/{rig.pod('p')['metadata']['uid']}_c0"
        directory.mkdir(parents=True)
        path = directory / "ledger"
        StateFile(str(path), (8 * GIB,), (30,)).close()
        client = Client(port(monitor(rig, "-root", str(root))))
        stack.callback(client.close)
        until(lambda: client.scrape().of("hami_vgpu_ledger_read_success"), 15)
        scrape = client.scrape()
        assert (scrape.one(USED), scrape.one(LIMIT), scrape.success) == (0.0, 8 * GIB, 1.0)
        assert scrape.one("hami_host_gpu_memory_used_bytes") == 49 << 20
        assert scrape.one("hami_host_gpu_utilization_ratio") == 4
        writers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WRITER, str(path), str(size)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for size in (GIB, 2 * GIB)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "charged\n"
        scrape = client.scrape()
        assert scrape.one(USED) == 3 * GIB
        assert scrape.one("hami_host_gpu_memory_used_bytes") == 3 * GIB
        writers[0].kill()
        writers[0].wait()
        assert client.scrape().one(USED) == 3 * GIB  # a dead process counts until its container sweeps it
        path.write_bytes(path.read_bytes()[:20_000])
        scrape = client.scrape()
        assert (scrape.of(USED), scrape.success) == ({}, 0.0)
        for writer in writers[1:]:
            writer.kill()
