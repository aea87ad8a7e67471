"""A real monitor process beside an API server and a machine, and what a scrape of it says."""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from devplugin.amd.discovery import discover
from devplugin.amd.registration import ANNOTATION, annotation
from devplugin.amd.settings import Settings
from devplugin.amd.taken import VOCABULARY
from gpusim.cluster.apiserver import ApiServer
from gpusim.cluster.podcgroups import PodGroups
from gpusim.cluster.pods import Placed, container, encode, pod

from ..devplugin.daemon.rig import NODE, Plugin, until

COMMAND = (
    sys.executable,
    "-c",
    "from devplugin.launch import vgpu_monitor; raise SystemExit(vgpu_monitor())",
)
OPENMETRICS = "application/openmetrics-text; version=1.0.0"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scrape:
    """The samples of one answer."""

    samples: Mapping[tuple[str, Labels], float]

    def of(self, name: str, **labels: str) -> dict[Labels, float]:
        """Samples of one name that have these labels."""
        wanted = set(labels.items())
        return {
            key[1]: value for key, value in self.samples.items() if key[0] == name and wanted <= set(key[1])
        }

    def one(self, name: str, **labels: str) -> float:
        (value,) = self.of(name, **labels).values()
        return value

    @property
    def success(self) -> float:
        return self.one("hami_vgpumonitor_collect_success")

    @property
    def pods(self) -> set[str]:
        return {dict(labels)["pod"] for name, labels in self.samples if name.startswith("hami_vgpu_memory")}


def parsed(body: str, *, as_openmetrics: bool) -> Scrape:
    """Read by the parser of the format; no sample twice."""
    read = openmetrics_parser.text_string_to_metric_families if as_openmetrics else None
    families = (read or parser.text_string_to_metric_families)(body)
    samples = [s for family in families for s in family.samples]
    found = {(s.name, tuple(sorted(s.labels.items()))): float(s.value) for s in samples}
    assert len(found) == len(samples)
    return Scrape(found)


class Client:
    """One kept-alive connection, as Prometheus has it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def get(self, path: str = "/metrics", accept: str = "", method: str = "GET") -> tuple[int, str, str]:
        """Status, content type, body."""
        self._connection.request(method, path, headers={"Accept": accept} if accept else {})
        answer = self._connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()

    def scrape(self, accept: str = "") -> Scrape:
        status, content_type, body = self.get(accept=accept)
        assert status == 200, body
        as_openmetrics = content_type.startswith("application/openmetrics-text")
        assert as_openmetrics is bool(accept), content_type
        assert body.endswith("# EOF\n") is as_openmetrics
        return parsed(body, as_openmetrics=as_openmetrics)

    def close(self) -> None:
        self._connection.close()


class Monitored:
    """A cluster of one node in this process, and monitors beside it; a context manager."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="mon")
        self.path = Path(self._directory.name)
        self.server = ApiServer()
        self.store = self.server.store
        self.monitors: list[Plugin] = []
        self.clients: list[Client] = []

    def __enter__(self) -> Monitored:
        self.server.start()
        self.server.kubeconfig(self.path / "kubeconfig")
        return self

    def __exit__(self, *exc: object) -> None:
        for client in self.clients:
            client.close()
        for monitor in self.monitors:
            if monitor.process.poll() is None:
                monitor.process.kill()
                monitor.process.wait()
        self.server.stop()
        self._directory.cleanup()

    def register(self, host: Any, **settings: Any) -> list[dict[str, Any]]:
        """Put the node with its register annotation into the cluster; the registered devices."""
        text = annotation(discover(host, Settings(node_name=NODE)), Settings(node_name=NODE, **settings))
        self.store.create("nodes", {"metadata": {"name": NODE, "annotations": {ANNOTATION: text}}})
        devices: list[dict[str, Any]] = json.loads(text)
        return devices

    def start(self, *flags: str, env: Mapping[str, str] | None = None) -> Plugin:
        surroundings = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HOME": str(self.path),
            "NODE_NAME": NODE,
            "KUBECONFIG": str(self.path / "kubeconfig"),
            **(env or {}),
        }
        command = [*COMMAND, "-metrics_bind_address", "127.0.0.1:0", *flags]
        monitor = Plugin(command, surroundings, self.path / f"log-{len(self.monitors)}")
        self.monitors.append(monitor)
        return monitor

    def client(self, monitor: Plugin) -> Client:
        """A client of a monitor, once it listens."""
        client = Client(port(monitor))
        self.clients.append(client)
        return client

    def pod(
        self, name: str, limits: Mapping[str, str], *slots: list[Placed], uid: str | None = None
    ) -> dict[str, Any]:
        """A bound pod of one container a slot, as its annotations stand after Allocate."""
        spec = pod(
            name,
            [container(f"c{place}", limits) for place in range(len(slots))],
            annotations={VOCABULARY.allocated: encode(slots), VOCABULARY.to_allocate: ";" * len(slots)},
            node=NODE,
            uid=uid,
        )
        return self.store.create("pods", spec)

    def started(self, name: str, groups: PodGroups) -> None:
        """Let a pod's status say that its containers run."""
        statuses = [{"name": one, "containerID": groups.identity(one)} for one in groups.ids if one != "POD"]
        status = {"phase": "Running", "containerStatuses": statuses}
        self.store.patch("pods", name, {"status": status}, subresource="status")


def port(monitor: Plugin) -> int:
    def told() -> int | None:
        assert monitor.process.poll() is None, monitor.log.read_text()
        found = re.search(r"serving http://[^ ]*:(\d+)/metrics", monitor.log.read_text())
        return int(found[1]) if found else None

    number: int = until(told, 20, monitor.log.read_text)
    return number


def resident(monitor: Plugin) -> int:
    """Resident memory in bytes."""
    status = Path(f"/proc/{monitor.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


__all__ = ["NODE", "OPENMETRICS", "Client", "Monitored", "Scrape", "port", "resident"]
