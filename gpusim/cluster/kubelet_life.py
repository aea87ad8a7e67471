"""One life of the kubelet process: from start to stop or death.

Holds what dies with the process (sockets, connections, the device table) and reads what survives (the
checkpoint). Start as in kubelet.md 2 *Directory*: checkpoint first, then every socket in the directory is
removed, then listen.
"""

from __future__ import annotations

import json
import secrets
import stat
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from devplugin.kubeletapi import api_pb2 as api
from gpusim.cluster import kubelet_checkpoint as checkpoints
from gpusim.cluster.kubelet_admission import Admitter, Runtime
from gpusim.cluster.kubelet_allocation import Allocator
from gpusim.cluster.kubelet_checkpoint import Checkpoint, CheckpointError
from gpusim.cluster.kubelet_devices import DeviceTable
from gpusim.cluster.kubelet_edits import Admission
from gpusim.cluster.kubelet_groups import Outcome, PodProcesses
from gpusim.cluster.kubelet_holdings import Holdings
from gpusim.cluster.kubelet_journal import Journal
from gpusim.cluster.kubelet_registry import KubeletFaults, RegistrationError, Registry
from gpusim.cluster.kubelet_requests import lasting, total, uid
from gpusim.errors import GpusimError

Object = dict[str, Any]
SOCKET = "kubelet.sock"


class KubeletGoneError(GpusimError):
    """The kubelet ended while it was at this: nothing of it counts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a kubelet is configured with."""

    directory: Path
    generation: str
    seed: int
    topology_policy: str
    numa_nodes: tuple[int, ...]
    pods_directory: Path | None
    grace_seconds: float
    dial_timeout: float
    prestart_timeout: float
    keep_finished_init: bool
    clock: Callable[[], float]
    processes: PodProcesses | None = None
    """Who starts containers on a simulated node; None: nobody does."""


class Life:
    """A running kubelet.

    Args:
        settings: the configuration.
        journal: what happens, over all lives.
        faults: over all lives.
        runtime: over all lives until a reboot; filled from the checkpoint when it is None.
        number: of this life; makes another random order than the last one's.

    Raises:
        GpusimError: the socket cannot be made.
    """

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        faults: KubeletFaults,
        runtime: Runtime | None,
        number: int,
    ) -> None:
        self.settings, self._journal = settings, journal
        self.over = threading.Event()
        settings.directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        memory = self._remember()
        self.recreated = memory is None
        memory = memory or Checkpoint()
        self.runtime = runtime if runtime is not None else Runtime(memory.running)
        self.table = DeviceTable(journal, settings.clock, settings.grace_seconds, settings.numa_nodes)
        self.table.restore(memory.registered)
        self.holdings = Holdings(memory.holdings)
        self.registry = Registry(
            settings.directory,
            self.table,
            journal,
            faults,
            generation=settings.generation,
            dial_timeout=settings.dial_timeout,
            listed=self.save,
        )
        allocator = Allocator(
            self.table, self.holdings, journal, faults, seed=settings.seed + number, over=self.over
        )
        self._admitter = Admitter(
            allocator,
            self.table,
            self.holdings,
            self.runtime,
            journal,
            policy=settings.topology_policy,
            numa_nodes=settings.numa_nodes,
            prestart_timeout=settings.prestart_timeout,
            keep_finished_init=settings.keep_finished_init,
        )
        self._admission = threading.Lock()
        self._files = threading.Lock()
        self.pods: dict[str, Object] = {}
        """Admitted pods that have not ended, by uid."""
        self.admissions: dict[str, Admission] = {}
        self.allocatable: dict[str, int] = {}
        """Extended resources of the node object, as last seen."""
        self._server: grpc.Server | None = None
        self._workers = ThreadPoolExecutor(max_workers=16, thread_name_prefix="kubelet-rpc")
        self._hidden: Path | None = None

    # -- start and end ----------------------------------------------------------------------------------

    def _remember(self) -> Checkpoint | None:
        try:
            return checkpoints.read(self.settings.directory)
        except CheckpointError as error:
            self._journal.record("checkpoint-unreadable", why=str(error))
            return Checkpoint()  # the original goes on with nothing too

    def listen(self) -> None:
        """Remove all sockets of the directory, then serve.

        gRPC unlinks the path it was bound to when it stops. A kubelet that dies leaves its socket file, so
        we bind beside the directory and hard-link the socket in; whether the link goes is then ours.
        """
        directory = self.settings.directory
        for path in sorted(directory.iterdir()):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
                self._journal.record("socket-removed", name=path.name)
        (directory / "DEPRECATION").touch()
        server = grpc.server(self._workers)
        server.add_generic_rpc_handlers((_handler(self._register),))
        self._hidden = directory.parent / f".k{secrets.token_hex(3)}"
        self._hidden.mkdir(mode=0o700)
        bound = self._hidden / "s"
        try:
            server.add_insecure_port(f"unix:{bound}")
            server.start()
            self._server = server
            (directory / SOCKET).hardlink_to(bound)
        except (RuntimeError, OSError) as error:
            self.end(unlink=False)
            raise GpusimError(f"cannot listen on {directory / SOCKET}: {error}") from error
        self._journal.record("started", directory=str(directory))

    def end(self, *, unlink: bool) -> None:
        """Stop serving, end all streams and calls. `unlink`: kubelet.sock goes too (it was a clean stop)."""
        self.over.set()
        if unlink:
            (self.settings.directory / SOCKET).unlink(missing_ok=True)
        if self._server is not None:
            self._server.stop(0)
        self.registry.close()
        self.table.close()
        if self._server is not None:
            self._server.stop(None).wait(5)
        self._workers.shutdown(wait=True, cancel_futures=True)
        if self._hidden is not None:
            (self._hidden / "s").unlink(missing_ok=True)
            with suppress(OSError):
                self._hidden.rmdir()

    def _register(self, request: api.RegisterRequest, context: grpc.ServicerContext) -> api.Empty:
        try:
            self.registry.register(request)
        except RegistrationError as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        self.save()
        return api.Empty()

    def save(self) -> None:
        """Write the checkpoint."""
        if self.over.is_set():
            return
        registered = {r: tuple(sorted(self.table.healthy(r))) for r in self.table.totals()[0]}
        with self._files:
            checkpoints.write(
                self.settings.directory,
                Checkpoint(tuple(self.holdings.all()), registered, self.runtime.all()),
            )

    # -- pods -------------------------------------------------------------------------------------------

    def admit(self, pod: Object, *, syncing: bool = False) -> Admission:
        """Admit and start a pod; one at a time, so all wait for an Allocate that hangs.

        Raises:
            KubeletGoneError: the kubelet ended meanwhile.
        """
        with self._admission:
            self._alive()
            others = {
                r: sum(total(p, r) for u, p in self.pods.items() if u != uid(pod)) for r in self.allocatable
            }
            admission = self._admitter.admit(
                pod, syncing=syncing, allocatable=self.allocatable, others=others
            )
            self._alive()
            if not admission.admitted:
                self.holdings.retain({h.uid for h in self.holdings.all()} - {uid(pod)})
                self._journal.record(
                    "rejected", uid=uid(pod), reason=admission.reason, message=admission.message
                )
            else:
                self.pods[uid(pod)] = pod
                self._journal.record("admitted", uid=uid(pod), pod=pod["metadata"]["name"])
                self.save()
                if not set(lasting(pod)) <= set(self.runtime.running(uid(pod))):
                    admission = self._start(pod, admission)
            return self._keep(pod, admission)

    def start(self, pod: Object) -> Admission:
        """Try again to start what does not run of an admitted pod."""
        with self._admission:
            self._alive()
            return self._keep(pod, self._start(pod, self.admissions[uid(pod)]))

    def _start(self, pod: Object, admission: Admission) -> Admission:
        running = self.runtime.running(uid(pod))
        blocked = self._admitter.start(pod)
        self._alive()
        edits, outcome = self._admitter.edits(pod), Outcome()
        if blocked:
            self._journal.record("blocked", uid=uid(pod), why=blocked)
        elif self.settings.processes is not None:
            try:
                outcome = self.settings.processes.start(pod, edits, running)
                self.runtime.only(pod, outcome.running)
            except (OSError, GpusimError) as error:
                self._journal.record("runtime-error", uid=uid(pod), why=str(error))
            for name, why in {**outcome.failures, "": outcome.sandbox}.items():
                if why:
                    self._journal.record("runtime-error", uid=uid(pod), container=name, why=why)
        self.save()
        return replace(
            admission,
            blocked=blocked,
            containers=edits,
            sandbox=outcome.sandbox,
            failures=outcome.failures,
        )

    def _keep(self, pod: Object, admission: Admission) -> Admission:
        self.admissions[uid(pod)] = admission
        path = self._debug_file(pod)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}")
            temporary.write_text(json.dumps(admission.to_json(), indent=2) + "\n")
            temporary.replace(path)
        return admission

    def _debug_file(self, pod: Object) -> Path | None:
        metadata = pod["metadata"]
        directory = self.settings.pods_directory
        return directory and directory / f"{metadata.get('namespace', 'default')}_{metadata['name']}.json"

    def forget(self, pod: Object) -> None:
        """A pod ended or was deleted: its containers stop and its devices are free."""
        self.runtime.end(uid(pod))
        if self.settings.processes is not None:
            try:
                self.settings.processes.end(pod)
            except (OSError, GpusimError) as error:
                self._journal.record("runtime-error", uid=uid(pod), why=str(error))
        known = self.pods.pop(uid(pod), None)
        if known is not None or any(h.uid == uid(pod) for h in self.holdings.all()):
            self.holdings.retain({h.uid for h in self.holdings.all()} - {uid(pod)})
            self._journal.record("removed", uid=uid(pod), pod=pod["metadata"]["name"])
            path = self._debug_file(pod)
            if path is not None:
                path.unlink(missing_ok=True)
            self.save()

    def retain(self, uids: Iterable[str]) -> None:
        """End what runs of pods that are not on the node any more, and free what they hold.

        Those were deleted while the kubelet was away, so only their uids are known (HandlePodCleanups).
        """
        running = self.runtime.all()
        keep = set(uids) | set(self.pods)  # looked at after what runs: an admitted pod is here before it runs
        gone = [pod_uid for pod_uid in running if pod_uid not in keep]
        for pod_uid in gone:
            self.runtime.end(pod_uid)
            if self.settings.processes is not None:
                try:
                    self.settings.processes.orphan(pod_uid, running[pod_uid])
                except (OSError, GpusimError) as error:
                    self._journal.record("runtime-error", uid=pod_uid, why=str(error))
        if self.holdings.retain(keep) or gone:
            self.save()

    def health(self, resource: str, id_: str) -> str:
        """``Healthy``, ``Unhealthy`` or ``Unknown``, for a pod's status."""
        device = self.table.devices(resource).get(id_)
        return "Unknown" if device is None else "Healthy" if device.healthy else "Unhealthy"

    def _alive(self) -> None:
        if self.over.is_set():
            raise KubeletGoneError("the kubelet was stopped")


def _handler(register: Callable[[api.RegisterRequest, grpc.ServicerContext], api.Empty]) -> Any:
    method = grpc.unary_unary_rpc_method_handler(
        register,
        request_deserializer=api.RegisterRequest.FromString,
        response_serializer=api.Empty.SerializeToString,
    )
    return grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": method})
