"""The dmem controller: regions of device memory, and who is charged how much of them.

It is a hierarchy of its own. A cgroup has a `Css` while its parent enables the controller; a task is
charged in the css nearest above it. A charge is taken in every css up to the root or in none. Sources:
kernel.md 4.1 to 4.4; kernel/cgroup/dmem.c, mm/page_counter.c. Which cgroup has which css is
`gpusim.cgroup`'s affair, the files are `gpusim.cgroupfs`'s. min and low are kept and shown; they only guide
which buffers TTM evicts, and what is evicted here is what a caller says (`gpusim.amd.vram.Vram.evict`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gpusim.dmem_parse import UNLIMITED, invalid, limit, lines

LIMITS = ("max", "low", "min")
"""Limits a css has per region; files of the same names."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Memory of one device, such as ``drm/0000:75:00.0/vram``. Compared by identity: names may repeat."""

    name: str
    size: int
    """Bytes."""


@dataclass(slots=True, eq=False)
class Pool:
    """The counter of one css for one region; bytes."""

    parent: Pool | None
    usage: int = 0
    peak: int = 0
    """Highest usage ever tried at this level, also by a charge that then failed further up."""
    max: int = UNLIMITED
    min: int = 0
    low: int = 0


@dataclass(slots=True, eq=False)
class Css:
    """The controller's state in one cgroup. A pool exists from the first charge or limit on."""

    parent: Css | None
    pools: dict[Region, Pool] = field(default_factory=dict)
    """Its charges stay after the cgroup is gone, or the controller disabled in it, until they are freed."""

    @property
    def charged(self) -> bool:
        """Whether anything is still charged here."""
        return any(pool.usage for pool in self.pools.values())


class LimitError(OSError):
    """EAGAIN: a charge would exceed a limit (inside the kernel; a user sees what the driver makes of it).

    Attributes:
        pool: the counter at its limit, the lowest one in the hierarchy.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.pool = pool


class Dmem:
    """The controller of one kernel.

    Args:
        many_lines: one write may hold several lines (6.14 to 7.1).
        bare_region: what a region without a value does: ``oops`` (6.14 to 6.19) or ``EINVAL``.
        oops: told what went wrong where the real kernel would dereference NULL.
    """

    def __init__(self, *, many_lines: bool, bare_region: str, oops: Callable[[str], None]) -> None:
        self.many_lines = many_lines
        self.bare_region = bare_region
        self.oops = oops
        self.regions: list[Region] = []
        """In order of registration."""
        self.root = Css(None)

    # Regions

    def register(self, name: str, size: int) -> Region:
        """A driver announces a device's memory; appended last. The kernel does not refuse a name twice."""
        region = Region(name, size)
        self.regions.append(region)
        return region

    def unregister(self, region: Region) -> None:
        """The device is gone: its line vanishes everywhere, every limit on it is forgotten.

        What is still charged can be uncharged; nobody sees it any more, for only registered regions are
        listed and found, and a region that returns is another one.
        """
        self.regions.remove(region)

    def find(self, name: str) -> Region | None:
        """The first registered region of exactly that name."""
        return next((region for region in self.regions if region.name == name), None)

    # Charging

    def pool(self, css: Css, region: Region) -> Pool:
        """The counter of `css` for `region`, made now with those of all its ancestors if need be."""
        found = css.pools.get(region)
        if found is None:
            above = None if css.parent is None else self.pool(css.parent, region)
            if len(css.pools) >= len(self.regions):  # some are of regions that went
                css.pools = {known: pool for known, pool in css.pools.items() if known in self.regions}
            found = css.pools[region] = Pool(above)
        return found

    def charge(self, css: Css, region: Region, size: int) -> Pool:
        """Charge `size` bytes to a css and all its ancestors; usage may reach a limit exactly.

        Returns:
            What `uncharge` takes.

        Raises:
            LimitError: EAGAIN; nothing is charged anywhere.
        """
        pool = self.pool(css, region)
        counter: Pool | None = pool
        while counter is not None:
            usage = counter.usage + size
            if usage > counter.max:
                self._undo(pool, counter, size)
                raise LimitError(counter)
            counter.usage = usage
            counter.peak = max(counter.peak, usage)
            counter = counter.parent
        return pool

    def uncharge(self, pool: Pool, size: int) -> None:
        """Give back what was charged, whatever became of the cgroup or the region since."""
        self._undo(pool, None, size)

    def _undo(self, pool: Pool, stop: Pool | None, size: int) -> None:
        counter: Pool | None = pool
        while counter is not stop and counter is not None:
            counter.usage -= size
            counter = counter.parent

    # Files

    def capacity(self) -> str:
        """Text of dmem.capacity."""
        return "".join(f"{region.name} {region.size}\n" for region in self.regions)

    def current(self, css: Css) -> str:
        """Text of dmem.current: every region, also one nobody touched."""
        return self._text(css, lambda pool: pool.usage, 0)

    def peak(self, css: Css) -> str:
        """Text of dmem.peak."""
        return self._text(css, lambda pool: pool.peak, 0)

    def limits(self, css: Css, which: str) -> str:
        """Text of dmem.max, dmem.low or dmem.min: bytes as they were given, or ``max``."""
        unset = UNLIMITED if which == "max" else 0
        return self._text(css, lambda pool: int(getattr(pool, which)), unset)

    def _text(self, css: Css, value: Callable[[Pool], int], absent: int) -> str:
        found: list[str] = []
        for region in self.regions:
            pool = css.pools.get(region)
            number = absent if pool is None else value(pool)
            found.append(f"{region.name} {'max' if number >= UNLIMITED else number}\n")
        return "".join(found)

    def write(self, css: Css, which: str, data: bytes) -> None:
        """One write to dmem.max, dmem.low or dmem.min.

        A dmem.max below the current usage is refused in silence: the write succeeds, the old limit stays
        and nothing is reclaimed; only reading again tells (kernel.md 4.3, decision 30).

        Raises:
            OSError: EINVAL; lines before the bad one stay applied.
        """
        for line in lines(data, many=self.many_lines):
            region = self.find(line.region)
            if region is None:
                raise invalid()
            if line.value is None:
                if self.bare_region == "oops":
                    self.oops(f"NULL pointer dereference in dmemcg_limit_write: {line.region!r} has no value")
                raise invalid()
            value = limit(line.value)
            pool = self.pool(css, region)
            if which != "max" or value >= pool.usage:
                setattr(pool, which, value)

    # Life of a css

    def offline(self, css: Css) -> None:
        """The cgroup was removed, or its parent disabled the controller: limits go, charges stay."""
        for pool in css.pools.values():
            pool.max, pool.min, pool.low = UNLIMITED, 0, 0

    def fork(self, oops: Callable[[str], None], copies: Copies) -> Dmem:
        """An independent controller in the same state; its css and pools come from `copies`."""
        twin = Dmem(many_lines=self.many_lines, bare_region=self.bare_region, oops=oops)
        twin.regions = self.regions.copy()
        twin.root = copies.css(self.root)
        return twin


class Copies:
    """Css and pools of a forked controller, each copied once; regions are values and are shared."""

    def __init__(self) -> None:
        self._css: dict[Css, Css] = {}
        self._pools: dict[Pool, Pool] = {}

    def css(self, css: Css) -> Css:
        """The copy of a css, its ancestors and its pools."""
        twin = self._css.get(css)
        if twin is None:
            above = None if css.parent is None else self.css(css.parent)
            pools = {region: self.pool(pool) for region, pool in css.pools.items()}
            twin = self._css[css] = Css(above, pools)
        return twin

    def pool(self, pool: Pool) -> Pool:
        """The copy of a counter and its ancestors."""
        twin = self._pools.get(pool)
        if twin is None:
            above = None if pool.parent is None else self.pool(pool.parent)
            twin = self._pools[pool] = replace(pool, parent=above)
        return twin
