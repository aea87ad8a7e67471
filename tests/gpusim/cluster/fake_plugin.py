"""A small device plugin of the tests' own, on a real socket, that can also be told to be wrong."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from devplugin.kubeletapi import api_pb2 as api

RESOURCE = "example.com/gpu"
_numbers = itertools.count(1)


def device(name: str, *numa: int, health: str = "Healthy") -> api.Device:
    topology = api.TopologyInfo(nodes=[api.NUMANode(ID=n) for n in numa]) if numa else None
    return api.Device(ID=name, health=health, topology=topology)


def devices(count: int, **more: Any) -> list[api.Device]:
    return [device(f"d{i}", **more) for i in range(count)]


class FakePlugin:
    """Serves first, registers on `register`. Replace `on_allocate`, `on_prefer`, `on_prestart` or
    `on_options` to misbehave; a raised exception becomes the RPC's error."""

    def __init__(
        self,
        directory: Path,
        listed: Iterable[api.Device] = (),
        *,
        resource: str = RESOURCE,
        preferred: bool = False,
        prestart: bool = False,
        endpoint: str | None = None,
    ) -> None:
        self.directory, self.resource = directory, resource
        self.endpoint = endpoint or f"fake-{next(_numbers)}.sock"
        self.options = api.DevicePluginOptions(
            get_preferred_allocation_available=preferred, pre_start_required=prestart
        )
        self.allocations: list[tuple[str, ...]] = []
        self.queries: list[tuple[set[str], set[str], int]] = []
        self.prestarts: list[tuple[str, ...]] = []
        self.option_calls = 0
        self.streams = 0
        self.ended = 0
        self.on_allocate: Callable[[tuple[str, ...]], api.AllocateResponse] = self.answer
        self.on_prefer: Callable[[set[str], set[str], int], list[str]] = self.first
        self.on_prestart: Callable[[tuple[str, ...]], None] = lambda ids: None
        self.on_options: Callable[[], None] = lambda: None
        self._listed = list(listed)
        self._changed = threading.Condition()
        self._version = 1
        self._open = True
        self._workers = ThreadPoolExecutor(max_workers=12)
        self._server: grpc.Server | None = None

    # -- what it answers --------------------------------------------------------------------------

    @staticmethod
    def answer(ids: tuple[str, ...]) -> api.AllocateResponse:
        one = api.ContainerAllocateResponse(envs={"IDS": ",".join(sorted(ids))})
        return api.AllocateResponse(container_responses=[one])

    @staticmethod
    def first(available: set[str], must: set[str], size: int) -> list[str]:
        rest = sorted(available - must)
        return [*sorted(must), *rest][:size]

    # -- life ----------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self.directory / self.endpoint

    def serve(self) -> FakePlugin:
        server = grpc.server(self._workers)
        handlers = {
            "GetDevicePluginOptions": _unary(self._options, api.Empty),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=api.Empty.FromString,
                response_serializer=api.ListAndWatchResponse.SerializeToString,
            ),
            "GetPreferredAllocation": _unary(self._prefer, api.PreferredAllocationRequest),
            "Allocate": _unary(self._allocate, api.AllocateRequest),
            "PreStartContainer": _unary(self._prestart, api.PreStartContainerRequest),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),)
        )
        server.add_insecure_port(f"unix:{self.path}")
        server.start()
        self._server = server
        return self

    def register(
        self, *, version: str = "v1beta1", resource: str | None = None, timeout: float = 15.0
    ) -> FakePlugin:
        request = api.RegisterRequest(
            version=version,
            endpoint=self.endpoint,
            resource_name=self.resource if resource is None else resource,
            # the kubelet must ignore these and ask
            options=api.DevicePluginOptions(
                pre_start_required=not self.options.pre_start_required,
                get_preferred_allocation_available=not self.options.get_preferred_allocation_available,
            ),
        )
        options = (("grpc.use_local_subchannel_pool", 1),)
        with grpc.insecure_channel(f"unix:{self.directory / 'kubelet.sock'}", options=options) as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=api.RegisterRequest.SerializeToString,
                response_deserializer=api.Empty.FromString,
            )
            call(request, timeout=timeout, wait_for_ready=True)
        return self

    def send(self, listed: Iterable[api.Device]) -> None:
        with self._changed:
            self._listed = list(listed)
            self._version += 1
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None
        self._workers.shutdown(wait=True)

    def __enter__(self) -> FakePlugin:
        return self.serve()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- service ---------------------------------------------------------------------------------------

    def _options(self, request: api.Empty, context: grpc.ServicerContext) -> api.DevicePluginOptions:
        self.option_calls += 1
        self.on_options()
        return self.options

    def _watch(self, request: api.Empty, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]:
        self.streams += 1
        alive = True

        def over() -> None:
            nonlocal alive
            with self._changed:
                alive = False
                self.ended += 1
                self._changed.notify_all()

        context.add_callback(over)
        seen = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda s=seen: not self._open or not alive or self._version > s)
                if not self._open or not alive:
                    return
                seen, listed = self._version, list(self._listed)
            yield api.ListAndWatchResponse(devices=listed)

    def _prefer(
        self, request: api.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        one = request.container_requests[0]
        query = (set(one.available_deviceIDs), set(one.must_include_deviceIDs), one.allocation_size)
        self.queries.append(query)
        answer = api.ContainerPreferredAllocationResponse(deviceIDs=_guarded(context, self.on_prefer, *query))
        return api.PreferredAllocationResponse(container_responses=[answer])

    def _allocate(self, request: api.AllocateRequest, context: grpc.ServicerContext) -> api.AllocateResponse:
        ids = tuple(request.container_requests[0].devices_ids)
        self.allocations.append(ids)
        return _guarded(context, self.on_allocate, ids)

    def _prestart(
        self, request: api.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        ids = tuple(request.devices_ids)
        self.prestarts.append(ids)
        _guarded(context, self.on_prestart, ids)
        return api.PreStartContainerResponse()


def _guarded(context: grpc.ServicerContext, work: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return work(*arguments)
    except ValueError as error:
        context.abort(grpc.StatusCode.UNKNOWN, str(error))


def _unary(method: Callable[..., Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        method,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


def refuse(why: str) -> Callable[..., Any]:
    """A behaviour that answers with an RPC error."""

    def behave(*_: object) -> Any:
        raise ValueError(why)

    return behave


def eventually(holds: Callable[[], bool], timeout: float = 5.0) -> bool:
    end = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
