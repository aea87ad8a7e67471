"""The cgroup v2 hierarchy: which groups exist, which controllers they hand down, which process is where.

State and rules only; the files are `gpusim.cgroupfs`. Of the controllers only dmem does anything here, the
others are names. Sources: kernel.md 4.5; kernel/cgroup/cgroup.c (`cgroup_subtree_control_write`,
`cgroup_vet_subtree_control_enable`, `cgroup_migrate_vet_dst`, `cgroup_enable_threaded`,
`cgroup_destroy_locked`, `proc_cgroup_show`), kernel/cgroup/dmem.c.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterable, Iterator

from gpusim.cgroupnode import THREADED, Cgroup
from gpusim.dmem import Copies, Css, Dmem

CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma", "misc")
"""Root controllers before dmem, which comes last (kernel.md 4.5), in the order files print them."""


class Cgroups:
    """The whole hierarchy and where every process is.

    Args:
        dmem: the controller, or None on a kernel without one.
    """

    def __init__(self, dmem: Dmem | None) -> None:
        self.dmem = dmem
        self.controllers: tuple[str, ...] = CONTROLLERS if dmem is None else (*CONTROLLERS, "dmem")
        self.root = Cgroup("/", None, css=None if dmem is None else dmem.root)
        self._of: dict[int, Cgroup] = {}
        self._dying: list[tuple[Cgroup, Css]] = []

    # Groups

    def find(self, path: str) -> Cgroup:
        """The group at ``/kubepods.slice/…``.

        Raises:
            OSError: ENOENT.
        """
        group = self.root
        for name in path.split("/"):
            if name:
                found = group.children.get(name)
                if found is None:
                    raise _error(errno.ENOENT, path)
                group = found
        return group

    def __iter__(self) -> Iterator[Cgroup]:
        """Every live group, parents before their children."""
        todo = [self.root]
        while todo:
            group = todo.pop()
            yield group
            todo.extend(reversed(group.children.values()))

    def make(self, parent: Cgroup, name: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Cgroup:
        """A child; it gets dmem's files when the parent hands the controller down.

        Raises:
            OSError: EINVAL, a newline in the name; ENODEV, the parent was removed; EEXIST.
        """
        if "\n" in name:
            raise _error(errno.EINVAL)
        if not parent.live:
            raise _error(errno.ENODEV)
        if name in parent.children:
            raise _error(errno.EEXIST)
        css = Css(parent.css) if "dmem" in parent.subtree else None
        group = Cgroup(f"{parent.path.rstrip('/')}/{name}", parent, css=css, mode=mode, uid=uid, gid=gid)
        parent.children[name] = group
        return group

    def remove(self, group: Cgroup) -> None:
        """Remove an empty group. What was charged in it stays charged to its ancestors until it is freed.

        Raises:
            OSError: EBUSY, it has processes or children, or is the root; ENODEV, it was removed already.
        """
        if not group.live:
            raise _error(errno.ENODEV)
        if group.parent is None or group.children or group.pids:
            raise _error(errno.EBUSY)
        group.live = False
        del group.parent.children[group.name]
        self._drop(group)

    def _drop(self, group: Cgroup) -> None:
        if group.css is not None and self.dmem is not None:
            self.dmem.offline(group.css)
            self._dying = [entry for entry in self._dying if entry[1].charged]
            if group.css.charged and not group.live:
                self._dying.append((group, group.css))
            group.css = None

    def dying(self, group: Cgroup) -> int:
        """How many removed groups below are still charged for something (cgroup.stat)."""
        return sum(css.charged and group in gone.lineage() for gone, css in self._dying)

    # Controllers

    def available(self, group: Cgroup) -> tuple[str, ...]:
        """Text order of cgroup.controllers."""
        if group.parent is None:
            return self.controllers
        known = group.parent.subtree & THREADED if group.threaded else group.parent.subtree
        return tuple(name for name in self.controllers if name in known)

    def control(self, group: Cgroup, data: bytes) -> bool:
        """One write to cgroup.subtree_control: all of it or nothing.

        Returns:
            Whether the children's files changed.

        Raises:
            OSError: EINVAL, a name unknown here or without + or -; ENOENT, not in cgroup.controllers;
                EBUSY, a child still hands it down, or the group has processes; EOPNOTSUPP, a threaded
                subtree; ENODEV, the group was removed.
        """
        wanted = self._wanted(data)
        if not group.live:
            raise _error(errno.ENODEV)
        enable, disable = set[str](), set[str]()
        for name in (name for name in self.controllers if name in wanted):
            if wanted[name] and name not in group.subtree:
                if name not in self.available(group):
                    raise _error(errno.ENOENT)
                enable.add(name)
            elif not wanted[name] and name in group.subtree:
                if any(name in child.subtree for child in group.children.values()):
                    raise _error(errno.EBUSY)
                disable.add(name)
        if not enable and not disable:
            return False
        self._vet_enable(group, enable)
        group.subtree = (group.subtree | enable) - disable
        for child in group.children.values():
            if "dmem" in enable and not child.threaded:
                child.css = Css(group.css)
            elif "dmem" in disable:
                self._drop(child)
        return True

    def _wanted(self, data: bytes) -> dict[str, bool]:
        """Controller → whether it is to be on; the last word of one that is named twice holds."""
        wanted: dict[str, bool] = {}
        for token in _text(data).split(" "):
            if token:
                if token[1:] not in self.controllers or token[0] not in "+-":
                    raise _error(errno.EINVAL)
                wanted[token[1:]] = token[0] == "+"
        return wanted

    def _vet_enable(self, group: Cgroup, enable: set[str]) -> None:
        """cgroup_vet_subtree_control_enable."""
        if not enable:
            return
        if not group.domain.valid_domain:
            raise _error(errno.EOPNOTSUPP)
        if group.parent is None:
            return
        if enable - THREADED:
            if group.thread_root or group.threaded:
                raise _error(errno.EOPNOTSUPP)
        elif group.can_be_thread_root or group.threaded:
            return
        if group.pids:
            raise _error(errno.EBUSY)

    def make_threaded(self, group: Cgroup, data: bytes) -> None:
        """One write to cgroup.type: ``threaded`` is the only word, and there is no way back.

        Raises:
            OSError: EINVAL, another word; EOPNOTSUPP, populated, domain controllers in use here or above,
                or a parent that is no valid domain; ENODEV.
        """
        if _text(data) != "threaded":
            raise _error(errno.EINVAL)
        if not group.live:
            raise _error(errno.ENODEV)
        if group.threaded:
            return
        parent = group.parent
        if parent is None or group.populated or group.subtree - THREADED:
            raise _error(errno.EOPNOTSUPP)
        if not (parent.domain.valid_domain and parent.domain.can_be_thread_root):
            raise _error(errno.EOPNOTSUPP)
        group.threaded = True
        self._drop(group)  # the domain controllers of the parent do not reach into it

    # Processes

    def of(self, pid: int) -> Cgroup:
        """Where a process is, or was when it exited.

        Raises:
            OSError: ESRCH.
        """
        try:
            return self._of[pid]
        except KeyError:
            raise _error(errno.ESRCH) from None

    def pids(self) -> list[int]:
        """Every process, zombies included."""
        return list(self._of)

    def vet(self, group: Cgroup) -> None:
        """Whether a process may come to a group (cgroup_migrate_vet_dst).

        Raises:
            OSError: EOPNOTSUPP, no valid domain; EBUSY, it hands controllers down and is not the root.
        """
        if not group.domain.valid_domain:
            raise _error(errno.EOPNOTSUPP)
        if not (group.can_be_thread_root or group.threaded) and group.subtree:
            raise _error(errno.EBUSY)

    def enter(self, pid: int, group: Cgroup) -> None:
        """A process comes to a group, from another one or newly born. What it was charged stays behind.

        Raises:
            OSError: as `vet`; ENODEV, the group was removed.
        """
        if not group.live:
            raise _error(errno.ENODEV)
        self.vet(group)
        before = self._of.get(pid)
        if before is not None:
            before.pids.pop(pid, None)
        group.pids[pid] = None
        self._of[pid] = group

    def leave(self, pid: int) -> None:
        """A process exits: it is no member any more, and remembered as one until `forget`."""
        self._of[pid].pids.pop(pid, None)

    def forget(self, pid: int) -> None:
        """An exited process was waited for."""
        del self._of[pid]

    def proc_text(self, pid: int, root: str = "/") -> str:
        """Text of /proc/<pid>/cgroup, for a reader whose cgroup namespace has `root` (kernel.md 5).

        A zombie may outlive its group.
        """
        group = self.of(pid)
        return f"0::{_seen_from(root, group.path)}{'' if group.live else ' (deleted)'}\n"

    def css(self, pid: int) -> Css | None:
        """Where a process is charged: its group's css or the nearest above. None without the controller."""
        return effective(self.of(pid))

    def fork(self, dmem: Dmem | None, copies: Copies) -> Cgroups:
        """An independent hierarchy in the same state over a forked controller."""
        twin = Cgroups(dmem)
        twins: dict[Cgroup, Cgroup] = {}

        def copied(group: Cgroup) -> Cgroup:
            known = twins.get(group)
            if known is None:
                css = None if group.css is None else copies.css(group.css)
                parent = None if group.parent is None else copied(group.parent)
                known = twins[group] = Cgroup(
                    group.path,
                    parent,
                    pids=group.pids.copy(),
                    subtree=group.subtree,
                    threaded=group.threaded,
                    css=css,
                    live=group.live,
                    mode=group.mode,
                    uid=group.uid,
                    gid=group.gid,
                    delegated=group.delegated,
                )
                if parent is not None and group.live:
                    parent.children[group.name] = known
            return known

        twin.root = copied(self.root)
        for group in self:
            copied(group)
        twin._of = {pid: copied(group) for pid, group in self._of.items()}
        twin._dying = [(copied(group), copies.css(css)) for group, css in self._dying]
        return twin


def effective(group: Cgroup) -> Css | None:
    """The css of the nearest group, itself included, in which dmem is enabled."""
    return next((above.css for above in group.lineage() if above.css is not None), None)


def _seen_from(root: str, path: str) -> str:
    """A group's path in a namespace, with a ``/..`` for each level up (fs/kernfs, kernfs_path_from_node)."""
    relative = posixpath.relpath(path, root)
    return "/" if relative == "." else f"/{relative}"


def controllers_text(names: Iterable[str]) -> str:
    """One line; a lone newline when there is none."""
    return " ".join(names) + "\n"


def _text(data: bytes) -> str:
    """A written buffer up to a NUL, as kernfs hands it over, stripped as strstrip does."""
    return data.partition(b"\0")[0].decode("latin-1").strip(" \t\n\v\f\r\xa0")


def _error(code: int, path: str | None = None) -> OSError:
    return OSError(code, os.strerror(code), path) if path is not None else OSError(code, os.strerror(code))
