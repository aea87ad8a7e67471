"""Which devices the scheduler believes in: its rounds over the nodes' registrations.

ascend_ppu_hami.md D.3. A vendor without a handshake: read the annotation, look whether kubelet counts any
of its devices, then remember them, or delete a registration that was believed before. A vendor with one:
the handshake decides (`scheduler_handshake`) whether the registration is read anew, kept as it was
believed, or forgotten together with the handshake. What was not believed yet is left alone: a plugin may
write its annotation before kubelet has published the devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Any

from gpusim.cluster import scheduler_handshake as handshake
from gpusim.cluster.apiport import Api
from gpusim.cluster.apistatus import ApiError, UnreachableError
from gpusim.cluster.kubelet_journal import Journal
from gpusim.cluster.scheduler_devices import Registered, RegistrationError, alive, registered
from gpusim.cluster.scheduler_vendors import Vendor

Object = dict[str, Any]


class Nodes:
    """What the last round found.

    Args:
        api: where nodes are.
        vendors: rows of the table in use.
        believes: ``capacity`` or, newer, ``allocatable``.
        journal: is told ``registered``, ``unregistered``, ``cleaned`` and ``twins``.
        now: unix seconds, of handshakes.
        zone: of their times; None: this process's.
    """

    def __init__(
        self,
        api: Api,
        vendors: Sequence[Vendor],
        believes: str,
        journal: Journal,
        *,
        now: Callable[[], float] = time.time,
        zone: tzinfo | None = None,
    ) -> None:
        self._api, self._vendors, self._believes, self._journal = api, tuple(vendors), believes, journal
        self._now, self._zone = now, zone
        self.devices: dict[str, dict[str, tuple[Registered, ...]]] = {}
        """Node → vendor's word → devices."""
        self._seen: frozenset[str] = frozenset()
        self._read = float("-inf")
        self._twins: dict[str, tuple[str, ...]] = {}

    def due(self, seconds: float) -> bool:
        """Whether the last round is so long ago, or a node has come since.

        Raises:
            ApiError: as the server says.
            UnreachableError: no answer.
        """
        if time.monotonic() - self._read >= seconds:
            return True
        return not {node["metadata"]["name"] for node in self._api.list("nodes")} <= self._seen

    def refresh(self) -> None:
        """One round over all nodes and vendors.

        Raises:
            ApiError: as the server says.
            UnreachableError: no answer.
        """
        nodes = self._api.list("nodes")
        self._read = time.monotonic()
        self._seen = frozenset(node["metadata"]["name"] for node in nodes)
        for gone in set(self.devices) - self._seen:
            del self.devices[gone]
        for node in nodes:
            for vendor in self._vendors:
                self._look(node, vendor)
        self._warn_of_twins()

    def _look(self, node: Object, vendor: Vendor) -> None:
        name = node["metadata"]["name"]
        known = self.devices.setdefault(name, {})
        try:
            found = registered(node, vendor)
        except RegistrationError as error:
            # missing, empty or garbage: no devices (amd.md 17)
            if known.pop(vendor.word, None) is not None:
                self._journal.record("unregistered", node=name, vendor=vendor.word, why=str(error))
            return
        if vendor.handshake:
            believed = self._shake_hands(node, vendor)
            if believed is None:
                return  # as it was
        else:
            believed = alive(node, vendor, self._believes)
        if believed:
            if known.get(vendor.word) != found:
                self._journal.record("registered", node=name, vendor=vendor.word, devices=len(found))
            known[vendor.word] = found
        elif vendor.word in known:
            # what a plugin writes every 30 s is deleted: its handshake, or else the registration
            key = vendor.handshake or vendor.register
            self._api.patch("nodes", name, {"metadata": {"annotations": {key: None}}})
            del known[vendor.word]
            self._journal.record("cleaned", node=name, vendor=vendor.word)

    def _shake_hands(self, node: Object, vendor: Vendor) -> bool | None:
        """Whether a node's devices are to be believed; None: neither more nor less than before."""
        name, now = node["metadata"]["name"], self._now()
        value = (node["metadata"].get("annotations") or {}).get(vendor.handshake)
        verdict = handshake.judge(value, now, counted=alive(node, vendor, "allocatable"), zone=self._zone)
        if not verdict.healthy:
            return False
        if not verdict.refresh:
            return None
        asked = {"metadata": {"annotations": {vendor.handshake: handshake.request(now, self._zone)}}}
        try:
            self._api.get("nodes", name)
            self._api.patch("nodes", name, asked)
        except (ApiError, UnreachableError):
            return None  # a node that is not to be had is not read anew either (D.3)
        return True

    def _warn_of_twins(self) -> None:
        """Ids are keys of the whole cluster (B39): say once which ones several nodes share."""
        where: dict[str, list[str]] = {}
        for node, vendors in sorted(self.devices.items()):
            for device in (one for devices in vendors.values() for one in devices):
                where.setdefault(device.id, []).append(node)
        twins = {id_: tuple(nodes) for id_, nodes in where.items() if len(nodes) > 1}
        for id_, nodes in twins.items():
            if self._twins.get(id_) != nodes:
                self._journal.record("twins", id=id_, nodes=nodes)
        self._twins = twins
