"""The checked-in stubs of the exporter's contract are those of the contract, and it has AMD's numbers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from devplugin.exporterapi import metricssvc_pb2

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "devplugin" / "exporterapi"

FIELDS = {
    "GPUState": {"ID": 1, "UUID": 2, "Health": 3, "AssociatedWorkload": 4, "Device": 5},
    "GPUGetRequest": {"ID": 1},
    "GPUStateResponse": {"GPUState": 1},
}


def test_regenerating_the_stubs_gives_the_checked_in_bytes(tmp_path: Path) -> None:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed: it belongs to the dev extra")
    out = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I.",
        *out,
        "devplugin/exporterapi/metricssvc.proto",
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    made = sorted((tmp_path / "devplugin" / "exporterapi").iterdir())
    assert [path.name for path in made] == [
        "metricssvc_pb2.py",
        "metricssvc_pb2.pyi",
        "metricssvc_pb2_grpc.py",
    ]
    for path in made:
        assert path.read_bytes() == (FOLDER / path.name).read_bytes(), path.name


def test_every_message_has_the_fields_and_numbers_of_the_table() -> None:
    messages = metricssvc_pb2.DESCRIPTOR.message_types_by_name
    assert {name: {f.name: f.number for f in m.fields} for name, m in messages.items()} == FIELDS


def test_methods_have_the_paths_the_exporter_serves() -> None:
    (service,) = metricssvc_pb2.DESCRIPTOR.services_by_name.values()
    assert service.full_name == "metricssvc.MetricsService"
    assert [method.name for method in service.methods] == ["List", "GetGPUState"]
