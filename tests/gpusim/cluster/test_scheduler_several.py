"""Several vendors on one node and in one pod, on an API server: ascend_ppu_hami.md D.4, D.7 to D.9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC

import pytest
import yaml

from gpusim.cluster.apifaults import Fault
from gpusim.cluster.pods import LOCK, container, pod
from gpusim.cluster.scheduler import Scheduler
from gpusim.cluster.scheduler_ascend import MODE_KEY, shipped
from gpusim.cluster.scheduler_block import BadDeviceConfigError
from gpusim.cluster.scheduler_config import config_vendors, read_config
from gpusim.cluster.scheduler_filter import Rules
from gpusim.cluster.scheduler_vendors import AMD
from gpusim.cluster.scheduler_webhook import admit

NODE = "n1"
NOW = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00Z"
CONFIG = {**shipped(), "alibaba": {"deviceSplitCount": 2}, "nvidia": {"resourceCountName": "nvidia.com/gpu"}}
ROWS = {row.word: row for row in (AMD, *config_vendors(CONFIG))}
B4, PPU = ROWS["Ascend910B4"], ROWS["ppu"]
GPU = {"amd.com/gpu": 1, "amd.com/gpumem": 100, "amd.com/gpucores": 10}
NPU = {B4.count: 1, B4.memory: 8000}
CARD = {PPU.count: 1, PPU.memory: 500, PPU.cores: 20}
TYPES = {"amd": "AMD_Instinct_MI300X", B4.word: B4.word, "ppu": "PPU-ZW810E"}


@pytest.fixture
def store(server):
    return server.store


@pytest.fixture
def make(stack, server):
    def made(**settings):
        settings = {"now": lambda: NOW, "zone": UTC, "sleep": lambda s: None, **settings}
        scheduler = Scheduler(server.url, vendors=tuple(ROWS.values()), **settings)
        stack.callback(scheduler.stop)
        return scheduler

    return made


def device(word):
    facts = {"count": 4, "devmem": 32768, "devcore": 100, "type": TYPES[word], "health": True}
    return {"id": f"{word}-0", **facts}


def offer(store, *words, name=NODE, **marks):
    rows = [ROWS[word] for word in words]
    annotations = {row.register: json.dumps([device(row.word)]) for row in rows} | marks
    annotations |= {row.handshake: "Reported_2027.01.15 07:59:59" for row in rows if row.handshake}
    counted = {row.count: "4" for row in rows}
    store.create(
        "nodes",
        {
            "metadata": {"name": name, "annotations": annotations},
            "status": {"capacity": counted, "allocatable": counted},
        },
    )


def want(store, name, *limits, **more):
    body = pod(name, [container(f"c{i}", one) for i, one in enumerate(limits)], **more)
    admitted = admit(body, tuple(ROWS.values()))
    assert not admitted.denied
    return store.create("pods", admitted.pod)


def notes(store, name="p"):
    return store.get("pods", name)["metadata"].get("annotations") or {}


def lock_of(store):
    return store.get("nodes", NODE)["metadata"]["annotations"].get(LOCK)


def test_an_ascend_pod_is_annotated_with_its_slices(store, make):
    offer(store, B4.word)
    want(store, "p", NPU)
    assert make().schedule_once("p").bound
    value = "Ascend910B4-0,Ascend910B4,8192,0:;"
    assert notes(store) == {
        "hami.io/vgpu-node": NODE,
        "hami.io/vgpu-time": str(int(NOW)),
        B4.to_allocate: value,
        B4.allocated: value,
        "huawei.com/Ascend910B4": '[{"UUID":"Ascend910B4-0","temp":"vir05_1c_8g","memory":8192}]',
        "predicate-time": str(int(NOW)),
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": str(int(NOW)),
    }


def test_a_soft_pod_is_bound_on_a_soft_node_only(store, make):
    offer(store, B4.word, **{"hami-vnpu-core": "false"})
    want(store, "p", NPU, annotations={MODE_KEY: "hami-core"})
    scheduler = make()
    assert scheduler.schedule_once("p").message == f"{NODE}: 1/1 ModeNotFit"
    offer(store, B4.word, name="n2", **{"hami-vnpu-core": "true"})
    outcome = scheduler.schedule_once("p")
    assert (outcome.kind, outcome.node) == ("bound", "n2")
    want(store, "q", {B4.count: 1, B4.memory: 32768}, annotations={MODE_KEY: "hami-core"})
    assert scheduler.schedule_once("q").reasons == {"ModeNotFit": 1, "CardInsufficientMemory": 1}
    assert json.loads(notes(store)["huawei.com/Ascend910B4"]) == [{"UUID": "Ascend910B4-0", "memory": 8000}]


def test_one_pod_asks_for_three_vendors_and_takes_the_lock_once(server, store, make):
    offer(store, "amd", B4.word, "ppu")
    want(store, "p", {**GPU, **NPU}, None, CARD)
    assert make().schedule_once("p").bound
    found = notes(store)
    assert found[AMD.allocated] == "amd-0,AMD_Instinct_MI300X,100,10:;;;"
    assert found[B4.allocated] == "Ascend910B4-0,Ascend910B4,8192,0:;;;"
    assert found[PPU.allocated] == ";;ppu-0,PPU,500,20:;"
    assert lock_of(store) == f"{STAMP},default,p"
    writes = [
        (e.verb, e.resource, e.subresource)
        for e in server.requests.entries("gpusim-scheduler")
        if e.verb in ("patch", "create")
    ]
    handshakes = 2
    verbs = [e.verb for e in server.requests.entries("gpusim-scheduler") if e.resource == "nodes"]
    asked_for = 3  # once a vendor, and once more to set it
    assert verbs.count("get") == handshakes + asked_for + 1
    assert writes == [
        *[("patch", "nodes", "")] * handshakes,
        ("patch", "pods", ""),
        ("patch", "nodes", ""),
        ("patch", "pods", ""),
        ("create", "pods", "binding"),
    ]


def test_upstreams_padding_loses_slots_of_amd_and_ppu_and_keeps_ascends(store, make):
    offer(store, "amd", B4.word, "ppu")
    want(store, "p", None, {**GPU, **NPU, **CARD})
    assert make(rules=Rules(empty_slots=False)).schedule_once("p").bound
    found = notes(store)
    assert found[AMD.allocated] == "amd-0,AMD_Instinct_MI300X,100,10:;"
    assert found[PPU.allocated] == "ppu-0,PPU,500,20:;"
    assert found[B4.allocated] == ";Ascend910B4-0,Ascend910B4,8192,0:;"


def test_a_pod_that_lacks_one_vendor_is_bound_nowhere_and_holds_nothing(store, make):
    offer(store, "amd")
    want(store, "p", {**GPU, **NPU})
    scheduler = make()
    assert scheduler.schedule_once("p").message == f"{NODE}: NodeInsufficientDevice"
    assert (notes(store), lock_of(store)) == ({}, None)
    offer(store, "amd", B4.word, name="n2")
    assert scheduler.schedule_once("p").node == "n2"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(verb="patch", resource="pods", nth=2),
        Fault(verb="create", resource="pods", subresource="binding"),
    ],
    ids=["phase", "binding"],
)
def test_whatever_fails_the_lock_of_all_vendors_is_given_back(server, store, make, fault):
    offer(store, "amd", B4.word)
    want(store, "p", GPU, NPU)
    scheduler = make()
    server.faults.add(fault)
    assert scheduler.schedule_once("p").kind == "failed"
    assert lock_of(store) is None
    assert scheduler.schedule_once("p").bound


def test_g1_two_pods_of_one_vendor_created_together_come_one_after_the_other(store, make):
    offer(store, B4.word)
    want(store, "p", NPU)
    want(store, "q", {B4.count: 1, B4.memory: 16384})
    scheduler = make()
    assert scheduler.schedule_once("p").bound
    blocked = scheduler.schedule_once("q")
    assert blocked.kind == "contention"
    assert lock_of(store) == f"{STAMP},default,p"
    store.patch("nodes", NODE, {"metadata": {"annotations": {LOCK: None}}})
    assert scheduler.schedule_once("q").bound
    assert json.loads(notes(store, "p")["huawei.com/Ascend910B4"])[0]["temp"] == "vir05_1c_8g"
    assert json.loads(notes(store, "q")["huawei.com/Ascend910B4"])[0]["temp"] == "vir10_3c_16g"


def test_g12_a_lock_of_a_pod_that_ended_blocks_and_of_one_that_is_gone_does_not(store, make):
    offer(store, B4.word)
    want(store, "old", NPU)
    want(store, "p", NPU)
    scheduler = make()
    assert scheduler.schedule_once("old").bound
    store.patch("pods", "old", {"status": {"phase": "Succeeded"}}, subresource="status")
    assert scheduler.schedule_once("p").kind == "contention"
    store.delete("pods", "old")
    assert scheduler.schedule_once("p").bound


def test_g10_a_pod_without_a_mode_gets_a_template_on_a_soft_node_too(store, make):
    offer(store, B4.word, **{"hami-vnpu-core": "true"})
    want(store, "p", NPU)
    assert make().schedule_once("p").bound
    assert json.loads(notes(store)["huawei.com/Ascend910B4"])[0]["temp"] == "vir05_1c_8g"


def test_a_soft_request_out_of_bounds_is_bound_without_annotations_or_lock(store, make):
    offer(store, B4.word, **{"hami-vnpu-core": "true"})
    want(store, "p", {B4.count: 1, B4.memory: "17179869184"}, annotations={MODE_KEY: "hami-core"})
    assert make().schedule_once("p").bound
    assert (notes(store), lock_of(store)) == ({MODE_KEY: "hami-core"}, None)


def test_of_two_rows_with_one_word_the_last_holds(server):
    scheduler = Scheduler(server.url, vendors=(AMD, B4, *config_vendors(shipped(soft=True))))
    try:
        assert len(scheduler.vendors) == len(ROWS) - 1
        assert next(v for v in scheduler.vendors if v.word == B4.word).soft
    finally:
        scheduler.stop()


# -- the file and the command -----------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "device-config.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def test_one_file_makes_the_rows_of_all_its_vendors(config):
    rows = config_vendors(read_config(config))
    assert [row.word for row in rows] == [word for word in ROWS if word != "amd"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "expected a mapping"),
        ("vnpus: {", "not YAML"),
        ("vnpus: 1\nvnpus: 2\n", "the key 'vnpus' stands twice"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_used_says_which_and_why(tmp_path, text, why):
    path = tmp_path / "device-config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadDeviceConfigError, match=why) as error:
        read_config(path)
    assert str(path) in str(error.value)


def command(server, *more):
    line = [sys.executable, "-m", "gpusim.cli", "scheduler", "--apiserver", server.url, *more]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.daemon
def test_the_command_takes_the_device_configuration(server, store, config):
    offer(store, "amd", B4.word)
    want(store, "p", GPU, NPU)
    process = command(server, "--device-config", str(config))
    try:
        assert process.stdout.readline() == f"scheduler ready for {server.url}\n"
        said = {process.stdout.readline() for _ in range(4)}
        assert said == {
            f"registered node={NODE} vendor=amd devices=1\n",
            f"registered node={NODE} vendor={B4.word} devices=1\n",
            f"filtered pod=p node={NODE}\n",
            f"bound pod=p node={NODE}\n",
        }
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


@pytest.mark.daemon
def test_the_command_knows_the_shipped_configurations_by_name(server, store):
    offer(store, B4.word, "ppu")
    want(store, "p", NPU, CARD)
    process = command(server, "--vendor", "ascend", "--vendor", "ppu")
    try:
        said = {process.stdout.readline() for _ in range(5)}
        assert f"bound pod=p node={NODE}\n" in said
        assert notes(store)[PPU.allocated] == ";ppu-0,PPU,500,20:;"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.daemon
def test_a_configuration_that_cannot_be_used_is_one_line(server, config):
    config.write_text("alibaba: {gpuCorePolicy: often}\n")
    process = command(server, "--device-config", str(config))
    out, error = process.communicate(timeout=30)
    assert (process.returncode, out) == (1, "")
    assert error == (
        "gpusim scheduler: alibaba.gpuCorePolicy: expected one of default, force, disable, got 'often'\n"
    )
