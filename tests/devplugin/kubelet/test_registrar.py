"""A resource stays registered whatever kubelet and the directory do (kubelet.md 1 and 2)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from devplugin.answers import ContainerEdits, Offer, OfferedDevice, PreferenceQuery
from devplugin.kubelet.directory import PATH_MAX, Directory, SocketPathError, SocketPathTooLongError
from devplugin.kubelet.registrar import Registrar, Timing
from devplugin.kubelet.service import Board
from devplugin.kubeletapi import api_pb2, api_pb2_grpc

RESOURCE = "toy.io/thing"
FAST = Timing(poll=0.2, settle=0.05, stream=0.3, last_retry=0.2)

MakeKubelet = Callable[[], Any]


def offer(*ids: str, resource: str = RESOURCE) -> Offer:
    return Offer(resource, tuple(OfferedDevice(name) for name in ids))


def prefer(query: PreferenceQuery) -> tuple[str, ...]:
    return ()


async def allocate(ids: Sequence[str]) -> ContainerEdits:
    return ContainerEdits(envs={"IDS": ",".join(ids)})


@contextlib.asynccontextmanager
async def running(
    directory: Path, board: Board | None = None, timing: Timing = FAST, **more: Any
) -> AsyncIterator[Registrar]:
    with Directory(str(directory)) as entered:
        registrar = Registrar(
            board or Board(offer("a")), prefer, more.get("allocate", allocate), entered, timing
        )
        task = asyncio.create_task(registrar.run())
        try:
            yield registrar
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def sockets(directory: Path) -> list[str]:
    return sorted(
        path.name
        for path in directory.iterdir()
        if stat.S_ISSOCK(path.lstat().st_mode) and path.name != "kubelet.sock"
    )


def ids(message: Any) -> list[str]:
    return [device.ID for device in message.devices]


def test_it_serves_before_it_registers_under_a_name_of_its_own(
    plugin_dir: Path, kubelet: MakeKubelet
) -> None:
    async def go() -> None:
        fake = kubelet()
        await fake.start()
        async with running(plugin_dir):
            await fake.until(lambda: RESOURCE in fake.lists)  # it dialled back inside Register
            request = fake.requests[0]
            assert request.version == "v1beta1"
            assert request.resource_name == RESOURCE
            assert "/" not in request.endpoint
            assert request.endpoint.startswith(f"toy.io_thing-{os.getpid()}-")
            assert sockets(plugin_dir) == [request.endpoint]
            assert stat.S_IMODE((plugin_dir / request.endpoint).lstat().st_mode) == 0o600
            assert fake.options.get_preferred_allocation_available
        await fake.kill()

    asyncio.run(go())


@pytest.mark.parametrize("late", [0.0, 0.3])
def test_a_kubelet_socket_that_comes_late_is_used_at_once(
    plugin_dir: Path, kubelet: MakeKubelet, late: float
) -> None:
    async def go() -> None:
        fake = kubelet()
        async with running(plugin_dir, timing=Timing(poll=30.0)):
            await asyncio.sleep(late)
            await fake.start(wipe=False)
            await fake.until(lambda: RESOURCE in fake.lists, seconds=2.0)  # by inotify: the poll is far away
        await fake.kill()

    asyncio.run(go())


def test_a_restarted_kubelet_that_wiped_the_sockets_is_served_anew(
    plugin_dir: Path, kubelet: MakeKubelet
) -> None:
    async def go() -> None:
        first = kubelet()
        await first.start()
        async with running(plugin_dir) as registrar:
            await first.until(lambda: RESOURCE in first.lists)
            await first.kill()
            second = kubelet()
            await second.start()
            await second.until(lambda: RESOURCE in second.lists)
            assert first.requests[0].endpoint != second.requests[-1].endpoint
            assert sockets(plugin_dir) == [second.requests[-1].endpoint]
            await asyncio.sleep(0.5)
            assert registrar.registrations == 2  # and then it rests
        await second.kill()

    asyncio.run(go())


def test_after_a_hard_kill_that_leaves_the_socket_it_waits_for_the_next_kubelet(
    plugin_dir: Path, kubelet: MakeKubelet
) -> None:
    async def go() -> None:
        first = kubelet()
        await first.start()
        async with running(plugin_dir):
            await first.until(lambda: RESOURCE in first.lists)
            await first.kill(leave_socket=True)
            await asyncio.sleep(0.4)  # Register is refused meanwhile
            second = kubelet()
            await second.start()
            await second.until(lambda: RESOURCE in second.lists)
        await second.kill()

    asyncio.run(go())


def test_when_only_the_socket_is_wiped_it_is_noticed_and_served_anew(
    plugin_dir: Path, kubelet: MakeKubelet
) -> None:
    async def go() -> None:
        fake = kubelet()
        await fake.start()
        async with running(plugin_dir):
            await fake.until(lambda: RESOURCE in fake.lists)
            (plugin_dir / fake.requests[0].endpoint).unlink()
            await fake.until(lambda: len(fake.requests) == 2 and len(fake.lists[RESOURCE]) == 2)
        await fake.kill()

    asyncio.run(go())


def test_a_stream_that_kubelet_ended_while_it_lives_is_registered_again(
    plugin_dir: Path, kubelet: MakeKubelet
) -> None:
    async def go() -> None:
        fake = kubelet()
        await fake.start()
        board = Board(offer("a"))
        async with running(plugin_dir, board):
            await fake.until(lambda: RESOURCE in fake.lists)
            fake.cancel_stream(RESOURCE)
            await fake.until(lambda: len(fake.requests) == 2 and len(fake.lists[RESOURCE]) == 2)
            board.publish(offer("b"))
            await fake.until(lambda: ids(fake.lists[RESOURCE][-1]) == ["b"])
        await fake.kill()

    asyncio.run(go())


def test_a_registration_without_a_stream_is_not_taken_for_one(plugin_dir: Path, kubelet: MakeKubelet) -> None:
    async def go() -> None:
        fake = kubelet()
        fake.open_streams = False
        await fake.start()
        async with running(plugin_dir):
            await fake.until(lambda: len(fake.requests) == 2)
            fake.open_streams = True
            await fake.until(lambda: RESOURCE in fake.lists)
        await fake.kill()

    asyncio.run(go())


def test_a_refused_registration_is_tried_without_end(
    plugin_dir: Path, kubelet: MakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        fake = kubelet()
        fake.refuse = 12
        await fake.start()
        async with running(plugin_dir):
            await fake.until(lambda: RESOURCE in fake.lists)
            assert len(fake.requests) == 13
            assert len({request.endpoint for request in fake.requests}) == 1
        await fake.kill()

    asyncio.run(go())
    refusals = [record for record in caplog.records if "not today" in record.getMessage()]
    assert len([record for record in refusals if record.levelname == "WARNING"]) == 1  # said once


def test_when_it_ends_socket_streams_and_threads_are_gone(plugin_dir: Path, kubelet: MakeKubelet) -> None:
    async def go() -> None:
        fake = kubelet()
        await fake.start()
        async with running(plugin_dir):
            await fake.until(lambda: RESOURCE in fake.lists)
            task = fake.streams[RESOURCE]
        async with asyncio.timeout(2):
            await task
        assert sockets(plugin_dir) == []
        await fake.kill()

    before = threading.active_count()
    asyncio.run(go())
    assert threading.active_count() <= before + 1  # gRPC's one poller may stay


def test_an_allocate_in_flight_is_answered_before_the_server_ends(
    plugin_dir: Path, kubelet: MakeKubelet
) -> None:
    async def go() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def slow(wanted: Sequence[str]) -> ContainerEdits:
            begun.set()
            await may_end.wait()
            return ContainerEdits(envs={"ok": "1"})

        fake = kubelet()
        await fake.start()
        async with running(plugin_dir, allocate=slow):
            await fake.until(lambda: RESOURCE in fake.lists)
            stub = api_pb2_grpc.DevicePluginStub(fake.channels[0])
            call = asyncio.ensure_future(
                stub.Allocate(
                    api_pb2.AllocateRequest(
                        container_requests=[api_pb2.ContainerAllocateRequest(devices_ids=["a"])]
                    )
                )
            )
            await begun.wait()
            asyncio.get_running_loop().call_later(0.3, may_end.set)
        answer = await call
        assert dict(answer.container_responses[0].envs) == {"ok": "1"}
        await fake.kill()

    asyncio.run(go())


def test_two_instances_overlap_and_the_old_one_ending_last_harms_nobody(
    plugin_dir: Path, kubelet: MakeKubelet
) -> None:
    async def go() -> None:
        fake = kubelet()
        await fake.start()
        async with running(plugin_dir, Board(offer("new"))):
            async with running(plugin_dir, Board(offer("old"))):
                await fake.until(lambda: len(fake.lists.get(RESOURCE, [])) == 2)
                assert len(sockets(plugin_dir)) == 2
            left = sockets(plugin_dir)
            assert len(left) == 1
            async with grpc.aio.insecure_channel(f"unix:{plugin_dir}/{left[0]}") as channel:
                stream = api_pb2_grpc.DevicePluginStub(channel).ListAndWatch(api_pb2.Empty())
                assert ids(await stream.read()) == ["new"]
        await fake.kill()

    asyncio.run(go())


def test_something_that_is_no_socket_at_kubelet_sock_is_waited_out(
    plugin_dir: Path, kubelet: MakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        (plugin_dir / "kubelet.sock").mkdir()
        fake = kubelet()
        with caplog.at_level("INFO"):
            async with running(plugin_dir):
                await asyncio.sleep(0.2)
                (plugin_dir / "kubelet.sock").rmdir()
                await fake.start(wipe=False)
                await fake.until(lambda: RESOURCE in fake.lists)
        await fake.kill()

    asyncio.run(go())
    assert any("a directory is there" in record.getMessage() for record in caplog.records)


def test_a_plugin_directory_that_is_made_later_is_waited_for(
    plugin_dir: Path, kubelet: MakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        late = plugin_dir / "device-plugins"
        async with running(late):
            await asyncio.sleep(0.2)
            late.mkdir()
            fake = kubelet()
            fake.directory = late
            await fake.start(wipe=False)
            await fake.until(lambda: RESOURCE in fake.lists)
            await fake.kill()

    asyncio.run(go())
    assert any("is kubelet installed?" in record.getMessage() for record in caplog.records)


def test_a_path_no_socket_can_have_ends_the_registrar_with_length_and_remedy(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * PATH_MAX)
    deep.mkdir()

    async def go() -> None:
        with Directory(str(deep)) as entered:
            async with asyncio.timeout(5):
                await Registrar(Board(offer("a")), prefer, allocate, entered, FAST).run()

    with pytest.raises(
        SocketPathTooLongError, match=r"has \d+ bytes, the kernel takes 107: shorten -kubelet_dir"
    ):
        asyncio.run(go())


def test_the_longest_allowed_path_can_be_bound_and_one_byte_more_cannot(plugin_dir: Path) -> None:
    directory = Directory(str(plugin_dir))
    fits = "é" + "n" * (PATH_MAX - len(str(plugin_dir).encode()) - 3)  # é is two bytes
    directory.check(fits)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(plugin_dir / fits))
    with pytest.raises(SocketPathTooLongError):
        directory.check(fits + "n")


@pytest.mark.parametrize("kind", ["regular file", "directory", "symbolic link", "socket"])
def test_whatever_lies_at_the_socket_path_is_named_and_not_bound_over(plugin_dir: Path, kind: str) -> None:
    path = plugin_dir / "x.sock"
    match kind:
        case "regular file":
            path.write_text("")
        case "directory":
            path.mkdir()
        case "symbolic link":
            path.symlink_to("nowhere")
        case _:
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path))
    with pytest.raises(SocketPathError, match=f"there is a {kind} at"):
        Directory(str(plugin_dir)).check("x.sock")


def test_only_dead_sockets_of_our_own_names_are_swept(plugin_dir: Path) -> None:
    def lay(name: str, *, listen: bool = False, age: float = 60.0) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(plugin_dir / name))
        if listen:
            made.listen(1)
        now = (plugin_dir / name).lstat().st_mtime
        os.utime(plugin_dir / name, (now - age, now - age), follow_symlinks=False)
        return made

    kept_open = lay("toy.io_live-1-0123abcd.sock", listen=True)
    for name in ("toy.io_dead-77-0123abcd.sock", "toy.io_dead-1-00000000.sock", "other.io_x-1-0123abcd.sock"):
        lay(name).close()
    lay("toy.io_thing.sock").close()
    lay("kubelet.sock").close()
    lay("toy.io_young-1-0123abcd.sock", age=0.0).close()
    (plugin_dir / "toy.io_file-1-0123abcd.sock").write_text("")
    removed = Directory(str(plugin_dir)).sweep("toy.io_")
    assert removed == ("toy.io_dead-1-00000000.sock", "toy.io_dead-77-0123abcd.sock")
    assert {path.name for path in plugin_dir.iterdir()} == {
        "toy.io_live-1-0123abcd.sock",
        "toy.io_young-1-0123abcd.sock",
        "toy.io_file-1-0123abcd.sock",
        "toy.io_thing.sock",
        "other.io_x-1-0123abcd.sock",
        "kubelet.sock",
    }
    kept_open.close()


def test_sweeping_a_directory_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert Directory(str(tmp_path / "no")).sweep("toy.io_") == ()
