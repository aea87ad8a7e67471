"""What the daemon says of itself: whether it is alive, and what it did, over HTTP on a port of its own.

Off unless `-metrics_bind_address` names one; then `/healthz` and `/metrics`, of which only this file and
`devplugin.scrape` know. Counting costs a few additions and goes on in any case; prometheus_client, a tenth of
a second of imports, is loaded only to serve. Nothing here carries a vendor's name.

`/healthz` tells whether restarting would help: it fails when the event loop stands still. An API server or
a kubelet that is away is no reason, for a restarted daemon would wait for the same one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, get_args

from devplugin.answers import Refused, Why
from devplugin.kube import KubeError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from devplugin.scrape import Scraped

T = TypeVar("T")

GRANTED, REFUSED, UNAVAILABLE, FAILED = RESULTS = ("granted", "refused", "unavailable", "error")
"""How an Allocate can end; the third is decision 24's."""

REASONS: tuple[str, ...] = get_args(Why)

BEAT = 1.0
STILL = 15.0
"""Seconds without a beat after which the loop counts as standing still."""


@dataclass(slots=True)
class Tally:
    """Counts of one process; written by the event loop, read by whoever scrapes.

    Args:
        clock: seconds that only grow.
    """

    clock: Callable[[], float] = time.monotonic
    results: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    waits: int = 0
    waited: float = 0.0
    """Seconds, of all `waits` together."""
    lives: int = 0
    """Beginnings: 1, and one more for every SIGHUP."""
    announced: float | None = None
    beaten: float | None = None

    async def counted(self, work: Awaitable[T]) -> T:
        """An Allocate, and how it ended."""
        try:
            answer = await work
        except Refused as refusal:
            self.results[REFUSED] += 1
            self.refusals[refusal.why] += 1
            raise
        except KubeError:
            self.results[UNAVAILABLE] += 1
            raise
        except Exception:
            self.results[FAILED] += 1
            raise
        self.results[GRANTED] += 1
        return answer

    def wait(self, seconds: float) -> None:
        """An Allocate had to wait so long for the one before it, given up or not."""
        self.waits += 1
        self.waited += seconds

    def announce(self) -> None:
        """The registration was written just now."""
        self.announced = self.clock()

    async def beat(self) -> None:
        """Show for ever that the event loop turns."""
        while True:
            self.beaten = self.clock()
            await asyncio.sleep(BEAT)

    def trouble(self) -> str:
        """Why this process should be restarted; empty when it should not."""
        if self.beaten is not None and (still := self.clock() - self.beaten) > STILL:
            return f"the event loop stands still since {still:.0f} s"
        return ""

    def families(self) -> Iterator[Metric]:
        """All as Prometheus has it; every reason and result is there from the beginning."""
        from prometheus_client.metrics_core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            SummaryMetricFamily,
        )

        results = CounterMetricFamily(
            "deviceplugin_allocations",
            "Allocate calls of one container, by how they ended",
            labels=("result",),
        )
        for result in RESULTS:
            results.add_metric((result,), self.results[result])
        yield results
        refusals = CounterMetricFamily("deviceplugin_refusals", "Refused Allocate calls", labels=("reason",))
        for reason in REASONS:
            refusals.add_metric((reason,), self.refusals[reason])
        yield refusals
        if self.announced is not None:
            yield GaugeMetricFamily(
                "deviceplugin_registration_age_seconds",
                "Seconds since the node's registration was last written",
                self.clock() - self.announced,
            )
        yield SummaryMetricFamily(
            "deviceplugin_allocate_lock_wait_seconds",
            "Waiting of an Allocate for the one before it",
            count_value=self.waits,
            sum_value=self.waited,
        )
        yield CounterMetricFamily("deviceplugin_starts", "The start, and every SIGHUP", self.lives)


def serve(where: str, node: str, tally: Tally) -> Scraped:
    """Answer on this address from now on.

    Raises:
        SettingsError: no address, or it cannot be had.
    """
    from prometheus_client.registry import Collector

    from devplugin.scrape import Page, Scraped, bind

    class Own(Collector):
        def collect(self) -> Iterator[Metric]:
            return tally.families()

    page = Page("device-plugin", f"The device plugin of node {node}.")
    return Scraped(bind(where), page, Own(), tally.trouble)
