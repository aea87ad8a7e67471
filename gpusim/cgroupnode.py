"""One cgroup: its place in the hierarchy, and of which kind it is (domain, threaded, root of threads).

What may be done to it is `gpusim.cgroup`. Source: kernel/cgroup/cgroup.c (`cgroup_is_thread_root`,
`cgroup_can_be_thread_root`, `cgroup_is_valid_domain`, `cgroup_type_show`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpusim.dmem import Css

THREADED = frozenset({"cpuset", "cpu", "pids"})
"""Controllers that work inside a threaded subtree; dmem is none."""


@dataclass(slots=True, eq=False)
class Cgroup:
    """One group. Its path never changes; a removed group keeps it."""

    path: str
    """``/`` for the root, else ``/kubepods.slice/…`` without a trailing slash."""
    parent: Cgroup | None
    children: dict[str, Cgroup] = field(default_factory=dict)
    pids: dict[int, None] = field(default_factory=dict)
    """Its live processes, in the order they came."""
    subtree: frozenset[str] = frozenset()
    """Controllers it hands to its children: cgroup.subtree_control."""
    threaded: bool = False
    css: Css | None = None
    """dmem's state here; None: not enabled, what is charged goes to the next group above that has one."""
    live: bool = True
    mode: int = 0o755
    uid: int = 0
    """Who made it: owner of all its files."""
    gid: int = 0
    delegated: tuple[int, int] | None = None
    """User and group its directory, cgroup.procs, .threads and .subtree_control were given to."""

    @property
    def owner(self) -> tuple[int, int]:
        """User and group of its directory and of the files that delegation gives away."""
        return self.delegated or (self.uid, self.gid)

    @property
    def name(self) -> str:
        """Last part of the path; empty for the root."""
        return self.path.rpartition("/")[2]

    @property
    def populated(self) -> bool:
        """Whether a live process is in it or below."""
        return bool(self.pids) or any(child.populated for child in self.children.values())

    def lineage(self) -> Iterator[Cgroup]:
        """Itself and its ancestors, up to the root."""
        group: Cgroup | None = self
        while group is not None:
            yield group
            group = group.parent

    # Kinds of group (kernel/cgroup/cgroup.c, functions of these names)

    @property
    def thread_root(self) -> bool:
        """Whether threaded groups hang on it, or its tasks share a threaded controller with children."""
        if self.threaded or self.parent is None:
            return False
        if any(child.threaded for child in self.children.values()):
            return True
        return bool(self.pids) and bool(self.subtree & THREADED)

    @property
    def can_be_thread_root(self) -> bool:
        """Whether threaded groups may be made below it."""
        if self.parent is None:
            return True
        if self.threaded or self.subtree - THREADED:
            return False
        return not any(child.populated and not child.threaded for child in self.children.values())

    @property
    def valid_domain(self) -> bool:
        """Whether it can hold processes as a domain of its own."""
        if self.threaded:
            return False
        return not any(above.threaded or above.thread_root for above in list(self.lineage())[1:])

    @property
    def domain(self) -> Cgroup:
        """The nearest group, itself included, that is not threaded."""
        return next(group for group in self.lineage() if not group.threaded)

    @property
    def type(self) -> str:
        """Text of cgroup.type."""
        if self.threaded:
            return "threaded"
        if not self.valid_domain:
            return "domain invalid"
        return "domain threaded" if self.thread_root else "domain"
