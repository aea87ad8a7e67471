"""The DevicePlugin service over a real socket, and the bugs of other plugins it must not have."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.answers import (
    ContainerEdits,
    DeviceNode,
    Mount,
    Offer,
    OfferedDevice,
    PreferenceQuery,
    Refused,
)
from devplugin.kubelet.service import QUEUE, Board, Service, TryLater, echo, edits_message, list_message
from devplugin.kubeletapi import api_pb2, api_pb2_grpc


def offer(*ids: str, sick: Sequence[str] = (), resource: str = "toy.io/thing") -> Offer:
    return Offer(resource, tuple(OfferedDevice(name, healthy=name not in sick) for name in ids))


async def no_allocate(ids: Sequence[str]) -> ContainerEdits:
    raise AssertionError(f"not asked for: {ids}")


def no_prefer(query: PreferenceQuery) -> tuple[str, ...]:
    raise AssertionError(f"not asked for: {query}")


@contextlib.asynccontextmanager
async def served(
    directory: Path,
    board: Board,
    prefer: Callable[[PreferenceQuery], tuple[str, ...]] = no_prefer,
    allocate: Callable[[Sequence[str]], Any] = no_allocate,
) -> AsyncIterator[tuple[Any, Service]]:
    service = Service(board, prefer, allocate, lambda: None)
    server = grpc.aio.server()
    api_pb2_grpc.add_DevicePluginServicer_to_server(service, server)
    path = directory / f"{id(service)}.sock"
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        try:
            yield api_pb2_grpc.DevicePluginStub(channel), service
        finally:
            service.close()
            await server.stop(2)


async def read(stream: Any) -> list[tuple[str, str]]:
    async with asyncio.timeout(5):
        message = await stream.read()
    return [(device.ID, device.health) for device in message.devices]


def test_the_first_list_comes_at_once_even_when_it_is_empty(plugin_dir: Path) -> None:
    async def go() -> None:
        async with served(plugin_dir, Board(offer())) as (stub, _):
            assert await read(stub.ListAndWatch(api_pb2.Empty())) == []

    asyncio.run(go())


def test_every_change_sends_the_full_list_to_every_open_stream(plugin_dir: Path) -> None:
    async def go() -> None:
        board = Board(offer("a", "b"))
        async with served(plugin_dir, board) as (stub, _):
            streams = [stub.ListAndWatch(api_pb2.Empty()) for _ in range(3)]
            for stream in streams:
                assert await read(stream) == [("a", "Healthy"), ("b", "Healthy")]
            board.publish(offer("a", "b", sick=["b"]))
            board.publish(offer("a", "b"))
            board.publish(offer("b"))
            for stream in streams:
                assert await read(stream) == [("a", "Healthy"), ("b", "Unhealthy")]
                assert await read(stream) == [("a", "Healthy"), ("b", "Healthy")]
                assert await read(stream) == [("b", "Healthy")]

    asyncio.run(go())


def test_after_a_stream_ended_the_next_update_reaches_the_live_one(plugin_dir: Path) -> None:
    async def go() -> None:
        board = Board(offer("a"))
        async with served(plugin_dir, board) as (stub, service):
            old = stub.ListAndWatch(api_pb2.Empty())
            await read(old)
            old.cancel()
            live = stub.ListAndWatch(api_pb2.Empty())
            await read(live)
            board.publish(offer("z"))  # perhaps before the server saw the cancellation
            assert await read(live) == [("z", "Healthy")]
            async with asyncio.timeout(5):
                while service.streams != 1:
                    await asyncio.sleep(0.005)
            assert service.opened == 2

    asyncio.run(go())


def test_one_tick_reaches_the_streams_of_every_resource(plugin_dir: Path) -> None:
    async def go() -> None:
        boards = [Board(offer("a", resource=f"toy.io/r{i}")) for i in range(3)]
        async with contextlib.AsyncExitStack() as stack:
            streams = []
            for board in boards:
                stub, _ = await stack.enter_async_context(served(plugin_dir, board))
                streams.append(stub.ListAndWatch(api_pb2.Empty()))
                await read(streams[-1])
            for board in boards:
                board.publish(offer("a", sick=["a"], resource=board.offer.resource))
            for stream in streams:
                assert await read(stream) == [("a", "Unhealthy")]

    asyncio.run(go())


def test_an_unchanged_list_is_not_sent_again() -> None:
    board = Board(offer("a"))
    assert not board.publish(offer("a"))
    assert board.publish(offer("a", sick=["a"]))


def test_a_peer_that_does_not_read_gets_the_newest_lists_and_costs_bounded_memory() -> None:
    async def go() -> None:
        board = Board(offer("start"))
        listener = board.listen()
        for i in range(1000):
            board.publish(offer(f"d{i}"))
        got = [(await listener.next()).devices[0].id for _ in range(QUEUE)]  # type: ignore[union-attr]
        assert got == [f"d{i}" for i in range(1000 - QUEUE, 1000)]
        listener.close()
        assert await listener.next() is None

    asyncio.run(go())


def test_ending_the_streams_ourselves_stops_the_server_without_a_traceback(
    plugin_dir: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def go() -> None:
        async with served(plugin_dir, Board(offer("a"))) as (stub, service):
            stream = stub.ListAndWatch(api_pb2.Empty())
            await read(stream)
            service.close()
            async with asyncio.timeout(5):
                assert await stream.read() == grpc.aio.EOF
            late = stub.ListAndWatch(api_pb2.Empty())
            async with asyncio.timeout(5):
                assert await late.read() == grpc.aio.EOF

    with caplog.at_level(logging.INFO):
        asyncio.run(go())
    assert "Traceback" not in capfd.readouterr().err
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def preferred(stub: Any, available: Sequence[str], must: Sequence[str], size: int) -> Any:
    one = api_pb2.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )
    return stub.GetPreferredAllocation(
        api_pb2.PreferredAllocationRequest(container_requests=[one, one]), timeout=5
    )


def test_preference_is_asked_with_what_kubelet_sent_for_each_container(plugin_dir: Path) -> None:
    asked = []

    def prefer(query: PreferenceQuery) -> tuple[str, ...]:
        asked.append(query)
        return ("b",)

    async def go() -> None:
        async with served(plugin_dir, Board(offer("a", "b")), prefer=prefer) as (stub, _):
            answer = await preferred(stub, ["a", "b"], ["b"], 1)
            assert [list(one.deviceIDs) for one in answer.container_responses] == [["b"], ["b"]]

    asyncio.run(go())
    assert asked == [PreferenceQuery(("a", "b"), ("b",), 1)] * 2


@pytest.mark.parametrize("error", [ValueError("size 9 of 2"), KeyError("x"), ZeroDivisionError()])
def test_preference_that_fails_echoes_kubelets_ids_and_warns(
    plugin_dir: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def prefer(query: PreferenceQuery) -> tuple[str, ...]:
        raise error

    async def go() -> None:
        async with served(plugin_dir, Board(offer("a#0")), prefer=prefer) as (stub, _):
            answer = await preferred(stub, ["a#0", "a#1", "b#0"], ["a#1"], 2)
            assert list(answer.container_responses[0].deviceIDs) == ["a#1", "a#0"]

    asyncio.run(go())
    assert any("no preference among 3 devices for 2" in record.getMessage() for record in caplog.records)


@given(
    available=st.lists(st.sampled_from("abcdef")),
    must=st.lists(st.sampled_from("abcdef")),
    size=st.integers(min_value=-2, max_value=9),
)
def test_an_echo_is_distinct_ids_of_kubelet_must_include_first_and_never_too_many(
    available: list[str], must: list[str], size: int
) -> None:
    answer = echo(PreferenceQuery(tuple(available), tuple(must), size))
    assert len(answer) == len(set(answer)) == min(max(size, 0), len({*available, *must}))
    assert set(answer) <= {*available, *must}
    firsts = len(set(must))
    assert set(answer[:firsts]) <= set(must)


def test_allocate_hands_each_containers_ids_over_and_carries_every_kind_of_edit(plugin_dir: Path) -> None:
    seen: list[Sequence[str]] = []
    edits = ContainerEdits(
        envs={"A": "1"},
        mounts=(Mount("/in", "/out"), Mount("/rw", "/x", read_only=False)),
        devices=(DeviceNode("/dev/kfd"),),
        annotations={"k": "v"},
        cdi=("toy.io/thing=a",),
    )

    async def allocate(ids: Sequence[str]) -> ContainerEdits:
        seen.append(ids)
        return edits

    async def go() -> Any:
        async with served(plugin_dir, Board(offer("a")), allocate=allocate) as (stub, _):
            return await stub.Allocate(
                api_pb2.AllocateRequest(
                    container_requests=[
                        api_pb2.ContainerAllocateRequest(devices_ids=["b", "a"]),
                        api_pb2.ContainerAllocateRequest(devices_ids=["c"]),
                    ]
                ),
                timeout=5,
            )

    answer = asyncio.run(go())
    assert seen == [("b", "a"), ("c",)]
    one = answer.container_responses[0]
    assert len(answer.container_responses) == 2
    assert one == edits_message(edits)
    assert dict(one.envs) == {"A": "1"}
    assert [(m.container_path, m.host_path, m.read_only) for m in one.mounts] == [
        ("/in", "/out", True),
        ("/rw", "/x", False),
    ]
    assert [(d.container_path, d.host_path, d.permissions) for d in one.devices] == [
        ("/dev/kfd", "/dev/kfd", "rw")
    ]
    assert dict(one.annotations) == {"k": "v"}
    assert [c.name for c in one.cdi_devices] == ["toy.io/thing=a"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused("pod ns/p: no room"), grpc.StatusCode.FAILED_PRECONDITION),
        (TryLater("API server is away"), grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_allocate_tells_refusals_from_failures(plugin_dir: Path, error: Exception, code: Any) -> None:
    async def allocate(ids: Sequence[str]) -> ContainerEdits:
        raise error

    async def go() -> None:
        async with served(plugin_dir, Board(offer("a")), allocate=allocate) as (stub, _):
            request = api_pb2.AllocateRequest(
                container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=["a"])]
            )
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.Allocate(request, timeout=5)
            assert failed.value.code() == code
            assert failed.value.details() == str(error)

    asyncio.run(go())


def test_two_hundred_parked_streams_do_not_hold_up_allocate(plugin_dir: Path) -> None:
    async def allocate(ids: Sequence[str]) -> ContainerEdits:
        return ContainerEdits()

    async def go() -> None:
        async with served(plugin_dir, Board(offer("a")), allocate=allocate) as (stub, service):
            streams = [stub.ListAndWatch(api_pb2.Empty()) for _ in range(200)]
            for stream in streams:
                await read(stream)
            assert service.streams == 200
            request = api_pb2.AllocateRequest(container_requests=[api_pb2.ContainerAllocateRequest()])
            await stub.Allocate(request, timeout=2)

    asyncio.run(go())


def test_a_device_of_unknown_numa_node_carries_no_topology() -> None:
    devices = (OfferedDevice("a"), OfferedDevice("b", numa=(0,)), OfferedDevice("c", numa=(0, 1)))
    message = list_message(Offer("toy.io/thing", devices))
    assert [device.HasField("topology") for device in message.devices] == [False, True, True]
    assert [[node.ID for node in device.topology.nodes] for device in message.devices] == [[], [0], [0, 1]]


def test_options_announce_preference_only_where_the_offer_has_it(plugin_dir: Path) -> None:
    async def go() -> None:
        for wanted in (True, False):
            board = Board(Offer("toy.io/thing", (), preferred=wanted))
            async with served(plugin_dir, board) as (stub, _):
                options = await stub.GetDevicePluginOptions(api_pb2.Empty(), timeout=5)
                assert options.get_preferred_allocation_available is wanted
                assert not options.pre_start_required
                await stub.PreStartContainer(api_pb2.PreStartContainerRequest(devices_ids=["a"]), timeout=5)

    asyncio.run(go())
