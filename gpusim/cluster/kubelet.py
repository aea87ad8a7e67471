"""A kubelet's device manager on a real directory with real sockets, for a device plugin to live with.

Faithful to kubelet v1.36 in what a plugin can see (kubelet.md 2): registration with the dial-back, full
lists, the end of streams, allocation in random order, admission, the node's status. It can also be made to
misbehave: `kill`, `restart`, `cancel_stream`, `faults`. Use it in a test or as ``gpusim kubelet``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from gpusim.cluster.apiclient import ApiClient
from gpusim.cluster.apiport import Api
from gpusim.cluster.containerruntimes import ContainerRuntime, installed
from gpusim.cluster.kubelet_admission import Runtime
from gpusim.cluster.kubelet_devices import Device
from gpusim.cluster.kubelet_edits import Admission
from gpusim.cluster.kubelet_groups import PodProcesses
from gpusim.cluster.kubelet_journal import Event, Journal
from gpusim.cluster.kubelet_life import Life, Settings
from gpusim.cluster.kubelet_registry import GENERATIONS, KubeletFaults
from gpusim.cluster.kubelet_sync import NodeLoop, PodLoop
from gpusim.cluster.kubelet_topology import POLICIES
from gpusim.cluster.podcgroups import DRIVERS, RUNTIMES, Layout
from gpusim.errors import GpusimError
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine
from gpusim.stdout import say

Object = dict[str, Any]


class Kubelet:
    """One node's kubelet; also a context manager. All of it is safe to use from any thread.

    Args:
        directory: the device plugin directory (``/var/lib/kubelet/device-plugins``); made when absent. Its
            parent must be on the same file system and writable.
        node: name of its node object.
        api: URL of an API server, an `Api` of this process, or None: then only `admit` brings pods.
        generation: ``1.36`` or ``main``: how registrations of one resource are told apart (K10).
        seed: of the random order of ids.
        topology_policy: the topology manager's; with the kubelet's default ``none`` there are no NUMA hints.
        numa_nodes: NUMA nodes of the machine; others in a plugin's list are dropped.
        pods_directory: the merged edits of each admitted pod are written here as
            ``<namespace>_<name>.json``; None writes nothing.
        poll_seconds: period of the loops with the API server.
        grace_seconds: how long a stopped resource keeps its capacity.
        dial_timeout: seconds of the dial-back in Register.
        prestart_timeout: seconds of PreStartContainer.
        keep_finished_init: see `kubelet_admission.Admitter`.
        clock: monotonic seconds, for the grace only.
        machine: the simulated node: admitted pods get cgroups on it and a process in each container. None:
            nothing runs anywhere.
        layout: how that node names cgroups.
        runtimes: handlers of RuntimeClasses on it, by name; None: what the machine has installed.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        node: str = "node-1",
        api: str | Api | None = None,
        generation: str = "1.36",
        seed: int = 1,
        topology_policy: str = "none",
        numa_nodes: Sequence[int] = (0, 1),
        pods_directory: str | Path | None = None,
        poll_seconds: float = 0.1,
        grace_seconds: float = 300.0,
        dial_timeout: float = 10.0,
        prestart_timeout: float = 30.0,
        keep_finished_init: bool = True,
        clock: Callable[[], float] = time.monotonic,
        machine: Machine | RemoteMachine | None = None,
        layout: Layout | None = None,
        runtimes: Mapping[str, ContainerRuntime] | None = None,
    ) -> None:
        if generation not in GENERATIONS:
            raise GpusimError(f"kubelet generation {generation!r}: one of {', '.join(GENERATIONS)}")
        if topology_policy not in POLICIES:
            raise GpusimError(f"topology policy {topology_policy!r}: one of {', '.join(POLICIES)}")
        self.directory = Path(directory)
        self.node = node
        self.faults = KubeletFaults()
        """Set its fields to make the kubelet misbehave."""
        processes = None
        if machine is not None:
            handlers = installed(machine) if runtimes is None else runtimes
            processes = PodProcesses(machine, layout or Layout(), handlers)
        self._settings = Settings(
            directory=self.directory,
            generation=generation,
            seed=seed,
            topology_policy=topology_policy,
            numa_nodes=tuple(numa_nodes),
            pods_directory=Path(pods_directory) if pods_directory is not None else None,
            grace_seconds=grace_seconds,
            dial_timeout=dial_timeout,
            prestart_timeout=prestart_timeout,
            keep_finished_init=keep_finished_init,
            clock=clock,
            processes=processes,
        )
        self._client = ApiClient(api, agent="gpusim-kubelet") if isinstance(api, str) else None
        self._api: Api | None = self._client if isinstance(api, str) else api
        self._poll = poll_seconds
        self._journal = Journal()
        self._runtime: Runtime | None = None
        self._life: Life | None = None
        self._lives = 0
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()

    # -- life ---------------------------------------------------------------------------------------------

    def start(self, *, late: float = 0.0) -> Kubelet:
        """Listen and begin to work. `late`: the socket appears that many seconds after this returns (K2).

        Raises:
            GpusimError: it runs already, or the socket cannot be made.
        """
        with self._lock:
            if self._life is not None:
                raise GpusimError("the kubelet runs already")
            self._lives += 1
            life = Life(self._settings, self._journal, self.faults, self._runtime, self._lives)
            self._life, self._runtime = life, life.runtime
            if late > 0:
                self._thread(lambda: self._listen_late(life, late), "late start")
            else:
                self._listen(life)
        return self

    def _listen_late(self, life: Life, seconds: float) -> None:
        if not life.over.wait(seconds):
            with self._lock:
                if self._life is life:
                    self._listen(life)

    def _listen(self, life: Life) -> None:
        try:
            life.listen()
        except GpusimError:
            self._life = None
            raise
        api = self._api
        if api is not None:
            self._thread(NodeLoop(api, self.node, life, self._journal, self._poll).run, "node status")
            self._thread(PodLoop(api, self.node, life, self._journal, self._poll).run, "pods")

    def _thread(self, work: Callable[[], object], name: str) -> None:
        thread = threading.Thread(target=work, name=f"kubelet {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """End cleanly: the socket file goes. Containers keep running. Fine when it is not running."""
        self._end(unlink=True)

    def kill(self) -> None:
        """Die: the socket file stays and nobody listens on it (K4)."""
        self._end(unlink=False)

    def _end(self, *, unlink: bool) -> None:
        with self._lock:
            life, threads = self._life, self._threads
            self._life, self._threads = None, []
        if life is None:
            return
        life.end(unlink=unlink)
        for thread in threads:
            thread.join(15)
        if self._client is not None:
            self._client.close()
        self._journal.record("stopped" if unlink else "killed")

    def restart(self, *, late: float = 0.0) -> None:
        """Die and start again: streams end, all sockets of the directory are removed (K3)."""
        self.kill()
        self.start(late=late)

    def reboot(self, *, late: float = 0.0) -> None:
        """Die with the node: no container runs afterwards, the checkpoint stays (B44 a)."""
        self.kill()
        self._runtime = Runtime()
        if self._settings.processes is not None:
            self._settings.processes.clear()
        self.start(late=late)

    def __enter__(self) -> Kubelet:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def cancel_stream(self, resource: str) -> bool:
        """End the newest ListAndWatch of a resource, both processes staying alive (K5); False if none."""
        life = self._life
        return life is not None and life.registry.cancel_stream(resource)

    # -- inspection -----------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether it is started."""
        return self._life is not None

    @property
    def events(self) -> list[Event]:
        """What happened over all lives, oldest first (a copy)."""
        return self._journal.entries()

    @property
    def registrations(self) -> Mapping[str, int]:
        """Register calls by resource in this life (the original's metric), refused ones too."""
        life = self._life
        return dict(life.registry.counts) if life is not None else {}

    def resources(self) -> tuple[str, ...]:
        """Resources that plugins registered and listed, sorted."""
        return tuple(sorted(self._totals()))

    def devices(self, resource: str) -> Mapping[str, Device]:
        """Id → device as last listed; empty when unknown."""
        life = self._life
        return life.table.devices(resource) if life is not None else {}

    def capacity(self, resource: str) -> int:
        """Number of devices listed; 0 when unknown or after the grace."""
        return self._totals().get(resource, (0, 0))[0]

    def allocatable(self, resource: str) -> int:
        """Number of healthy devices; 0 when unknown."""
        return self._totals().get(resource, (0, 0))[1]

    def _totals(self) -> dict[str, tuple[int, int]]:
        life = self._life
        return life.table.totals()[0] if life is not None else {}

    def holdings(self, uid: str) -> dict[str, dict[str, tuple[str, ...]]]:
        """Container → resource → ids that a pod holds."""
        life = self._life
        held: dict[str, dict[str, tuple[str, ...]]] = {}
        for one in life.holdings.all() if life is not None else ():
            if one.uid == uid:
                held.setdefault(one.container, {})[one.resource] = one.ids
        return held

    @property
    def admissions(self) -> Mapping[str, Admission]:
        """Pod uid → how its admission ended, in this life."""
        life = self._life
        return dict(life.admissions) if life is not None else {}

    # -- pods ------------------------------------------------------------------------------------------

    def admit(self, pod: Object, *, syncing: bool = False) -> Admission:
        """Admit a pod object here and now, without the API server; blocks while Allocate does.

        Args:
            pod: with ``metadata.uid`` (see `pods.pod`).
            syncing: as a kubelet that has just restarted treats the pods it finds.

        Raises:
            GpusimError: not running, or stopped meanwhile.
        """
        return self._living().admit(pod, syncing=syncing)

    def begin(self, pod: Object) -> Admission:
        """Try again to start a pod whose admission said that something `waits`."""
        return self._living().start(pod)

    def remove(self, pod: Object) -> None:
        """End a pod that `admit` took: its devices are free."""
        self._living().forget(pod)

    def _living(self) -> Life:
        if self._life is None:
            raise GpusimError("the kubelet is not running: start() it first")
        return self._life

    def wait_for(self, predicate: Callable[[Kubelet], bool], timeout: float = 10.0) -> bool:
        """Wait until ``predicate(kubelet)``; returns True.

        Raises:
            TimeoutError: it does not hold in time; the text shows devices and the last events.
        """
        if self._journal.wait(lambda: predicate(self), timeout):
            return True
        known = {r: f"{allocatable}/{capacity}" for r, (capacity, allocatable) in self._totals().items()}
        last = "\n  ".join(f"{e.kind} {e.resource} {dict(e.detail)}" for e in self.events[-12:])
        raise TimeoutError(f"not within {timeout} s; allocatable/capacity {known}; last events:\n  {last}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``gpusim kubelet``."""
    parser.add_argument("--dir", required=True, type=Path, metavar="DIR", help="device plugin directory")
    parser.add_argument(
        "--apiserver", metavar="URL", help="http://HOST:PORT (without: no pods, no node status)"
    )
    parser.add_argument("--node", default="node-1", help="name of the node object")
    parser.add_argument("--generation", choices=GENERATIONS, default=GENERATIONS[0], help="which kubelet")
    parser.add_argument("--seed", type=int, default=1, help="of the random order of device ids")
    parser.add_argument("--topology-policy", choices=POLICIES, default="none", help="the topology manager's")
    parser.add_argument("--numa-nodes", type=int, default=2, metavar="N", help="NUMA nodes of the machine")
    parser.add_argument(
        "--pods-dir",
        type=Path,
        metavar="DIR",
        help="write each admitted pod's edits here (default: DIR-pods)",
    )
    parser.add_argument("--late", type=float, default=0.0, metavar="SECONDS", help="make the socket late")
    parser.add_argument(
        "--machine",
        metavar="unix:SOCKET",
        help="served machine on which admitted pods get cgroups and processes",
    )
    parser.add_argument("--cgroup-driver", choices=DRIVERS, default=DRIVERS[0], help="of the machine")
    parser.add_argument("--runtime", choices=tuple(RUNTIMES), default="containerd", help="of the machine")
    parser.add_argument("--cgroup-root", default="", metavar="PATH", help="parent of kubepods")
    parser.add_argument("--reboot", action="store_true", help="the node rebooted: no container is running")


def _served(argument: str) -> RemoteMachine:
    if not argument.startswith("unix:"):
        raise GpusimError(f"--machine {argument!r}: expected unix:SOCKET of a served machine")
    return RemoteMachine(argument.removeprefix("unix:"))


def run(args: argparse.Namespace) -> int:
    """Work until SIGINT or SIGTERM. Returns the exit status."""
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    directory: Path = args.dir
    try:
        kubelet = Kubelet(
            directory,
            node=args.node,
            api=args.apiserver,
            generation=args.generation,
            seed=args.seed,
            topology_policy=args.topology_policy,
            numa_nodes=range(args.numa_nodes),
            pods_directory=args.pods_dir or directory.with_name(f"{directory.name}-pods"),
            machine=None if args.machine is None else _served(args.machine),
            layout=Layout(args.cgroup_driver, args.runtime, args.cgroup_root),
        )
        (kubelet.reboot if args.reboot else kubelet.start)(late=args.late)
    except GpusimError as error:
        sys.stderr.write(f"gpusim kubelet: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(
            f"gpusim kubelet: --dir {directory}: {error.filename or directory}: {error.strerror}; "
            "name a directory that is there or can be made, and written\n"
        )
        return 1
    try:
        say(f"kubelet ready on {directory / 'kubelet.sock'} for node {args.node}")
        done.wait()
    finally:
        kubelet.stop()
    return 0
