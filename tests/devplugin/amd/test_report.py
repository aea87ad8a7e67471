"""The `-dry_run` object, exactly, on a node small enough to write it out."""

from __future__ import annotations

import json
from dataclasses import replace

from devplugin.amd.discovery import discover
from devplugin.amd.report import report
from devplugin.amd.settings import Settings
from devplugin.amd.vendor import Amd

from ..small_nodes import NODES, gpu_node, machine, pci_gpu


def test_the_object_word_for_word() -> None:
    host = machine(
        pci_gpu("0000:03:00.0", 1, 128, mem_info_vram_total=17163091968, numa_node=1),
        pci_gpu("0000:04:00.0", 2, None),
        gpu_node(
            1,
            128,
            0x300,
            64,
            gfx_target_version=120001,
            device_id=0x7550,
            unique_id=0,
            num_xcc=1,
            num_cp_queues=4,
        ),
    )
    settings = Settings()
    assert report(discover(host, settings), settings) == {
        "schema": 1,
        "vendor": "amd",
        "mode": "cu",
        "registration": [
            {
                "id": "AMD-node-0000-03-00-0",
                "index": 1,
                "count": 2,
                "devmem": 16368,
                "devcore": 64,
                "type": "AMD Radeon RX 9070",
                "numa": 1,
                "health": True,
                "devicevendor": "amd",
                "custominfo": {"computeQueues": 4, "cuPerWGP": 2, "pciBDF": "0000:03:00.0"},
            }
        ],
        "resources": {
            "amd.com/gpu": [
                {"id": "0000:03:00.0#0", "health": "Healthy", "numa": [1]},
                {"id": "0000:03:00.0#1", "health": "Healthy", "numa": [1]},
            ]
        },
        "dmem": {"usable": False, "reason": "/sys/fs/cgroup/cgroup.controllers: ENOENT"},
        "skipped": [
            {
                "device": "0000:04:00.0",
                "reason": f"bound to amdgpu, but no KFD node is at 0000:04:00.0: {NODES}",
            }
        ],
    }


def test_an_empty_node_is_an_object_too() -> None:
    assert report(discover(machine(), Settings()), Settings()) == {
        "schema": 1,
        "vendor": "amd",
        "mode": "cu",
        "registration": [],
        "resources": {},
        "dmem": {"usable": False, "reason": "/sys/fs/cgroup/cgroup.controllers: ENOENT"},
        "skipped": [],
    }


def test_an_unhealthy_gpu_loses_its_health_key_and_is_unhealthy_to_kubelet() -> None:
    host = machine(pci_gpu("0000:03:00.0", 1, 128), gpu_node(1, 128, 0x300, 64))
    inventory = discover(host, Settings())
    sick = replace(inventory, gpus=(replace(inventory.gpus[0], healthy=False),))
    said = report(sick, Settings(split_count=1))
    assert "health" not in said["registration"][0]
    assert said["resources"]["amd.com/gpu"] == [{"id": "0000:03:00.0#0", "health": "Unhealthy", "numa": [0]}]


def test_the_vendor_answers_with_the_same_object_and_the_annotations_text() -> None:
    host = machine(pci_gpu("0000:03:00.0", 1, 128), gpu_node(1, 128, 0x300, 64))
    vendor, settings = Amd(), Settings()
    inventory = vendor.discover(host, settings, None)
    said = vendor.report(host, inventory, settings)
    (text,) = vendor.registration(inventory, settings, 0.0).annotations.values()
    assert text is not None
    assert json.loads(text) == said["registration"]
    assert vendor.describe(Settings(mode="partition")) == "operating mode: partition"
    assert vendor.vocabulary(inventory, settings).handshake is None
