"""The cluster's half of a preflight: kubelet's directory, the API server, this node, every right.

Nothing is written: a right is asked for by SelfSubjectAccessReview, which everybody may; of kubelet only
whether somebody answers on its socket.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from devplugin.kube import Api, Forbidden, KubeError, NoCluster, NotFound, OfficialClient
from devplugin.kubelet.directory import KUBELET_SOCKET, state
from devplugin.preflight import Check, good
from devplugin.rights import Right


def kubelet(directory: str) -> tuple[Check, ...]:
    """Whether kubelet is there and our socket can be put beside its own."""
    found = state(directory)
    mount = "mount the node's /var/lib/kubelet/device-plugins there, writable, or name another -kubelet_dir"
    if not found.there:
        return (Check("kubelet directory", "missing", f"{directory} is no directory", mount),)
    place = good("kubelet directory", directory)
    if not found.writable:
        place = Check("kubelet directory", "missing", f"{directory} is not writable", mount)
    socket = f"{directory.rstrip('/')}/{KUBELET_SOCKET}"
    if found.kubelet:
        return (place, good("kubelet socket", socket))
    words = f"{socket} does not exist" if found.kubelet is None else f"nobody answers on {socket}"
    return (place, Check("kubelet socket", "missing", words, "start kubelet; the daemon waits for it"))


async def cluster(
    connect: Callable[[], OfficialClient], node: str, rights: Sequence[Right]
) -> tuple[Check, ...]:
    """Whether the API server answers, knows this node and lets us do our work.

    Args:
        connect: makes the port; blocking.
        node: NODE_NAME; empty: not known.
        rights: what the daemon is going to do.
    """
    if not node:
        remedy = "set NODE_NAME (in a pod: from spec.nodeName)"
        return (Check("node name", "missing", "NODE_NAME is not set", remedy),)
    try:
        api = connect()
    except NoCluster as error:
        remedy = "set KUBECONFIG, or run in a pod with a service account"
        return (Check("API server", "missing", str(error), remedy),)
    checks = [await _right(api, right) for right in rights]
    return (*await _node(api, node), *checks)


async def _node(api: Api, name: str) -> tuple[Check, ...]:
    try:
        await api.node(name)
    except NotFound:
        remedy = "NODE_NAME must be the name of a node object: kubectl get nodes"
        return (Check("node", "missing", f"the cluster has no node {name}", remedy),)
    except Forbidden as error:
        return (Check("node", "missing", str(error), "grant it in the ClusterRole"),)
    except KubeError as error:
        remedy = "reach the API server from this node; the daemon waits for it"
        return (Check("API server", "missing", str(error), remedy),)
    return (good("API server", "answers"), good("node", name))


async def _right(api: OfficialClient, right: Right) -> Check:
    name = f"right {right}"
    try:
        allowed = await api.may(right.verb, right.resource)
    except KubeError as error:
        return Check(name, "warning", f"cannot be asked for: {error}", "look at the ClusterRole by hand")
    if allowed:
        return good(name, "granted")
    remedy = f"grant verb {right.verb!r} on {right.resource!r} in the ClusterRole: {right.purpose}"
    lesser = right.resource in ("events", "nodes/status")
    return Check(name, "warning" if lesser else "missing", "not granted", remedy)
