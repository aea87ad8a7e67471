"""Which containers have a cgroup on this node, and what dmem files say of them.

Kubelet's systemd driver makes one slice a pod, the container runtime one scope a container in it
(kernel.md 5). The id in a scope's name is what a pod's status calls the container; a scope that no status
knows (a sandbox, CRI-O's conmon, what systemd makes inside a container) is nobody's.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from devplugin.host import Host, words

_TOP = re.compile(r"(?:[^/]+-)?kubepods\.slice")
"""With kubelet's ``--cgroup-root X`` it is ``X-kubepods.slice`` (kernel.md 5)."""
_QOS = re.compile(r"(?:[^/]+-)?kubepods-(?:burstable|besteffort)\.slice")
_POD = re.compile(r"(?:[^/]+-)?kubepods(?:-burstable|-besteffort)?-pod([0-9A-Za-z_]+)\.slice")
_SCOPE = re.compile(r"(?:cri-containerd|crio|docker|cri-dockerd)-([0-9A-Za-z]+)\.scope")
"""No hyphen in an id: ``crio-conmon-<id>.scope`` is no container."""
_AMOUNT = re.compile(rb"^(\S+)[ \t]+([0-9]{1,20})$", re.M)
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})
"""Not there, or removed between opening and reading (kernel.md 4.3)."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One container's cgroup."""

    container_id: str
    path: str
    pod_path: str
    """Its pod's slice: limits stand there too."""


def scopes(host: Host, root: str, uids: Collection[str], problem: Callable[[str], None]) -> Iterator[Scope]:
    """The containers that run now, of some pods.

    Args:
        host: the node.
        root: where the cgroup hierarchy is mounted, or the parent of ``X-kubepods.slice``.
        uids: pods to look at, as kubelet names them in slices (of a static pod its config hash).
        problem: told, in one line, about a directory that is there and cannot be listed.
    """
    wanted = {uid.replace("-", "_") for uid in uids}
    for pod in _pods(host, root, problem):
        found = _POD.fullmatch(pod.rpartition("/")[2])
        if found is None or found[1] not in wanted:
            continue
        for name in _list(host, pod, problem):
            scope = _SCOPE.fullmatch(name)
            if scope is not None:
                yield Scope(scope[1], f"{pod}/{name}", pod)


def _pods(host: Host, root: str, problem: Callable[[str], None]) -> Iterator[str]:
    """Everything that may be a pod's slice: below kubelet's own and below each QoS class."""
    for top in _matching(host, root, _TOP, problem):
        yield from _matching(host, top, _POD, problem)
        for qos in _matching(host, top, _QOS, problem):
            yield from _matching(host, qos, _POD, problem)


def _matching(
    host: Host, directory: str, pattern: re.Pattern[str], problem: Callable[[str], None]
) -> Iterator[str]:
    names = _list(host, directory, problem)
    return (f"{directory}/{name}" for name in names if pattern.fullmatch(name))


def _list(host: Host, directory: str, problem: Callable[[str], None]) -> Collection[str]:
    try:
        return host.list(directory)
    except OSError as error:
        if error.errno not in _GONE:
            problem(f"{directory}: {words(error)}")
        return ()


def amounts(host: Host, path: str, problem: Callable[[str], None]) -> dict[str, int] | None:
    """Region → bytes of a dmem file; regions without a number (``max``) are left out (kernel.md 4.2).

    Returns:
        None when there is no such file: the controller is not handed down to this cgroup, or it is gone.
    """
    try:
        text = host.read(path)
    except OSError as error:
        if error.errno not in _GONE:
            problem(f"{path}: {words(error)}")
        return None
    return {region.decode("utf-8", "replace"): int(number) for region, number in _AMOUNT.findall(text)}
