"""Pods on a node with everything around it: created, scheduled, served by daemon processes, deleted.

What such a node has of devices and daemons is its own class's; this is what all of them do with pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devplugin.hami import LOCK
from gpusim.cluster.kubelet_edits import Edits
from gpusim.cluster.pods import container, pod
from gpusim.cluster.scheduler import Scheduler
from gpusim.cluster.scheduler_webhook import admit

from ..devplugin.daemon.rig import Plugin, Rig, until


class Living(Rig):
    """A rig whose kubelet takes up what its scheduler binds."""

    scheduler: Scheduler
    plugin: Plugin
    """The daemon whose words are shown when a pod does not come to run."""

    def create(self, name: str, *limits: Mapping[str, int] | None, **more: Any) -> dict[str, Any]:
        """A pod with a container for each of these limits, as the webhook lets it in."""
        containers = [container(f"c{i}", one) for i, one in enumerate(limits)]
        admitted = admit(pod(name, containers, **more), self.scheduler.vendors)
        assert not admitted.denied, admitted.denied
        return self.store.create("pods", admitted.pod)

    def phase(self, name: str) -> str:
        return str((self.pod(name).get("status") or {}).get("phase"))

    def ends_in(self, name: str, seconds: float = 30.0) -> str:
        """Running or Failed, once it is either."""
        until(
            lambda: self.phase(name) in {"Running", "Failed"},
            seconds,
            lambda: f"{self.pod(name)}\n{self.scheduler.events[-8:]}\n{self.plugin.lines()[-5:]}",
        )
        return self.phase(name)

    def runs(self, name: str, seconds: float = 30.0) -> dict[str, Edits]:
        """Wait until it does; what its containers got."""
        assert self.ends_in(name, seconds) == "Running", (self.pod(name)["status"], self.plugin.lines()[-5:])
        return dict(self.kubelet.admissions[self.pod(name)["metadata"]["uid"]].containers)

    def fails(self, name: str) -> str:
        """Wait until it does; why."""
        assert self.ends_in(name) == "Failed"
        return str(self.pod(name)["status"]["message"])

    def delete(self, name: str) -> None:
        uid = self.pod(name)["metadata"]["uid"]
        self.store.delete("pods", name, grace_seconds=None)
        until(lambda: all(one["metadata"]["name"] != name for one in self.store.list("pods")))
        until(lambda: not self.kubelet.holdings(uid))

    def unlocked(self) -> bool:
        return bool(until(lambda: self.node_annotation(LOCK) is None, 35))

    def events(self) -> list[tuple[str, str]]:
        """(reason, message) of what people are told."""
        return [(event["reason"], event["message"]) for event in self.store.list("events")]
