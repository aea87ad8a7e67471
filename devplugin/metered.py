"""What a monitor asks of a vendor, and the values that carry the answers (amd.md 11).

Beside `devplugin.vendor` because a monitor is a program of its own: it reads files and the registration, and
decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from devplugin.hami import Pod
from devplugin.host import Host


@dataclass(frozen=True, slots=True)
class Series:
    """A metric that a vendor's monitor exports; every one is a gauge (amd.md 11)."""

    name: str
    help: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a series now."""

    series: Series
    labels: tuple[str, ...]
    """Values in the order of `Series.labels`."""
    value: float


@dataclass(frozen=True, slots=True)
class Watched:
    """What the monitor knows of its node besides the files, and where those are."""

    node: str
    """NODE_NAME."""
    registration: str | None
    """The node's register annotation; None: it has none, or the node cannot be read."""
    pods: tuple[Pod, ...] = ()
    """Pods bound to the node, as far as known."""
    problems: tuple[str, ...] = ()
    """Why any of that is not up to date: a value for each that could not be read."""
    cgroup_root: str = "/sys/fs/cgroup"
    drm_root: str = "/sys/class/drm"


@dataclass(frozen=True, slots=True)
class Measured:
    """All values of one scrape, no two with the same series and labels."""

    samples: tuple[Sample, ...]
    problems: tuple[str, ...] = ()
    """What could not be measured, one line each, stable so that it is logged once."""


class Metered(Protocol):
    """What the monitor asks of a vendor."""

    name: str

    @property
    def registered_under(self) -> str:
        """The node annotation with the registration."""
        ...

    def series(self) -> tuple[Series, ...]:
        """Everything it may export, in the order it is shown."""
        ...

    def samples(self, host: Host, watched: Watched) -> Measured:
        """What there is to see now. Reads files, keeps nothing, never raises OSError."""
        ...
