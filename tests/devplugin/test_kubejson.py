"""What the plugin takes from a pod's JSON body about its containers' states."""

from __future__ import annotations

import json
from typing import Any

from devplugin.kubejson import read_pod


def body(*statuses: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> bytes:
    status = {"phase": "Pending", "containerStatuses": list(statuses), "initContainerStatuses": list(init)}
    return json.dumps({"metadata": {"name": "p"}, "status": status}).encode()


def test_a_containers_reason_to_wait_is_taken_from_its_status_and_an_init_containers_too() -> None:
    pod = read_pod(
        body(
            {"name": "a", "state": {"waiting": {"reason": "ContainerCreating"}}},
            {"name": "b", "containerID": "containerd://1", "state": {"running": {"startedAt": "x"}}},
            init=({"name": "i", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}},),
        )
    )
    assert pod.waiting == {"i": "ImagePullBackOff", "a": "ContainerCreating"}
    assert pod.container_ids == {"1": "b"}


def test_a_container_that_waits_without_saying_why_waits_all_the_same() -> None:
    assert read_pod(body({"name": "a", "state": {"waiting": {}}})).waiting == {"a": ""}


def test_a_container_without_a_state_does_not_wait() -> None:
    assert read_pod(body({"name": "a"}, {"name": "b", "state": None})).waiting == {}
