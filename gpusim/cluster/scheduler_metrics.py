"""What the scheduler tells Prometheus: what nodes registered, and what pods hold of it.

Names and labels: ascend_ppu_hami.md E.2; ratios are percent (surprise 10). Left out: the families of quotas
and of MIG, which nothing here has, and the names of older releases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpusim.cluster.pods import VGPU_NODE
from gpusim.cluster.scheduler_devices import Registered
from gpusim.cluster.scheduler_ledger import Ledger, LedgerError, Usage, decode, ended
from gpusim.cluster.scheduler_vendors import Vendor
from gpusim.errors import GpusimError

Object = dict[str, Any]
_MIB = 1 << 20
TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Sample:
    """One number; all are gauges."""

    name: str
    labels: Mapping[str, str]
    value: float


def of_devices(devices: Mapping[str, Mapping[str, Sequence[Registered]]], ledger: Ledger) -> Iterator[Sample]:
    """What every registered device has and how much of it is given away."""
    for node, vendors in sorted(devices.items()):
        for device in (one for listed in vendors.values() for one in listed):
            used = ledger.get((node, device.id), Usage())
            labels = {
                "node": node,
                "device_uuid": device.id,
                "device_index": str(device.index),
                "device_type": device.type,
            }
            more = {**labels, "device_cores": str(used.cores)}
            total = device.memory_mib
            yield Sample("hami_gpu_memory_limit_bytes", labels, total * _MIB)
            yield Sample("hami_gpu_core_limit_ratio", labels, device.cores)
            yield Sample("hami_gpu_shared_count", labels, used.slots)
            yield Sample("hami_gpu_core_allocated_ratio", labels, used.cores)
            share = 100 * used.memory_mib / total if total else 0
            yield Sample("hami_node_gpu_memory_allocated_ratio", labels, share)
            yield Sample("hami_gpu_memory_allocated_bytes", more, used.memory_mib * _MIB)
            overview = {**more, "device_memory_limit": str(total)}
            yield Sample("hami_node_gpu_overview", overview, used.memory_mib * _MIB)


def of_pods(pods: Sequence[Object], vendors: Sequence[Vendor]) -> Iterator[Sample]:
    """What every container holds; a pod that cannot be read has none, as in the ledger."""
    for pod in pods:
        annotations = pod["metadata"].get("annotations") or {}
        node = annotations.get(VGPU_NODE, "")
        if not node or ended(pod):
            continue
        try:
            slots = [decode(annotations[v.allocated]) for v in vendors if v.allocated in annotations]
        except LedgerError:
            continue
        for index, held in ((i, one) for listed in slots for i, slot in enumerate(listed) for one in slot):
            labels = {
                "namespace": pod["metadata"]["namespace"],
                "node": node,
                "pod": pod["metadata"]["name"],
                "container_index": str(index),
                "device_uuid": held.id,
            }
            yield Sample("hami_vgpu_memory_allocated_bytes", labels, held.memory_mib * _MIB)
            yield Sample("hami_vgpu_core_allocated_ratio", labels, held.cores)


def exposition(samples: Iterable[Sample]) -> str:
    """Prometheus' text format, one family after the other."""
    families: dict[str, list[str]] = {}
    for one in samples:
        labels = ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in one.labels.items())
        families.setdefault(one.name, []).append(f"{one.name}{{{labels}}} {one.value:.17g}")
    return "".join(
        f"# TYPE {name} gauge\n" + "".join(f"{line}\n" for line in lines) for name, lines in families.items()
    )


@contextmanager
def served(text: Callable[[], str], port: int) -> Iterator[int]:
    """Answer ``GET /metrics`` on 127.0.0.1 meanwhile; yields the port (0 finds one).

    A scrape for which `text` raises a GpusimError (no API server) is answered with 503 and the reason.

    Raises:
        OSError: the port cannot be had.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            try:
                body, status = text(), 200
            except GpusimError as error:
                body, status = f"{error}\n", 503
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            """Scrapes are no news."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
