"""The daemon's API port over a store in this process, on a wire that can be cut anywhere.

Every call travels to the store and back in virtual time. At call number k the process that made it can be
killed before the call leaves, or after it took effect and before the answer arrives. What a killed process
had on the wire may still arrive, as with real sockets. Calls also meet what a live server does to them:
409, 500 before or after the effect, no answer until the client's own deadline.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from devplugin import kube
from devplugin.hami import Node, Pod
from devplugin.kubejson import annotations_patch, capacity_patch, read_node, read_pod, read_pods
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.apistore import Store

DEADLINE = 5.0
"""Seconds after which the client gives up on an answer (devplugin.kube.connect)."""


class Killed(BaseException):
    """The process is gone: nothing after this line runs."""


class Process(Protocol):
    """Who makes the calls."""

    alive: bool

    def die(self) -> None:
        """Stop everything at once."""
        ...


@dataclass
class Plan:
    """What happens to which call."""

    cuts: Mapping[int, str] = field(default_factory=dict)
    """Call number, counted over all lives of the process → ``before`` or ``after``."""
    trouble: float = 0.0
    """Share of calls that a live server answers badly."""
    seed: int = 0
    answers: Mapping[int, str] = field(default_factory=dict)
    """Call number → the one bad answer it gets (as `Port._trouble` names them)."""
    calls: int = 0
    busy: int = 0
    """Calls until everything calmed down; later ones are not cut."""
    met: list[tuple[int, str, str]] = field(default_factory=list)
    """Cuts carried out: number, when, call."""
    troubles: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(f"wire {self.seed}")

    def calm(self) -> None:
        """From now on nothing goes wrong."""
        self.busy = self.calls
        self.cuts, self.trouble = {}, 0.0


class Port:
    """`devplugin.kube.Api` for one process."""

    def __init__(self, store: Store, plan: Plan, process: Process) -> None:
        self._store, self._plan, self._process = store, plan, process

    async def node(self, name: str) -> Node:
        return await self._ask("get node", lambda: read_node(_json(self._store.get("nodes", name))))

    async def pod(self, namespace: str, name: str) -> Pod:
        return await self._ask("get pod", lambda: read_pod(_json(self._store.get("pods", name, namespace))))

    async def pods_on(self, node: str) -> tuple[Pod, ...]:
        def work() -> tuple[Pod, ...]:
            return read_pods(_json({"items": self._store.list("pods", fields=f"spec.nodeName={node}")}))

        return await self._ask("list pods", work)

    async def patch_pod(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        resource_version: str | None = None,
    ) -> Pod:
        body = annotations_patch(annotations, resource_version)
        return await self._ask(
            "patch pod", lambda: read_pod(_json(self._store.patch("pods", name, body, namespace)))
        )

    async def patch_node(
        self, name: str, annotations: Mapping[str, str | None], *, resource_version: str | None = None
    ) -> Node:
        body = annotations_patch(annotations, resource_version)
        return await self._ask("patch node", lambda: read_node(_json(self._store.patch("nodes", name, body))))

    async def patch_node_capacity(self, name: str, capacity: Mapping[str, int | None]) -> None:
        body = capacity_patch(capacity)
        await self._ask("patch status", lambda: self._store.patch("nodes", name, body, subresource="status"))

    async def event(self, about: kube.Reference, saying: kube.Saying) -> None:
        namespace = about.namespace or "default"
        body = {
            "metadata": {"generateName": f"{about.name}."} if saying.name is None else {"name": saying.name},
            "involvedObject": {
                "kind": about.kind,
                "name": about.name,
                "uid": about.uid,
                "namespace": about.namespace or "",
            },
            "type": saying.type,
            "reason": saying.reason,
            "message": saying.message,
        }
        try:
            await self._ask("create event", lambda: self._store.create("events", body, namespace))
        except kube.Conflict:
            return

    # -- the wire ---------------------------------------------------------------------------------------

    async def _ask(self, call: str, work: Callable[[], Any]) -> Any:
        plan = self._plan
        if not self._process.alive:
            raise Killed()
        number, plan.calls = plan.calls, plan.calls + 1
        when = plan.cuts.get(number)
        if when == "before":
            self._cut(number, when, call)
        trouble = plan.answers.get(number) or self._trouble(call)
        going, coming = self._latency(), self._latency()
        # The server's part goes on whatever becomes of who asked.
        server = asyncio.ensure_future(self._server(going, trouble, work))
        server.add_done_callback(lambda done: done.cancelled() or done.exception())
        result = await asyncio.shield(server)
        if when == "after":
            self._cut(number, when, call)
        if trouble == "silence":
            coming = DEADLINE - going
        await asyncio.sleep(coming)
        if not self._process.alive:
            raise Killed()
        failed = kube._Call("", call, "", "")
        if trouble in ("silence", "lost"):
            raise kube.Unavailable(f"{call}: no answer")
        if isinstance(result, ApiError):
            raise kube.failure(failed, result.code, json.dumps(result.status()).encode()) from result
        return result

    def _latency(self) -> float:
        """Milliseconds; from a troubled server now and then seconds: what was sent before arrives after."""
        random = self._plan.random
        slow = self._plan.trouble and random.random() < 0.06
        return random.uniform(0.5, 2.4) if slow else random.uniform(0.001, 0.08)

    def _cut(self, number: int, when: str, call: str) -> None:
        self._plan.met.append((number, when, call))
        self._process.die()
        raise Killed()

    def _trouble(self, call: str) -> str:
        if self._plan.random.random() >= self._plan.trouble:
            return ""
        kinds = ["500", "lost", "silence", "silence unheard", *(["409"] if call.startswith("patch") else [])]
        kind = self._plan.random.choice(kinds)
        self._plan.troubles[f"{kind} {call}"] += 1
        return kind

    async def _server(self, seconds: float, trouble: str, work: Callable[[], Any]) -> Any:
        await asyncio.sleep(seconds)
        # Of a process that died meanwhile, half of what it sent had not left its machine.
        if not self._process.alive and self._plan.random.random() < 0.5:
            raise Killed()
        if trouble == "409":
            return ApiError(409, "Conflict", "the object has been modified")
        if trouble == "500":
            return ApiError(500, "InternalError", "etcdserver: request timed out")
        if trouble == "silence unheard":
            await asyncio.sleep(DEADLINE - seconds)
            return ApiError(503, "ServiceUnavailable", "no answer")
        try:
            return work()
        except ApiError as error:
            return error


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
