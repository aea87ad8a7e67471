"""What the scheduler tells Prometheus: ascend_ppu_hami.md E.2."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpusim.cluster.apistatus import UnreachableError
from gpusim.cluster.pods import container, pod
from gpusim.cluster.scheduler import Scheduler
from gpusim.cluster.scheduler_ascend import ascend_vendors
from gpusim.cluster.scheduler_metrics import Sample, exposition, served
from gpusim.cluster.scheduler_vendors import AMD

MIB = 1 << 20
NODE = "n1"
(B4,) = (row for row in ascend_vendors() if row.word == "Ascend910B4")


def read(text):
    """Name → {labels as sorted pairs: value}."""
    return {
        family.name: {tuple(sorted(s.labels.items())): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
    }


@pytest.fixture
def store(server):
    return server.store


def offer(store):
    facts = {"count": 4, "devcore": 20, "type": B4.word, "health": True}
    listed = [{"id": "npu-0", "devmem": 32768, **facts}, {"id": "npu-1", "index": 1, **facts}]
    counted = {B4.count: "8"}
    store.create(
        "nodes",
        {
            "metadata": {"name": NODE, "annotations": {B4.register: json.dumps(listed)}},
            "status": {"capacity": counted, "allocatable": counted},
        },
    )


def test_devices_and_what_containers_hold_of_them(server, store, stack):
    offer(store)
    scheduler = Scheduler(server.url, vendors=(AMD, B4))
    stack.callback(scheduler.stop)
    limits = {B4.count: 1, B4.memory: 8192}
    store.create(
        "pods",
        pod(
            "p",
            [container("a"), container("b", limits)],
            annotations={"hami.io/use-Ascend910B4-uuid": "npu-0"},
        ),
    )
    store.create("pods", pod("q", annotations={"hami.io/vgpu-node": NODE, B4.allocated: "x,y,z:;"}))
    assert scheduler.schedule_once("p").bound
    found = read(scheduler.metrics())
    labels = {"node": NODE, "device_uuid": "npu-0", "device_index": "0", "device_type": B4.word}
    other = {**labels, "device_uuid": "npu-1", "device_index": "1"}

    def value(name, of=labels, **more):
        return found[name][tuple(sorted({**of, **more}.items()))]

    assert value("hami_gpu_memory_limit_bytes") == 32768 * MIB
    assert value("hami_gpu_core_limit_ratio") == 20
    assert value("hami_gpu_shared_count") == 1
    assert value("hami_gpu_core_allocated_ratio") == 0
    assert value("hami_node_gpu_memory_allocated_ratio") == 25
    assert value("hami_gpu_memory_allocated_bytes", device_cores="0") == 8192 * MIB
    assert value("hami_node_gpu_overview", device_cores="0", device_memory_limit="32768") == 8192 * MIB
    assert value("hami_node_gpu_memory_allocated_ratio", other) == 0
    assert value("hami_gpu_shared_count", other) == 0
    held = {
        "namespace": "default",
        "node": NODE,
        "pod": "p",
        "container_index": "1",
        "device_uuid": "npu-0",
    }
    assert found["hami_vgpu_memory_allocated_bytes"] == {tuple(sorted(held.items())): 8192 * MIB}
    assert found["hami_vgpu_core_allocated_ratio"] == {tuple(sorted(held.items())): 0}
    store.patch("pods", "p", {"status": {"phase": "Succeeded"}}, subresource="status")
    found = read(scheduler.metrics())
    assert value("hami_gpu_shared_count") == 0
    assert "hami_vgpu_memory_allocated_bytes" not in found


def test_labels_are_escaped_and_large_numbers_are_exact():
    awkward = 'a"b\\c\nd'
    text = exposition([Sample("m", {"l": awkward}, (1 << 50) + 1)])
    assert read(text) == {"m": {(("l", awkward),): float((1 << 50) + 1)}}


def test_it_is_served_on_one_path_and_says_when_the_api_is_away():
    answers = ["a 1\n"]

    def text():
        if not answers:
            raise UnreachableError("away")
        return answers.pop()

    with served(text, 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert (answer.status, answer.read()) == (200, b"a 1\n")
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        for path, code in (("/metrics", 503), ("/", 404)):
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5)
            assert error.value.code == code
            error.value.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


@pytest.mark.daemon
def test_the_command_serves_them(server, store):
    offer(store)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        taken = probe.getsockname()[1]
        probe.listen()
        line = [sys.executable, "-m", "gpusim.cli", "scheduler", "--apiserver", server.url, "--metrics-port"]
        done = subprocess.run([*line, str(taken)], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith(f"gpusim scheduler: --metrics-port {taken}: ")
    process = subprocess.Popen([*line, str(taken)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == f"scheduler ready for {server.url}\n"
        with urllib.request.urlopen(f"http://127.0.0.1:{taken}/metrics", timeout=5) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()
