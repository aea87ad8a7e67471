"""One resource as kubelet sees it: the DevicePlugin service over a list that somebody else keeps.

The list lives in a `Board`; a `Service` is one server's view of it and ends with that server. The
shapes answer bugs seen elsewhere (kubelet.md 1): each stream has its own queue, so an old stream
cannot eat what the live one should get (2); every resource has its own board, so one tick reaches
all (4); the first list is sent at once, also an empty one (7); the end of a stream is told (1).
What kubelet does with each call is kubelet.md 2.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import grpc

from devplugin.answers import ContainerEdits, Offer, PreferenceQuery, Refused
from devplugin.kubeletapi import api_pb2, api_pb2_grpc

log = logging.getLogger(__name__)

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

QUEUE = 16
"""Lists kept for a stream whose peer does not read; older ones are full lists that newer ones replace."""


class TryLater(Exception):  # noqa: N818 - says what to do
    """Allocate cannot be answered now and nothing was changed: becomes UNAVAILABLE (decision 24)."""


Prefer = Callable[[PreferenceQuery], tuple[str, ...]]
Allocate = Callable[[Sequence[str]], Awaitable[ContainerEdits]]


class Listener:
    """One stream's queue of lists, beginning with the list as it was when the stream opened."""

    def __init__(self, first: Offer) -> None:
        self._pending: deque[Offer] = deque([first], maxlen=QUEUE)
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, offer: Offer) -> None:
        """Add a list; never blocks."""
        self._pending.append(offer)
        self._wake.set()

    def close(self) -> None:
        """Let `next` answer None, also when it waits already."""
        self._closed = True
        self._wake.set()

    async def next(self) -> Offer | None:
        """The next list in the order they were put; None after `close`."""
        while True:
            if self._closed:
                return None
            if self._pending:
                return self._pending.popleft()
            self._wake.clear()
            await self._wake.wait()


class Board:
    """The present list of one resource, and everybody who is to hear of the next."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._listeners: set[Listener] = set()

    @property
    def offer(self) -> Offer:
        """The list as last published."""
        return self._offer

    def publish(self, offer: Offer) -> bool:
        """Replace the list; True when it differs and was handed to every listener."""
        if offer == self._offer:
            return False
        self._offer = offer
        for listener in self._listeners:
            listener.put(offer)
        return True

    def listen(self) -> Listener:
        """A new listener, to be given back to `leave`."""
        listener = Listener(self._offer)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """Forget a listener."""
        self._listeners.discard(listener)


class Service(api_pb2_grpc.DevicePluginServicer):
    """The five methods, for one server of one resource.

    Args:
        board: the list to stream.
        prefer: best ids for a query; may raise anything.
        allocate: edits for one container; raises `Refused` or `TryLater`.
        changed: called when the number of open streams changes.
    """

    def __init__(self, board: Board, prefer: Prefer, allocate: Allocate, changed: Callable[[], None]) -> None:
        self._board = board
        self._prefer = prefer
        self._allocate = allocate
        self._changed = changed
        self._open: set[Listener] = set()
        self._closed = False
        self.opened = 0
        """Streams opened since the server began."""

    @property
    def streams(self) -> int:
        """Streams open now."""
        return len(self._open)

    def close(self) -> None:
        """End every stream by our own hand; a parked handler would make `server.stop` print a traceback."""
        self._closed = True
        for listener in self._open:
            listener.close()

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> api_pb2.DevicePluginOptions:  # noqa: N802
        """What we want to be asked; kubelet asks inside Register and ignores the options sent there."""
        return api_pb2.DevicePluginOptions(get_preferred_allocation_available=self._board.offer.preferred)

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[api_pb2.ListAndWatchResponse]:  # noqa: N802
        """The full list at once, and again after every change, until the peer or we end the stream."""
        if self._closed:
            return
        listener = self._board.listen()
        self._open.add(listener)
        self.opened += 1
        self._changed()
        try:
            while (offer := await listener.next()) is not None:
                yield list_message(offer)
        finally:
            self._board.leave(listener)
            self._open.discard(listener)
            self._changed()

    async def GetPreferredAllocation(  # noqa: N802
        self, request: api_pb2.PreferredAllocationRequest, context: Any
    ) -> api_pb2.PreferredAllocationResponse:
        """Never an error: kubelet would fail the pod, while it tolerates any answer (decision 26)."""
        response = api_pb2.PreferredAllocationResponse()
        for one in request.container_requests:
            query = PreferenceQuery(
                available=tuple(one.available_deviceIDs),
                must_include=tuple(one.must_include_deviceIDs),
                size=one.allocation_size,
            )
            response.container_responses.add(deviceIDs=self._preferred(query))
        return response

    def _preferred(self, query: PreferenceQuery) -> tuple[str, ...]:
        try:
            return self._prefer(query)
        except Exception as error:  # whatever it is, an answer is better than a failed pod
            log.warning(
                "%s: no preference among %d devices for %d: %s",
                self._board.offer.resource,
                len(query.available),
                query.size,
                error,
            )
            return echo(query)

    async def Allocate(self, request: api_pb2.AllocateRequest, context: Any) -> api_pb2.AllocateResponse:  # noqa: N802
        """One response for each container; kubelet sends one container and uses index 0."""
        response = api_pb2.AllocateResponse()
        for one in request.container_requests:
            try:
                edits = await self._allocate(tuple(one.devices_ids))
            except Refused as refusal:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(refusal))
            except TryLater as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            response.container_responses.append(edits_message(edits))
        return response

    async def PreStartContainer(self, request: Any, context: Any) -> api_pb2.PreStartContainerResponse:  # noqa: N802
        """Nothing to do; our options do not ask for it."""
        return api_pb2.PreStartContainerResponse()


def echo(query: PreferenceQuery) -> tuple[str, ...]:
    """Kubelet's own ids back: those it must include, then the available ones in its order, cut to size."""
    ids = dict.fromkeys((*query.must_include, *query.available))
    return tuple(ids)[: max(query.size, 0)]


def list_message(offer: Offer) -> api_pb2.ListAndWatchResponse:
    """A list as kubelet reads it; a device of unknown NUMA node carries no topology (decision 27)."""
    return api_pb2.ListAndWatchResponse(
        devices=[
            api_pb2.Device(
                ID=device.id,
                health=HEALTHY if device.healthy else UNHEALTHY,
                topology=_topology(device.numa) if device.numa else None,
            )
            for device in offer.devices
        ]
    )


def _topology(nodes: Iterable[int]) -> api_pb2.TopologyInfo:
    return api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=node) for node in nodes])


def edits_message(edits: ContainerEdits) -> api_pb2.ContainerAllocateResponse:
    """One container's edits as kubelet reads them."""
    return api_pb2.ContainerAllocateResponse(
        envs=edits.envs,
        mounts=[
            api_pb2.Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in edits.mounts
        ],
        devices=[
            api_pb2.DeviceSpec(container_path=d.path, host_path=d.path, permissions=d.permissions)
            for d in edits.devices
        ],
        annotations=edits.annotations,
        cdi_devices=[api_pb2.CDIDevice(name=name) for name in edits.cdi],
    )
