"""The monitor: a node's devices and their containers' memory, for Prometheus.

It answers before it knows a cluster. What the API server says (the node's registration, its pods) is read
every five seconds; files are read at the scrape. When the server does not answer, the last answer serves
for a minute and the scrape says that it is incomplete: a container is known by the runtime's id, so an
old list can lack one but never names a wrong one. Memory and GPUs that are gone are gone at once.
amd.md 11, decision 34.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from devplugin.daemon.logs import Logs
from devplugin.hami import Pod
from devplugin.host import Host
from devplugin.kube import Api, KubeError, NoCluster, NotFound
from devplugin.metered import Measured, Metered, Watched
from devplugin.scrape import NodeCollector, Page, Scraped, bind
from devplugin.settings import GoParser, add_flag, add_log_flags, add_node_flags

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two readings of node and pods."""
KEPT = 60.0
"""Seconds for which the last answer serves when the API server gives none."""


@dataclass(frozen=True, slots=True)
class Start:
    """All that a monitor is started with."""

    vendor: Metered
    host: Host
    node: str
    """NODE_NAME."""
    connect: Callable[[], Api]
    """Makes the API server's port; blocking (it imports the client)."""
    bind_address: str = ":9394"
    cgroup_root: str = "/sys/fs/cgroup"
    drm_root: str = "/sys/class/drm"
    verbosity: int = 0


def add_flags(parser: GoParser, vendors: Iterable[str] = ("amd",)) -> None:
    """Flags of amd.md 11, and those that all our daemons have; the first vendor is the default."""
    names = tuple(vendors)
    add_flag(parser, "vendor", str, names[0], f"whose devices: {' or '.join(names)}")
    add_flag(
        parser,
        "metrics_bind_address",
        str,
        ":9394",
        "where to serve /metrics: :9394, 127.0.0.1:9394, [::1]:9394; port 0 takes a free one",
    )
    add_flag(parser, "cgroup_root", str, "/sys/fs/cgroup", "where cgroup v2 is mounted")
    add_flag(parser, "drm_root", str, "/sys/class/drm", "directory of the DRM cards")
    add_node_flags(parser)
    add_log_flags(parser)


@dataclass(slots=True)
class Records:
    """What the API server says of the node, and how old that is.

    Args:
        node: its name.
        register: key of the register annotation.
        clock: seconds that only grow.
    """

    node: str
    register: str
    clock: Callable[[], float] = time.monotonic
    _registration: tuple[str | None, float] | None = None
    _pods: tuple[tuple[Pod, ...], float] | None = None
    _errors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._errors = {f"node {self.node}": "not read yet", "pods": "not listed yet"}

    async def refresh(self, api: Api) -> None:
        """Read both once; what fails keeps its last answer. Never raises KubeError."""
        key = f"node {self.node}"
        try:
            node = await api.node(self.node)
        except KubeError as error:
            if isinstance(error, NotFound):
                self._registration = None
            self._failed(key, error)
        else:
            self._registration = (node.annotations.get(self.register), self.clock())
            self._errors.pop(key, None)
        try:
            pods = await api.pods_on(self.node)
        except KubeError as error:
            self._failed("pods", error)
        else:
            self._pods = (tuple(pod for pod in pods if pod.container_ids), self.clock())
            self._errors.pop("pods", None)

    def _failed(self, what: str, error: KubeError) -> None:
        level = logging.DEBUG if self._errors.get(what) == str(error) else logging.WARNING
        log.log(level, "%s: %s", what, error)
        self._errors[what] = str(error)

    def watched(self, *, cgroup_root: str, drm_root: str) -> Watched:
        """What is known now; problems say what is not up to date."""
        now = self.clock()
        registration, pods = self._registration, self._pods
        return Watched(
            node=self.node,
            registration=registration[0] if registration and now - registration[1] <= KEPT else None,
            pods=pods[0] if pods and now - pods[1] <= KEPT else (),
            problems=tuple(f"{what}: {why}" for what, why in self._errors.copy().items()),
            cgroup_root=cgroup_root,
            drm_root=drm_root,
        )


class Look:
    """One measurement for each call; a problem is logged when it first appears, and again after it ended."""

    def __init__(self, start: Start, records: Records) -> None:
        self._start = start
        self._records = records
        self._said: frozenset[str] = frozenset()

    def __call__(self) -> Measured:
        """Look now."""
        start = self._start
        watched = self._records.watched(cgroup_root=start.cgroup_root, drm_root=start.drm_root)
        measured = start.vendor.samples(start.host, watched)
        for line in measured.problems:
            if line not in self._said and line not in watched.problems:
                log.warning("%s", line)
        self._said = frozenset(measured.problems)
        return measured


async def keep_reading(records: Records, api: Api) -> None:
    """Read node and pods now and for ever."""
    while True:
        try:
            await records.refresh(api)
        except Exception:
            log.exception("reading node and pods failed")
        await asyncio.sleep(EVERY)


async def live(start: Start, scraped: Scraped, records: Records) -> int:
    """Until a signal comes; the exit status."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        loop.add_signal_handler(number, stop.set)
    log.info("serving %s/metrics", scraped.url)
    ending = asyncio.create_task(stop.wait())
    connecting = asyncio.create_task(asyncio.to_thread(start.connect))
    await asyncio.wait({ending, connecting}, return_when=asyncio.FIRST_COMPLETED)
    reading: asyncio.Task[None] | None = None
    try:
        if connecting.done():
            reading = asyncio.create_task(keep_reading(records, connecting.result()))
        await ending
    except NoCluster as error:
        log.error("%s", error)
        return 1
    finally:
        log.info("ending")
        for task in (ending, reading):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in (ending, reading) if task), return_exceptions=True)
    return 0


def run(start: Start) -> int:
    """Run a monitor in this process until a signal; the exit status.

    Raises:
        SettingsError: the address cannot be bound.
    """
    listening = bind(start.bind_address)
    with Logs(start.verbosity) as logs:
        logs.release()
        records = Records(start.node, start.vendor.registered_under)
        scraped = Scraped(
            listening,
            Page("vgpu-monitor", f"Devices of node {start.node} and the memory its containers have on them."),
            NodeCollector(start.vendor.series(), Look(start, records)),
        )
        try:
            return asyncio.run(live(start, scraped, records))
        finally:
            scraped.close()
