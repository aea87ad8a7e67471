"""How well the rules describe a capture: infer its fixture, generate the node, compare.

Only what the capture has is asked for. Each of its files is *equal* (byte for byte, NUL padding aside),
*explained* (a counter, or what no rule can give: `tables` has the reason) or *different*. The score is equal
over equal and different: what is explained says nothing about the rules either way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpusim.machine import Machine
from gpusim.snapshots import tables
from gpusim.snapshots.diff import Finding, State, compare
from gpusim.snapshots.infer import Inferred, infer
from gpusim.snapshots.reading import Capture, slot
from gpusim.snapshots.sources import Source
from gpusim.snapshots.tables import Rule

KFD = "KFD topology"
"""The area that has no readings beside used_memory."""

_AREAS = (
    (re.compile(r"/sys/class/kfd/.*"), KFD),
    (re.compile(r".*/(current|available)_(compute|memory)_partition"), "partition and memory files"),
    (re.compile(r".*/mem_info_[a-z_]+"), "partition and memory files"),
    (re.compile(r"/sys/devices/platform/.*"), "partition devices"),
    (re.compile(r".*/drm/(card|renderD|controlD)\d+(/dev)?"), "DRM nodes"),
    (re.compile(r"/sys/class/drm/[^/]+/(dev|uevent)"), "DRM nodes"),
    (re.compile(r".*/hwmon/.*"), "sensors"),
    (re.compile(r"/sys/(bus/pci/devices|class/drm)/.*"), "PCI directory"),
)
"""Which part of a node a place belongs to; the first that fits."""


@dataclass(frozen=True, slots=True)
class Area:
    """The files of one part of the node."""

    name: str
    equal: int
    explained: int
    different: int

    @property
    def files(self) -> int:
        """All of them."""
        return self.equal + self.explained + self.different

    @property
    def score(self) -> float:
        """Equal among those that rules should give, 0 to 1; 1 when there are none."""
        return self.equal / (self.equal + self.different) if self.equal + self.different else 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `verify` found.

    Attributes:
        inferred: the fixture and what it had to assume.
        areas: the parts of the node that the capture shows.
        explained: reason → number of files.
        different: every file that no reason explains.
    """

    inferred: Inferred
    areas: tuple[Area, ...]
    explained: dict[str, int]
    different: tuple[Finding, ...]

    @property
    def total(self) -> Area:
        """All areas together."""
        return Area(
            "all",
            sum(area.equal for area in self.areas),
            sum(area.explained for area in self.areas),
            sum(area.different for area in self.areas),
        )


def verify(source: Source, name: str = "inferred") -> Verdict:
    """Infer the node that `source` shows, generate it, and compare with what `source` has.

    Raises:
        GpusimError: as `infer`.
    """
    inferred = infer(source, name)
    machine = Machine(inferred.spec)
    rules = (*tables.COUNTERS, *tables.UNMODELLED, *_foreign(source, machine))
    return judged(inferred, compare(source, machine, ignore=rules, one_way=True))


def _foreign(source: Source, machine: Machine) -> Iterator[Rule]:
    """Why the directories of other drivers' displays are not compared beyond their ids."""
    capture = Capture(source)
    names = capture.names("/sys/class/drm")
    owners = {name: slot(capture, f"/sys/class/drm/{name}/device") for name in names}
    for card in machine.driver.cards:
        reason = f"device of {card.spec.driver}, of which only ids and DRM numbers are modelled"
        yield Rule(f"*/{card.spec.bdf}/*", reason, absent=True)
        for name, owner in owners.items():
            if owner == card.spec.bdf:
                yield Rule(f"/sys/class/drm/{name}/device/*", reason, absent=True)


def judged(inferred: Inferred, findings: Iterable[Finding]) -> Verdict:
    """The verdict on a comparison."""
    counts: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    different = []
    for finding in findings:
        kind = {State.EQUAL: "equal", State.IGNORED: "explained"}.get(finding.state, "different")
        part, reason = area(finding.path), finding.reason
        if kind == "equal" and part != KFD and (moving := tables.reason(tables.READINGS, finding.path)):
            kind, reason = "explained", moving  # a reading that happens to be equal proves no rule
        counts.setdefault(part, Counter())[kind] += 1
        if reason:
            reasons[reason] += 1
        if kind == "different":
            different.append(finding)
    areas = tuple(
        Area(name, found["equal"], found["explained"], found["different"])
        for name, found in sorted(counts.items())
    )
    return Verdict(inferred, areas, dict(reasons.most_common()), tuple(different))


def area(path: str) -> str:
    """The part of the node a place belongs to."""
    return next((name for pattern, name in _AREAS if pattern.fullmatch(path)), "other")
