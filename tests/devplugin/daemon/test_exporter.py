"""What the metrics exporter is asked, and what is made of its answers and its silence (amd.md 10, 14.9)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devplugin.amd.health import SERVICES
from devplugin.answers import HealthSource, Reports
from devplugin.daemon.exporter import Exporter as Client
from gpusim.cluster.exporter import GPUMETRICSSVC, METRICSSVC, Exporter

A, B = "0000:06:00.0", "0000:07:00.0"


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "x.sock")


def client(socket: str, deadline: float = 5.0) -> Client:
    return Client(HealthSource(socket, SERVICES), deadline=deadline)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_without_a_socket_there_is_no_report_and_not_a_word(
    socket: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = client(socket)
    for _ in range(3):
        assert asyncio.run(asked.ask()) == Reports()
    assert caplog.records == []


@pytest.mark.parametrize("services", [[METRICSSVC], [GPUMETRICSSVC], [METRICSSVC, GPUMETRICSSVC]])
def test_the_service_answers_under_either_name(socket: str, services: list[str]) -> None:
    with Exporter(socket, services) as exporter:
        exporter.set(A, "healthy")
        exporter.set(B, "unhealthy")
        assert asyncio.run(client(socket).ask()) == Reports({A: "healthy", B: "unhealthy"})
        assert exporter.calls == [f"{services[0]}/List"]


def test_a_device_told_twice_is_as_bad_as_the_worse_word(socket: str) -> None:
    with Exporter(socket) as exporter:
        exporter.set(A, "unhealthy")
        exporter._states["again"] = exporter._states[A].__class__(A, "healthy")
        assert asyncio.run(client(socket).ask()).states == {A: "unhealthy"}


def test_an_outage_is_said_once_and_the_next_one_again(socket: str, caplog: pytest.LogCaptureFixture) -> None:
    """down, down, up, down → 2 warnings."""
    asked = client(socket)
    exporter = Exporter(socket)
    exporter.start()
    exporter.set(A, "healthy")
    exporter.stop(leave_socket=True)
    assert asyncio.run(asked.ask()) == Reports(silent=True)
    assert asyncio.run(asked.ask()) == Reports(silent=True)
    assert len(warnings(caplog)) == 1
    exporter.start()
    assert asyncio.run(asked.ask()) == Reports({A: "healthy"})
    exporter.stop(leave_socket=True)
    assert asyncio.run(asked.ask()) == Reports(silent=True)
    assert len(warnings(caplog)) == 2


def test_an_exporter_that_is_removed_ends_its_outage(socket: str, caplog: pytest.LogCaptureFixture) -> None:
    asked = client(socket)
    exporter = Exporter(socket).start()
    exporter.stop(leave_socket=True)
    assert asyncio.run(asked.ask()).silent
    Path(socket).unlink()
    assert asyncio.run(asked.ask()) == Reports()


def test_one_that_hangs_costs_the_deadline_and_no_more(socket: str) -> None:
    with Exporter(socket) as exporter:
        exporter.hang()
        begun = time.monotonic()
        assert asyncio.run(client(socket, deadline=0.3).ask()) == Reports(silent=True)
        assert 0.25 < time.monotonic() - begun < 3


def test_a_server_that_speaks_something_else_is_silent(socket: str, caplog: pytest.LogCaptureFixture) -> None:
    with Exporter(socket, ["other.Service"]):
        assert asyncio.run(client(socket).ask()) == Reports(silent=True)
    assert "UNIMPLEMENTED" in warnings(caplog)[0]


def test_many_gpus_and_odd_words_arrive_whole(socket: str) -> None:
    with Exporter(socket) as exporter:
        for bus in range(200):
            exporter.set(f"0000:{bus:02x}:00.0", "nicht gesund: ü" * 20)
        assert len(asyncio.run(client(socket).ask()).states) == 200


def test_the_exporter_answers_for_single_ids(socket: str) -> None:
    import grpc

    from devplugin.exporterapi import metricssvc_pb2, metricssvc_pb2_grpc

    with Exporter(socket) as exporter, grpc.insecure_channel(f"unix:{socket}") as channel:
        exporter.set(A, "healthy")
        exporter.set(B, "unhealthy")
        stub = metricssvc_pb2_grpc.MetricsServiceStub(channel)
        answer = stub.GetGPUState(metricssvc_pb2.GPUGetRequest(ID=["1"]), timeout=5)
        assert [(state.ID, state.Device, state.Health) for state in answer.GPUState] == [
            ("1", B, "unhealthy")
        ]
