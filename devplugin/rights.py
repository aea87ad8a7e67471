"""What a daemon asks of the API server, as a ClusterRole lists it, and what each is needed for.

One table: the preflight asks for every row, the charts' ClusterRoles grant them, and a test compares it with
what the daemons were recorded to call (decision 56).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource of the core group."""

    verb: str
    resource: str
    """``pods``, or with its subresource ``nodes/status``."""
    purpose: str
    """What does not work without it."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


PLUGIN = (
    Right("get", "nodes", "reading the node's lock and annotations: no Allocate without it"),
    Right("patch", "nodes", "registering the devices and releasing the node lock"),
    Right("patch", "nodes/status", "publishing capacity, and taking it back"),
    Right("get", "pods", "finding the owner of the node lock"),
    Right("list", "pods", "finding the pod that an Allocate serves"),
    Right("patch", "pods", "recording what a pod got: every Allocate fails without it"),
    Right("create", "events", "telling a pod's owner why it was refused"),
)
"""A device plugin's."""
MONITOR = (
    Right("get", "nodes", "reading which devices are registered"),
    Right("list", "pods", "naming the pods that containers belong to"),
)
"""A monitor's."""
LABELLER = (
    Right("get", "nodes", "reading the labels there are"),
    Right("patch", "nodes", "setting labels"),
)
"""The node labeller's."""
