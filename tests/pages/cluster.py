"""A cluster for the reader of a page: API server, kubelets, scheduler and plugins around simulated nodes.

What `helm` and `kubectl` ask for happens: an installed DaemonSet's program runs on every node it selects,
with the command line, environment and configuration files that its chart rendered. Images are not pulled;
what they bring (hook libraries) lies on the nodes from the start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socketserver
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from gpusim.cluster.apiserver import ApiServer
from gpusim.cluster.apistatus import ApiError
from gpusim.cluster.kubelet import Kubelet
from gpusim.cluster.scheduler import Scheduler
from gpusim.cluster.scheduler_config import config_vendors, read_config
from gpusim.cluster.scheduler_vendors import AMD
from gpusim.cluster.scheduler_webhook import admit
from gpusim.fixture import load
from gpusim.machine import Machine
from gpusim.serve import serve

from ..devplugin.daemon.rig import Plugin
from .blocks import ROOT
from .programs import launch

Object = dict[str, Any]
Answer = tuple[int, str, str]
"""Exit status, standard output, standard error."""

DEVICE_CONFIG = ROOT / "deploy" / "examples" / "ascend-device-config.yaml"
ALIBABA = {
    "resourceCountName": "alibaba.com/ppu",
    "resourceMemoryName": "alibaba.com/ppu-memory",
    "resourceMemoryPercentageName": "alibaba.com/ppu-memory-percentage",
    "resourceCoreName": "alibaba.com/gpu-core",
    "deviceSplitCount": 2,
    "deviceMemoryScaling": 1.0,
    "deviceCoreScaling": 1.0,
}
LIBRARIES = {
    "/usr/local/hami-vnpu-core-assets/libvnpu.so": b"\x7fELF (stand-in)",
    "/usr/local/hami-vnpu-core-assets/ld.so.preload": b"/hami-vnpu-core/libvnpu.so\n",
    "/usr/local/ppu-hami-core-assets/libhggc.so": b"\x7fELF (stand-in)",
    "/usr/local/ppu-hami-core-assets/ld.so.preload": b"/ppu-hami-core/libhggc.so\n",
    "/usr/local/ppu-hami-core/libhggc.so": b"\x7fELF (stand-in)",
    "/usr/local/ppu-hami-core/ld.so.preload": b"/ppu-hami-core/libhggc.so\n",
}
"""What images and their installers bring; the libraries themselves are closed."""
HOOK = "/usr/local/vgpu/libamvgpu.so"
"""Of AMD, which the chart's postStart copies."""
PORTS = re.compile(r"^--?metrics_bind_address=")


class RefusedError(Exception):
    """What `kubectl` or `helm` says and ends with 1."""


@dataclass(slots=True)
class Node:
    """One simulated node."""

    name: str
    machine: Machine
    socket: str
    sockets: Path
    """kubelet's device plugin directory."""
    kubelet: Kubelet

    @property
    def flags(self) -> list[str]:
        """What tells a daemon to work on it."""
        return ["-simulate", f"unix:{self.socket}", "-kubelet_dir", str(self.sockets)]


@dataclass(slots=True)
class Daemon:
    """One pod of a DaemonSet: a process on a node."""

    owner: Object
    node: Node
    name: str
    process: Plugin | None
    logs: list[Path] = field(default_factory=list)


class Cluster:
    """A context manager.

    Args:
        nodes: node name → fixture, in order; `first` is the one whose daemons are asked by default.
    """

    def __init__(self, nodes: Mapping[str, str]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="page")
        self.path = Path(self._directory.name)
        self.server = ApiServer()
        self.store = self.server.store
        self.kubeconfig = self.path / "kubeconfig"
        self.control = str(self.path / "control.sock")
        self.nodes: dict[str, Node] = {}
        self.releases: dict[tuple[str, str], Object] = {}
        self.config_maps: dict[tuple[str, str], dict[str, str]] = {}
        self.daemon_sets: dict[tuple[str, str], Object] = {}
        self.daemons: list[Daemon] = []
        self.lock = threading.RLock()
        self._fixtures = dict(nodes)
        self._count = 0

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as undo:
            undo.callback(self._directory.cleanup)
            self.server.start()
            undo.callback(self.server.stop)
            self.server.kubeconfig(self.kubeconfig)
            for name, fixture in self._fixtures.items():
                self._boot(name, fixture, undo)
            config = {**read_config(DEVICE_CONFIG), "alibaba": ALIBABA}
            scheduler = Scheduler(
                self.store,
                vendors=(AMD, *config_vendors(config)),
                refresh_seconds=0.3,
                poll_seconds=0.1,
                retry_seconds=0.1,
            ).start()
            undo.callback(scheduler.stop)
            self.vendors = scheduler.vendors
            undo.callback(lambda: [self._end(one) for one in self.daemons])
            listener = _listen(self)
            undo.callback(listener.server_close)
            undo.callback(listener.shutdown)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def _boot(self, name: str, fixture: str, undo: contextlib.ExitStack) -> None:
        machine = Machine(load(fixture))
        for path, data in LIBRARIES.items():
            machine.mkdir(path.rsplit("/", 1)[0])
            machine.put(path, data)
        served = serve(machine, f"{self.path}/{name}.sock").start()
        undo.callback(served.stop)
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64"}
        self.store.create("nodes", {"metadata": {"name": name, "labels": labels, "annotations": {}}})
        sockets = self.path / name / "device-plugins"
        sockets.parent.mkdir()
        kubelet = Kubelet(
            sockets, node=name, api=self.store, numa_nodes=range(8), poll_seconds=0.1, machine=machine
        ).start()
        undo.callback(kubelet.stop)
        self.nodes[name] = Node(name, machine, f"{self.path}/{name}.sock", sockets, kubelet)

    # -- daemons ----------------------------------------------------------------------------------------

    def apply(self, found: Object) -> None:
        """Create or replace one object of a manifest."""
        kind, meta = found["kind"], found["metadata"]
        key = (meta.get("namespace", "default"), meta["name"])
        if kind == "ConfigMap":
            self.config_maps[key] = dict(found["data"])
        elif kind == "DaemonSet":
            old = self.daemon_sets.get(key)
            self.daemon_sets[key] = found
            if old is None or old["spec"]["template"] != found["spec"]["template"]:
                self.roll(key)
        elif kind == "Pod":
            self.create_pod(found)
        elif kind == "Namespace":
            self.store.create("namespaces", {"metadata": {"name": meta["name"]}})

    def remove(self, found: Object) -> None:
        """Delete one object of a manifest."""
        meta = found["metadata"]
        key = (meta.get("namespace", "default"), meta["name"])
        if found["kind"] == "ConfigMap":
            self.config_maps.pop(key, None)
        elif found["kind"] == "DaemonSet":
            self.daemon_sets.pop(key, None)
            self._stop(key)

    def roll(self, key: tuple[str, str]) -> None:
        """Run the pods of a DaemonSet anew, on every node it selects."""
        self._stop(key)
        owner = self.daemon_sets[key]
        wanted = owner["spec"]["template"]["spec"].get("nodeSelector") or {}
        for node in self.nodes.values():
            labels = self.store.get("nodes", node.name)["metadata"].get("labels") or {}
            if wanted.items() <= labels.items():
                self._start(owner, node)

    def relabelled(self) -> None:
        """Labels of nodes changed: DaemonSets come to nodes and leave them."""
        for owner in self.daemon_sets.values():
            wanted = owner["spec"]["template"]["spec"].get("nodeSelector") or {}
            for node in self.nodes.values():
                labels = self.store.get("nodes", node.name)["metadata"].get("labels") or {}
                there = [one for one in self.daemons if one.owner is owner and one.node is node]
                if wanted.items() <= labels.items() and not there:
                    self._start(owner, node)
                elif not wanted.items() <= labels.items():
                    for one in there:
                        self._leave(one)

    def daemons_of(self, namespace: str, name: str) -> list[Daemon]:
        """The pods of a DaemonSet, by node."""
        return [
            one
            for one in self.daemons
            if (one.owner["metadata"].get("namespace"), one.owner["metadata"]["name"]) == (namespace, name)
        ]

    def ready(self, one: Daemon) -> bool:
        """Whether a plugin has registered with kubelet, or found nothing to register."""
        if (
            one.process is None
            or "plugin" not in one.owner["spec"]["template"]["spec"]["containers"][0]["name"]
        ):
            return True
        assert one.process.process.poll() is None, one.process.log.read_text()[-2000:]
        return any(one.process.said(text) for text in (": registered as", "no device to offer"))

    def _start(self, owner: Object, node: Node) -> None:
        self._count += 1
        name = f"{owner['metadata']['name']}-{self._count:05d}"
        namespace = owner["metadata"]["namespace"]
        template = owner["spec"]["template"]
        meta = {
            "name": name,
            "namespace": namespace,
            "labels": template["metadata"].get("labels") or {},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner["metadata"]["name"], "uid": "d"}
            ],
        }
        (inner,) = template["spec"]["containers"]
        body = {"containers": [{"name": inner["name"], "image": inner["image"]}], "nodeName": node.name}
        self.store.create("pods", {"metadata": meta, "spec": body}, namespace)
        process = None
        if "monitor" not in inner["command"][0]:
            process = self._program(owner, node, inner)
        self.daemons.append(Daemon(owner, node, name, process))

    def _program(self, owner: Object, node: Node, inner: Object) -> Plugin:
        """Run a container's command on a node, its ConfigMaps laid where it mounts them."""
        namespace = owner["metadata"]["namespace"]
        volumes = {one["name"]: one for one in owner["spec"]["template"]["spec"].get("volumes", ())}
        for mount in inner.get("volumeMounts", ()):
            if "configMap" not in volumes[mount["name"]]:
                continue
            data = self.config_maps[namespace, volumes[mount["name"]]["configMap"]["name"]]
            for key, text in data.items():
                path = mount["mountPath"] + ("" if "subPath" in mount else f"/{key}")
                node.machine.mkdir(path.rpartition("/")[0] or "/")
                node.machine.put(path, text.encode())
        if "lifecycle" in inner:
            node.machine.mkdir(HOOK.rpartition("/")[0])
            node.machine.put(HOOK, b"\x7fELF (stand-in)")
        env = {one["name"]: one.get("value", node.name) for one in inner.get("env", ())}
        words = [
            re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], word)
            for word in inner.get("args", ())
            if not PORTS.match(word)
        ]
        if inner["command"][0].startswith("ascend"):
            words.append("-monitor_bind_address=")  # ports of this computer belong to nobody
        kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
        surroundings = {**kept, "HOME": str(self.path), "KUBECONFIG": str(self.kubeconfig), **env}
        log = self.path / f"log-{self._count}-{len(self.daemons)}-{time.monotonic_ns()}"
        where = node.flags if "plugin" in inner["command"][0] else node.flags[:2]
        return Plugin([*launch(inner["command"][0]), *words, *where], surroundings, log)

    def _stop(self, key: tuple[str, str]) -> None:
        for one in [*self.daemons_of(*key)]:
            self._leave(one)

    def _leave(self, one: Daemon) -> None:
        self._end(one)
        self.daemons.remove(one)
        with contextlib.suppress(ApiError):
            self.store.delete("pods", one.name, one.owner["metadata"]["namespace"], grace_seconds=0)

    @staticmethod
    def _end(one: Daemon) -> None:
        if one.process is not None and one.process.process.poll() is None:
            one.process.end()

    # -- pods -------------------------------------------------------------------------------------------

    def create_pod(self, found: Object) -> None:
        """As the API server does it, HAMi's webhook before it."""
        verdict = admit(found, self.vendors)
        if verdict.denied:
            raise RefusedError(f"admission webhook denied the request: {verdict.denied}")
        self.store.create("pods", verdict.pod, found["metadata"].get("namespace", "default"))


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    cluster: Cluster


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        from . import helm, kubectl

        asked = json.loads(self.rfile.readline())
        cluster: Cluster = self.server.cluster  # type: ignore[attr-defined]
        run: Callable[..., str] = {"kubectl": kubectl.run, "helm": helm.run}[asked["program"]]
        try:
            with cluster.lock:
                answer = (0, run(cluster, asked["words"], Path(asked["cwd"]), asked["stdin"]), "")
        except (RefusedError, ApiError) as error:
            answer = (1, "", f"Error: {error}\n")
        except Exception:  # the stand-in's own mistake, shown to who runs the page
            traceback.print_exc(file=sys.stderr)
            answer = (70, "", traceback.format_exc())
        self.wfile.write(json.dumps(answer).encode() + b"\n")


def _listen(cluster: Cluster) -> _Server:
    server = _Server(cluster.control, _Handler)
    server.cluster = cluster
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server
