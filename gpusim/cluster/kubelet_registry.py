"""Registration: checks, the dial-back inside the same RPC, and one watching thread per plugin.

Two generations of the original are here (kubelet.md 2, *Register* and *Duplicate registration*). Up to
v1.36.2 clients are kept by resource name, and whoever's stream ends disconnects the client found under that
name, even if it is a newer one. On main they are kept by name and socket path.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

import grpc

from devplugin.kubeletapi import api_pb2 as api
from gpusim.cluster.kubelet_devices import DeviceTable
from gpusim.cluster.kubelet_journal import Journal
from gpusim.cluster.kubelet_wire import Plugin, PluginError, Stream, describe
from gpusim.cluster.resourcenames import is_extended
from gpusim.errors import GpusimError

GENERATIONS = ("1.36", "main")


class RegistrationError(GpusimError):
    """Register is refused; gRPC code Unknown, as every plain error in Go."""


@dataclass(slots=True)
class KubeletFaults:
    """Set these on a running kubelet; they strike the next registration or allocation."""

    options_failures: int = 0
    """How many of the next GetDevicePluginOptions calls fail (K6)."""
    accepted_version: str = "v1beta1"
    """Any other value makes every registration of today's plugins fail (K8)."""
    dial_delay: float = 0.0
    """Seconds before the dial-back succeeds; from the dial timeout on it fails (K7)."""
    allocate_delay: float = 0.0
    """Seconds before an Allocate is sent while admission waits."""


class Client:
    """One registration of one plugin."""

    def __init__(self, resource: str, path: str) -> None:
        self.resource, self.path = resource, path
        self.plugin = Plugin(path)
        self.stream: Stream | None = None


class Registry:
    """Who registered. One per life of the kubelet.

    Args:
        directory: endpoints are joined to it.
        table: is told about connections and lists.
        journal: what happened.
        faults: looked at on every registration.
        generation: one of `GENERATIONS`.
        dial_timeout: seconds for the dial-back (10 in the original).
        listed: called after every message of a plugin.
    """

    def __init__(
        self,
        directory: Path,
        table: DeviceTable,
        journal: Journal,
        faults: KubeletFaults,
        *,
        generation: str,
        dial_timeout: float,
        listed: Callable[[], None],
    ) -> None:
        self._directory, self._table, self._journal, self._faults = directory, table, journal, faults
        self._generation, self._dial_timeout, self._listed = generation, dial_timeout, listed
        self._lock = threading.Lock()
        self._clients: dict[Hashable, Client] = {}
        self._all: list[Client] = []
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self.counts: Counter[str] = Counter()
        """The metric ``kubelet_device_plugin_registration_total`` by resource name."""

    def register(self, request: api.RegisterRequest) -> None:
        """The Register RPC, checks in the original's order.

        Raises:
            RegistrationError: refused; the text is the RPC's message.
        """
        resource = request.resource_name
        self._journal.record("registering", resource, version=request.version, endpoint=request.endpoint)
        self.counts[resource] += 1
        try:
            if request.version != self._faults.accepted_version:
                raise RegistrationError(
                    f'requested API version "{request.version}" is not supported by kubelet. '
                    f'Supported version is ["{self._faults.accepted_version}"]'
                )
            if not is_extended(resource):
                raise RegistrationError(f'the ResourceName "{resource}" is invalid')
            client = self._connect(resource, str(self._directory / request.endpoint.lstrip("/")))
        except RegistrationError as error:
            self._journal.record("refused", resource, why=str(error))
            raise
        self._journal.record("registered", resource, endpoint=request.endpoint)
        thread = threading.Thread(target=self._watch, args=(client,), name=f"watch {resource}", daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _key(self, client: Client) -> Hashable:
        return client.resource if self._generation == "1.36" else (client.resource, client.path)

    def _connect(self, resource: str, path: str) -> Client:
        client = Client(resource, path)
        with self._lock:
            self._clients[self._key(client)] = client
            self._all.append(client)
        try:
            self._dial(client)
            if self._faults.options_failures > 0:
                self._faults.options_failures -= 1
                raise PluginError("rpc error: code = Unavailable desc = injected fault")
            options = client.plugin.options()
        except PluginError as error:
            with self._lock:  # by name, so that an older client is forgotten with it
                self._clients.pop(self._key(client), None)
            client.plugin.close()
            text = str(error)
            if not text.startswith("failed to dial"):
                text = f"failed to get device plugin options: {text}"
            raise RegistrationError(text) from None
        self._table.connected(
            resource,
            client.plugin,
            prestart=options.pre_start_required,
            preferred=options.get_preferred_allocation_available,
        )
        return client

    def _dial(self, client: Client) -> None:
        delay = self._faults.dial_delay
        if delay and self._over.wait(min(delay, self._dial_timeout)):
            raise PluginError("failed to dial device plugin: context canceled")
        if delay >= self._dial_timeout:
            raise PluginError("failed to dial device plugin: context deadline exceeded")
        client.plugin.dial(self._dial_timeout - delay, self._over)

    def _watch(self, client: Client) -> None:
        why = ""
        try:
            client.stream = client.plugin.watch()
            for message in client.stream:
                self._table.listed(client.resource, message.devices)
                self._listed()
            why = "EOF"
        except PluginError as error:
            why = str(error)
        except grpc.RpcError as error:
            why = describe(error)
        if not self._over.is_set():
            self._journal.record("watch-over", client.resource, endpoint=client.path, why=why)
            self._ended(client)

    def _ended(self, client: Client) -> None:
        """Disconnect the client found under the key of the one whose stream ended: see the module's text."""
        with self._lock:
            found = self._clients.pop(self._key(client), None)
        if found is None:
            return
        found.plugin.close()
        endpoint = self._table.endpoint(client.resource)
        newer = endpoint is not None and endpoint.plugin is not found.plugin
        if self._generation == "1.36" or not newer:
            self._table.disconnected(client.resource)

    def cancel_stream(self, resource: str) -> bool:
        """End the newest stream of a resource from our side, the connection's process staying alive (K5)."""
        with self._lock:
            streams = [c.stream for c in self._all if c.resource == resource and c.stream is not None]
        if streams:
            streams[-1].cancel()
        return bool(streams)

    def close(self) -> None:
        """End everything: connections, streams, threads. Nothing is marked: this life is over."""
        self._over.set()
        with self._lock:
            clients, threads = list(self._all), list(self._threads)
        for client in clients:
            client.plugin.close()
        for thread in threads:
            thread.join(5)
