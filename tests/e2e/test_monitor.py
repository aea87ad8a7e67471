"""A real monitor process under a real HTTP client: its life, and that it neither grows nor remembers.

amd.md 11, kernel.md 4; the API server and the machine are simulated, sockets and processes are not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusim.cluster.podcgroups import PodGroups, create, remove
from gpusim.cluster.pods import Placed
from gpusim.export.render import render
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine
from gpusim.serve import Server
from gpusim.testing.machines import node as spec

from ..conftest import ROOT
from ..devplugin.daemon.rig import Plugin, until
from .support_monitor import COMMAND, NODE, OPENMETRICS, Client, Monitored, port, resident

pytestmark = pytest.mark.daemon

MIB = 1 << 20
GIB = 1 << 30
USED = "hami_vgpu_memory_used_bytes"
LIMIT = "hami_vgpu_memory_limit_bytes"
HOST_USED = "hami_host_gpu_memory_used_bytes"


@pytest.fixture
def rig() -> Iterator[Monitored]:
    with Monitored() as made:
        yield made


def served(rig: Monitored, machine: Machine) -> Server:
    return Server(machine, str(rig.path / "m"))


# Life


def test_it_answers_before_the_api_server_does_and_recovers_with_it(rig: Monitored) -> None:
    machine = Machine(load("mi355x/spx-6.14"))
    rig.register(machine)
    rig.server.down()
    with served(rig, machine):
        monitor = rig.start("-simulate", f"unix:{rig.path}/m")
        client = rig.client(monitor)
        assert client.get("/healthz")[0] == 200
        scrape = client.scrape()
        assert (scrape.success, len(scrape.samples)) == (0, 1)
        rig.server.up()
        until(lambda: client.scrape().success == 1, 20, monitor.log.read_text)
        assert len(client.scrape().of(HOST_USED, node=NODE)) == 8
        rig.server.down()
        until(lambda: client.scrape().success == 0, 20)
        assert len(client.scrape().of(HOST_USED)) == 8  # the last answer still serves
        rig.server.up()
        until(lambda: client.scrape().success == 1, 20)
        assert monitor.end() == 0
        assert not any("Traceback" in str(line) for line in monitor.lines())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_even_while_a_client_is_connected(rig: Monitored, number: int) -> None:
    monitor = rig.start("-simulate", "rdna4/rx9070-igpu")
    client = rig.client(monitor)
    client.scrape()
    started = time.monotonic()
    assert monitor.end(number) == 0
    assert time.monotonic() - started < 3
    assert [line["event"] for line in monitor.lines() if line["level"] in ("error", "raw")] == []


def test_a_fixture_of_its_own_and_pages_by_hand(rig: Monitored) -> None:
    rig.register(Machine(load("rdna4/rx9070-igpu")))
    client = rig.client(rig.start("-simulate", "rdna4/rx9070-igpu"))
    until(lambda: client.scrape().success == 1, 20)
    scrape = client.scrape(OPENMETRICS)
    assert sorted(scrape.of("hami_host_gpu_temperature_celsius").values()) == [38, 48]
    assert sorted(scrape.of("hami_host_gpu_power_usage_watts").values()) == [9.087, 49]
    assert {name for name, _ in scrape.samples} == {name for name, _ in client.scrape().samples}
    assert all(name.startswith("hami_") for name, _ in scrape.samples), "no runtime metrics"
    status, kind, page = client.get("/")
    assert (status, kind) == (200, "text/html; charset=utf-8")
    assert 'href="metrics"' in page
    assert client.get("/nothing")[0] == 404


def quit_with(*flags: str, **env: str) -> tuple[int, str]:
    surroundings = {
        **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
        "HOME": "/nonexistent",
        **env,
    }
    done = subprocess.run(
        [*COMMAND, *flags], env=surroundings, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stderr


def test_what_is_refused_is_one_line_and_what_is_no_flag_is_usage() -> None:
    code, said = quit_with()
    assert (code, said.count("\n")) == (1, 1)
    assert "NODE_NAME" in said
    code, said = quit_with("-metrics_bind_address", "9394", NODE_NAME=NODE)
    assert (code, said.count("\n")) == (1, 1)
    assert "-metrics_bind_address='9394'" in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = quit_with("-metrics_bind_address", where, NODE_NAME=NODE)
    assert (code, said.count("\n")) == (1, 1)
    assert where in said
    code, said = quit_with("-simulate", "nothing/such", NODE_NAME=NODE)
    assert (code, said.count("\n")) == (1, 1)
    code, said = quit_with("-cgroup_root", "sys/fs/cgroup", NODE_NAME=NODE)
    assert (code, said.count("\n")) == (1, 1)
    assert "-cgroup_root='sys/fs/cgroup'" in said
    code, said = quit_with("-no_such_flag", NODE_NAME=NODE)
    assert code == 2
    assert "-no_such_flag" in said


def test_without_any_cluster_it_says_so_and_ends() -> None:
    code, said = quit_with(
        "-simulate", "rdna4/rx9070-igpu", "-metrics_bind_address", "127.0.0.1:0", NODE_NAME=NODE
    )
    assert code == 1
    assert "KUBECONFIG" in said
    assert "Traceback" not in said


def test_the_launcher_passes_its_words_on() -> None:
    done = subprocess.run(
        [str(ROOT / "bin" / "vgpu-monitor"), "-help"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0
    for flag in ("-metrics_bind_address", "-cgroup_root", "-drm_root", "-simulate", "-root"):
        assert flag in done.stdout


# Nothing stale


def test_a_pod_and_a_gpu_that_leave_leave_the_next_scrape(rig: Monitored) -> None:
    machine = Machine(spec(gpu={"mode": "QPX"}))
    devices = rig.register(machine, mode="partition")
    bdfs = [device["custominfo"]["pciBDF"] for device in devices]
    placed = Placed(devices[1]["id"], "MI355X", 73728, 0)
    rig.pod("train", {"amd.com/gpu": "1", "amd.com/gpumem": "73728"}, [placed])
    with served(rig, machine):
        remote = RemoteMachine(str(rig.path / "m"))
        groups = create(remote, rig.store.get("pods", "train"))
        rig.started("train", groups)
        client = rig.client(rig.start("-simulate", f"unix:{rig.path}/m"))
        until(lambda: client.scrape().pods == {"train"}, 20)
        process = remote.process(cgroup=groups.containers["c0"])
        remote.open("/dev/kfd", process)
        remote.allocate_vram(process, bdfs[1], GIB)
        scrape = client.scrape()
        assert scrape.one(USED, pod="train", container="c0", device_uuid=placed.id, vdevice_index="0") == GIB
        assert scrape.one(LIMIT, pod="train") == 73728 * MIB
        whole = f"{placed.id[:2]}ff{placed.id[4:]}"
        assert scrape.one(HOST_USED, device_uuid=whole) >= GIB
        remote.write(f"/sys/fs/cgroup{groups.path}/dmem.max", f"drm/{bdfs[1]}/vram {2 * GIB}".encode())
        assert client.scrape().one(LIMIT, pod="train") == 2 * GIB
        remove(remote, groups)
        assert client.scrape().pods == set()
        remote.remove(bdfs[1])
        scrape = client.scrape()
        assert (len(scrape.of(HOST_USED)), scrape.of(HOST_USED, device_uuid=whole)) == (7, {})
        assert scrape.success == 1
        remote.disconnect()


CYCLES = 10_000
PODS = 20


@pytest.mark.timeout(180)
def test_ten_thousand_allocations_under_scrapes_leave_nothing_behind(rig: Monitored) -> None:
    """Containers come and go, processes allocate, free and exit; a client scrapes all the while.

    At every checked moment each series is the one of a pod that is there, with exactly the bytes it has.
    """
    machine = Machine(spec(count=1))
    (device,) = rig.register(machine)
    bdf, identifier = device["custominfo"]["pciBDF"], device["id"]
    limits = {"amd.com/gpu": "1", "amd.com/gpumem": "4096"}
    # The machine is served to the monitor; the cycles go to it directly, under the server's own lock.
    with served(rig, machine) as server:
        groups: dict[str, PodGroups] = {}
        for name in (f"p{i}" for i in range(PODS)):
            rig.pod(name, limits, [Placed(identifier, "MI355X", 4096, 0)])
            groups[name] = create(machine, rig.store.get("pods", name))
            rig.started(name, groups[name])
        monitor = rig.start("-simulate", f"unix:{rig.path}/m")
        checker = rig.client(monitor)
        until(lambda: len(checker.scrape().pods) == PODS, 20, monitor.log.read_text)
        stop, scrapes, failures = threading.Event(), [0], list[BaseException]()

        def scrape_on() -> None:
            client = Client(port(monitor))
            try:
                while not stop.is_set():
                    assert client.scrape(OPENMETRICS if scrapes[0] % 2 else "").success == 1
                    scrapes[0] += 1
            except BaseException as error:
                failures.append(error)
            finally:
                client.close()

        scraper = threading.Thread(target=scrape_on)
        scraper.start()
        sizes: list[int] = []
        try:
            for cycle in range(1, CYCLES + 1):
                name = f"p{cycle % PODS}"
                with server.lock:
                    process = machine.process(cgroup=groups[name].containers["c0"])
                    machine.open("/dev/kfd", process)
                    made = machine.allocate_vram(process, bdf, (1 + cycle % 64) * MIB)
                    if cycle % 50:
                        if cycle % 2:
                            machine.free(made)
                        machine.exit(process)
                if cycle % 50 == 0:
                    check(checker, set(groups), {name: made.bytes})
                    with server.lock:
                        remove(machine, groups.pop(name))  # its process with it
                    check(checker, set(groups), {})
                    with server.lock:
                        groups[name] = create(machine, rig.store.get("pods", name))
                    check(checker, set(groups), {})
                if cycle in (1000, CYCLES):
                    sizes.append(resident(monitor))
                assert not failures, failures
        finally:
            stop.set()
            scraper.join()
        assert sizes[1] <= sizes[0] + 2 * MIB, sizes
        assert scrapes[0] > 100, scrapes
        assert monitor.end() == 0


def check(client: Client, pods: set[str], used: dict[str, int]) -> None:
    scrape = client.scrape()
    assert scrape.pods == pods
    assert {dict(labels)["pod"]: value for labels, value in scrape.of(USED).items()} == {
        **dict.fromkeys(pods, 0),
        **used,
    }


# Speed


@pytest.mark.timeout(180)
def test_a_scrape_of_64_partitions_and_200_containers_takes_less_than_50_ms(rig: Monitored) -> None:
    """Of real files, as on a node: the machine's tree written out (p99 of 300 scrapes)."""
    machine = Machine(load("mi355x/cpx-6.14"))
    devices = rig.register(machine, mode="partition")
    assert len(devices) == 64
    limits = {"amd.com/gpu": "1", "amd.com/gpumem": "36864"}
    for place in range(100):
        pair = [devices[(2 * place + i) % 64] for i in range(2)]
        slots = [[Placed(one["id"], "MI355X", 36864, 0)] for one in pair]
        rig.pod(f"p{place}", limits, *slots)
        groups = create(machine, rig.store.get("pods", f"p{place}"))
        rig.started(f"p{place}", groups)
    root = rig.path / "root"
    render(machine, str(root))
    monitor = rig.start("-root", str(root))
    client = rig.client(monitor)
    until(lambda: client.scrape().success == 1 and len(client.scrape().of(USED)) == 200, 30)
    took = sorted(timed(client, monitor, turn) for turn in range(300))
    assert took[296] < 0.050, [round(took[at] * 1e3, 1) for at in (0, 150, 296, 299)]


def timed(client: Client, monitor: Plugin, turn: int) -> float:
    """Seconds of one scrape, without those in which another program of this computer had the CPU."""
    waited, started = waiting(monitor), time.perf_counter()
    status, _, body = client.get(accept=OPENMETRICS if turn % 2 else "")
    took = time.perf_counter() - started - (waiting(monitor) - waited)
    assert (status, body.count(USED + "{")) == (200, 200)
    return took


def waiting(monitor: Plugin) -> float:
    """Seconds that the monitor's threads and this one stood ready to run and were not let."""
    total = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    for task in Path(f"/proc/{monitor.process.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # ended meanwhile
            total += int((task / "schedstat").read_text().split()[1])
    return total / 1e9


def test_the_directory_of_cards_may_be_mounted_elsewhere(rig: Monitored, tmp_path: Path) -> None:
    machine = Machine(load("mi355x/spx-6.14"))
    rig.register(machine)
    render(machine, str(tmp_path / "node"))
    (tmp_path / "node" / "sys" / "class" / "drm").rename(tmp_path / "node" / "sys" / "class" / "moved")
    client = rig.client(rig.start("-root", str(tmp_path / "node"), "-drm_root", "/sys/class/moved/"))
    until(lambda: client.scrape().success == 1, 20)
    assert len(client.scrape().of(HOST_USED)) == 8
