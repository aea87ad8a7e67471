"""The checked-in stubs are those of the checked-in contract, and the contract is kubelet's."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from devplugin.kubeletapi import api_pb2

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "devplugin" / "kubeletapi"

FIELDS = {
    "Empty": "",
    "DevicePluginOptions": "pre_start_required=1 get_preferred_allocation_available=2",
    "RegisterRequest": "version=1 endpoint=2 resource_name=3 options=4",
    "ListAndWatchResponse": "devices=1",
    "Device": "ID=1 health=2 topology=3",
    "TopologyInfo": "nodes=1",
    "NUMANode": "ID=1",
    "PreferredAllocationRequest": "container_requests=1",
    "ContainerPreferredAllocationRequest": (
        "available_deviceIDs=1 must_include_deviceIDs=2 allocation_size=3"
    ),
    "PreferredAllocationResponse": "container_responses=1",
    "ContainerPreferredAllocationResponse": "deviceIDs=1",
    "AllocateRequest": "container_requests=1",
    "ContainerAllocateRequest": "devices_ids=1",
    "AllocateResponse": "container_responses=1",
    "ContainerAllocateResponse": "envs=1 mounts=2 devices=3 annotations=4 cdi_devices=5",
    "Mount": "container_path=1 host_path=2 read_only=3",
    "DeviceSpec": "container_path=1 host_path=2 permissions=3",
    "CDIDevice": "name=1",
    "PreStartContainerRequest": "devices_ids=1",
    "PreStartContainerResponse": "",
}


def test_regenerating_the_stubs_gives_the_checked_in_bytes(tmp_path: Path) -> None:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed: it belongs to the dev extra")
    out = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *out, "devplugin/kubeletapi/api.proto"]
    subprocess.run(command, cwd=ROOT, check=True)
    made = tmp_path / "devplugin" / "kubeletapi"
    assert sorted(path.name for path in made.iterdir()) == ["api_pb2.py", "api_pb2.pyi", "api_pb2_grpc.py"]
    for path in made.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes(), path.name


def test_every_message_has_the_fields_and_numbers_of_the_table() -> None:
    messages = api_pb2.DESCRIPTOR.message_types_by_name
    written = {name: {field.name: field.number for field in m.fields} for name, m in messages.items()}
    table = {
        name: {word.partition("=")[0]: int(word.partition("=")[2]) for word in line.split()}
        for name, line in FIELDS.items()
    }
    assert written == table


def test_methods_have_the_paths_kubelet_calls() -> None:
    services = api_pb2.DESCRIPTOR.services_by_name
    assert [m.name for m in services["Registration"].methods] == ["Register"]
    assert {m.name: m.server_streaming for m in services["DevicePlugin"].methods} == {
        "GetDevicePluginOptions": False,
        "ListAndWatch": True,
        "GetPreferredAllocation": False,
        "Allocate": False,
        "PreStartContainer": False,
    }
    assert api_pb2.DESCRIPTOR.package == "v1beta1"
    assert api_pb2.DESCRIPTOR.name == "devplugin/kubeletapi/api.proto"
