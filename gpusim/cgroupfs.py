"""The files of the cgroup v2 hierarchy: /sys/fs/cgroup with everything below it.

Directories are made and removed by mkdir and rmdir, their files follow the parent's cgroup.subtree_control.
Rules are in `gpusim.cgroup` and `gpusim.dmem`. Sources: kernel.md 4.2, 4.3, 4.5; kernel/cgroup/cgroup.c
(`cgroup_file_write`, `cgroup_base_files`, `cgroup_attach_permissions`) and
fs/kernfs/file.c.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial

from gpusim.cgroup import Cgroups, controllers_text
from gpusim.cgroupnode import Cgroup
from gpusim.dmem import LIMITS, Css, Dmem
from gpusim.nodes import PAGE, Attr, Caller, KernelDir, Node, Show

Act = Callable[[bytes, Caller], None]


class CgroupFile(Attr):
    """An `Attr` with an owner: delegation gives files away, and who makes a group owns its files."""

    __slots__ = ("gid", "uid")

    def __init__(self, group: Cgroup, show: Show, store: Act | None, mode: int) -> None:
        super().__init__(show, store, mode=mode, sysfs=False)
        self.uid, self.gid = group.uid, group.gid


class CgroupFs:
    """The view of one hierarchy.

    Args:
        cgroups: its state.
        peak: dmem.peak exists (7.2).
        moved: called with a pid after it came to another group.
    """

    def __init__(self, cgroups: Cgroups, *, peak: bool, moved: Callable[[int], None]) -> None:
        self._cgroups = cgroups
        self._peak = peak
        self._moved = moved
        self._dirs: dict[Cgroup, KernelDir] = {}
        self.root = self._dir(cgroups.root)

    def _dir(self, group: Cgroup) -> KernelDir:
        found = self._dirs.get(group)
        if found is None:
            found = self._dirs[group] = KernelDir(
                partial(self._entries, group),
                make=partial(self._make, group),
                remove=partial(self._remove, group),
                mode=group.mode,
                uid=group.owner[0],
                gid=group.owner[1],
            )
        return found

    # Directories

    def make(self, path: str) -> Cgroup:
        """A group and its missing parents, as root makes them."""
        group = self._cgroups.root
        for name in path.split("/"):
            if name and name not in group.children:
                self._make(group, name, 0o755, Caller())
            if name:
                group = group.children[name]
        return group

    def _make(self, parent: Cgroup, name: str, mode: int, caller: Caller) -> None:
        gid = caller.gids[0] if caller.gids else 0
        child = self._cgroups.make(parent, name, mode, caller.uid, gid)
        self._dir(parent).add(name, self._dir(child))

    def _remove(self, parent: Cgroup, name: str) -> None:
        child = parent.children[name]
        self._cgroups.remove(child)
        del self._dirs[child]
        self._dir(parent).drop(name)

    def delegate(self, group: Cgroup, uid: int, gid: int) -> None:
        """chown what delegation gives away: the directory, cgroup.procs, .threads and .subtree_control.

        Limits stay with whoever owns the parent (kernel.md 4.5).
        """
        group.delegated = (uid, gid)
        directory = self._dir(group)
        directory.uid, directory.gid = uid, gid
        directory.invalidate()

    # Files

    def _entries(self, group: Cgroup) -> dict[str, Node]:
        found: dict[str, Node] = dict(self._core(group))
        if group.css is not None and self._cgroups.dmem is not None:
            found.update(self._dmem(group, self._cgroups.dmem))
        for name, child in group.children.items():
            found[name] = self._dir(child)
        return found

    def _core(self, group: Cgroup) -> dict[str, CgroupFile]:
        groups = self._cgroups
        found = {
            "cgroup.controllers": self._file(group, lambda: controllers_text(groups.available(group))),
            "cgroup.procs": self._delegated(group, partial(_members, group), partial(self._move, group)),
            "cgroup.stat": self._file(group, partial(self._stat, group)),
            "cgroup.subtree_control": self._delegated(
                group,
                lambda: controllers_text(name for name in groups.controllers if name in group.subtree),
                partial(self._control, group),
            ),
            "cgroup.threads": self._delegated(
                group, lambda: _pids(group), partial(self._move, group, whole=False)
            ),
        }
        if group.parent is not None:
            found["cgroup.events"] = self._file(group, lambda: f"populated {group.populated:d}\nfrozen 0\n")
            found["cgroup.type"] = self._file(
                group, lambda: f"{group.type}\n", lambda data, _: self._thread(group, data)
            )
        return found

    def _dmem(self, group: Cgroup, dmem: Dmem) -> dict[str, CgroupFile]:
        css = group.css
        assert css is not None
        found = {"dmem.current": self._file(group, lambda: dmem.current(css))}
        if group.parent is None:
            found["dmem.capacity"] = self._file(group, dmem.capacity)
            return found
        for which in LIMITS:
            found[f"dmem.{which}"] = self._file(
                group, partial(dmem.limits, css, which), partial(_limit, dmem, css, which)
            )
        if self._peak:
            found["dmem.peak"] = self._file(group, lambda: dmem.peak(css))
        return found

    def _file(self, group: Cgroup, show: Show, act: Act | None = None) -> CgroupFile:
        store = None if act is None else partial(_store, group, act, False)
        return CgroupFile(group, show, store, 0o444 if act is None else 0o644)

    def _delegated(self, group: Cgroup, show: Show, act: Act) -> CgroupFile:
        """A file that may be written through a namespace's own root, and goes with delegation."""
        made = CgroupFile(group, show, partial(_store, group, act, True), 0o644)
        made.uid, made.gid = group.owner
        return made

    def _stat(self, group: Cgroup) -> str:
        live = -1
        todo = [group]
        while todo:
            live += 1
            todo.extend(todo.pop().children.values())
        return f"nr_descendants {live}\nnr_dying_descendants {self._cgroups.dying(group)}\n"

    # Writes

    def _control(self, group: Cgroup, data: bytes, caller: Caller) -> None:
        if self._cgroups.control(group, data):
            for child in group.children.values():
                self._dir(child).invalidate()

    def _thread(self, group: Cgroup, data: bytes) -> None:
        self._cgroups.make_threaded(group, data)
        self._dir(group).invalidate()

    def _move(self, group: Cgroup, data: bytes, caller: Caller, *, whole: bool = True) -> None:
        """cgroup.procs and cgroup.threads: EINVAL, ESRCH, ENOENT and EACCES, then what the group answers."""
        groups = self._cgroups
        pid = _pid(data)
        if pid == 0:  # the writer itself, which is no process of the simulation
            groups.vet(group)
            return
        before = groups.of(pid)
        _may_move(before, group, caller)
        groups.vet(group)
        if not whole and before.domain is not group.domain:
            raise _error(errno.EOPNOTSUPP)
        if pid in before.pids:  # a zombie stays where it was
            groups.enter(pid, group)
            self._moved(pid)


def _limit(dmem: Dmem, css: Css, which: str, data: bytes, _: Caller) -> None:
    dmem.write(css, which, data)


def _store(group: Cgroup, act: Act, delegatable: bool, data: bytes, caller: Caller) -> None:
    """kernfs and cgroup_file_write before the file's own function."""
    if len(data) > PAGE:
        raise _error(errno.E2BIG)
    if not group.live:
        raise _error(errno.ENODEV)
    if caller.cgroup == group.path and not delegatable:
        raise _error(errno.EPERM)
    act(data, caller)


def _may_move(before: Cgroup, after: Cgroup, caller: Caller) -> None:
    """cgroup_procs_write_permission: the common ancestor's file is writable, both groups in the namespace."""
    common = next(group for group in before.lineage() if group in list(after.lineage()))
    if caller.uid and common.owner[0] != caller.uid:
        raise _error(errno.EACCES)
    if caller.cgroup is not None and not all(
        any(group.path == caller.cgroup for group in end.lineage()) for end in (before, after)
    ):
        raise _error(errno.ENOENT)


def _members(group: Cgroup) -> str:
    if group.threaded:
        raise _error(errno.EOPNOTSUPP)
    below = [child for child in group.children.values() if child.threaded]
    return _pids(group) + "".join(map(_threaded_pids, below))  # a thread root shows its whole process


def _threaded_pids(group: Cgroup) -> str:
    return _pids(group) + "".join(_threaded_pids(child) for child in group.children.values())


def _pids(group: Cgroup) -> str:
    return "".join(f"{pid}\n" for pid in group.pids)


def _pid(data: bytes) -> int:
    pid = _whole(data)
    if not 0 <= pid < 1 << 31:
        raise _error(errno.EINVAL)
    return pid


def _whole(data: bytes) -> int:
    """kstrtoint with base 0 of the stripped buffer. EINVAL."""
    text = data.partition(b"\0")[0].decode("latin-1").strip()
    body = text.lstrip("+-") if text[:1] in "+-" and text[1:2] not in "+-" else text
    base = 16 if body[:2].lower() == "0x" else 8 if body[:1] == "0" else 10
    try:
        if not body.isascii() or "_" in body or body != body.strip():
            raise ValueError(text)
        number = int(body.lower().removeprefix("0x"), base)
    except ValueError:
        raise _error(errno.EINVAL) from None
    return -number if text[0] == "-" else number


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
