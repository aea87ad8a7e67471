"""The kubelet's side of the device plugin's gRPC service.

One connection to one plugin socket: dial within a deadline, ask for options, watch the list, allocate.
Method paths, authority and limits as kubelet.md 2 and 3; written against the messages only, so that it
also checks the plugin's generated service code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, cast

import grpc

from devplugin.kubeletapi import api_pb2 as api
from gpusim.errors import GpusimError

RECEIVE_LIMIT = 4 << 20
"""Bytes of one message: the default of grpc-go, which the kubelet does not change (K21)."""
_SERVICE = "/v1beta1.DevicePlugin/"


class PluginError(GpusimError):
    """A call to the plugin failed; the text is what grpc-go prints."""


class Stream(Protocol):
    """A running ListAndWatch."""

    def __iter__(self) -> Iterator[api.ListAndWatchResponse]: ...

    def cancel(self) -> Any:
        """End it from this side."""
        ...


class Plugin:
    """A dialled plugin socket. Not shared with other clients: each has its own connection, as in Go."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._channel = grpc.insecure_channel(
            f"unix:{path}",
            options=(
                ("grpc.default_authority", "localhost"),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_receive_message_length", RECEIVE_LIMIT),
            ),
        )

    def dial(self, timeout: float, over: threading.Event) -> None:
        """Block until the plugin accepts, at most `timeout` seconds, or until `over` is set.

        Raises:
            PluginError: it did not in time.
        """
        ready = grpc.channel_ready_future(self._channel)
        end = time.monotonic() + timeout
        while not over.is_set():
            left = end - time.monotonic()
            try:
                ready.result(timeout=max(0.0, min(left, 0.1)))
            except grpc.FutureTimeoutError:
                if left > 0:
                    continue
                ready.cancel()
                raise PluginError("failed to dial device plugin: context deadline exceeded") from None
            return
        ready.cancel()
        raise PluginError("failed to dial device plugin: context canceled")

    def options(self) -> api.DevicePluginOptions:
        """GetDevicePluginOptions, without a deadline."""
        return cast(
            api.DevicePluginOptions,
            self._call("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions),
        )

    def watch(self) -> Stream:
        """Open ListAndWatch, without a deadline; iterating raises `grpc.RpcError` at its end.

        Raises:
            PluginError: the connection is closed.
        """
        method = self._channel.unary_stream(
            f"{_SERVICE}ListAndWatch",
            request_serializer=_serialize,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )
        try:
            return cast(Stream, method(api.Empty()))
        except ValueError as error:
            raise PluginError(str(error)) from None

    def prefer(
        self, available: Iterable[str], must: Iterable[str], size: int
    ) -> api.PreferredAllocationResponse:
        """GetPreferredAllocation for one container."""
        query = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = api.PreferredAllocationRequest(container_requests=[query])
        answer = self._call("GetPreferredAllocation", request, api.PreferredAllocationResponse)
        return cast(api.PreferredAllocationResponse, answer)

    def allocate(self, ids: Iterable[str]) -> api.AllocateResponse:
        """Allocate for one container, without a deadline."""
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])
        return cast(api.AllocateResponse, self._call("Allocate", request, api.AllocateResponse))

    def prestart(self, ids: Iterable[str], timeout: float) -> None:
        """PreStartContainer within `timeout` seconds."""
        request = api.PreStartContainerRequest(devices_ids=ids)
        self._call("PreStartContainer", request, api.PreStartContainerResponse, timeout)

    def close(self) -> None:
        """Close the connection; running calls end with an error on both sides."""
        self._channel.close()

    def _call(self, name: str, request: Any, answer: Any, timeout: float | None = None) -> Any:
        method = self._channel.unary_unary(
            f"{_SERVICE}{name}", request_serializer=_serialize, response_deserializer=answer.FromString
        )
        try:
            return method(request, timeout=timeout)
        except grpc.RpcError as error:
            raise PluginError(describe(error)) from None
        except ValueError:  # "Cannot invoke RPC on closed channel!"
            raise PluginError(f"endpoint {self.path} has been stopped") from None


def describe(error: grpc.RpcError) -> str:
    """An RPC error as grpc-go prints it: ``rpc error: code = Unavailable desc = …``."""
    call = cast(grpc.Call, error)
    name = "".join(word.capitalize() for word in call.code().name.split("_"))
    return f"rpc error: code = {'Canceled' if name == 'Cancelled' else name} desc = {call.details()}"


def _serialize(message: Any) -> bytes:
    raw: bytes = message.SerializeToString()
    return raw
