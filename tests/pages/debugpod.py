"""A debug pod on a node: the node's root at /host, files of its own below the cluster's directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gpusim.export.render import render

from .cluster import Cluster, RefusedError

NAME = "node-debugger"


def environment(cluster: Cluster) -> dict[str, str]:
    """What every pod's process has."""
    kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
    return {**kept, "HOME": str(cluster.path), "KUBECONFIG": str(cluster.kubeconfig)}


def create(cluster: Cluster, node: str, image: str) -> str:
    """`kubectl debug node/NAME`."""
    name = f"{NAME}-{node}-x7k2p"
    body = {"containers": [{"name": "debugger", "image": image}], "nodeName": node}
    cluster.store.create("pods", {"metadata": {"name": name}, "spec": body})
    render(cluster.nodes[node].machine, cluster.path / name / "host")
    (cluster.path / name / "tmp").mkdir()
    return f"Creating debugging pod {name} with container debugger on node {node}.\n"


def run(cluster: Cluster, pod: str, argv: list[str]) -> str:
    """`kubectl exec`: a command in it, its paths below /tmp and /host."""
    root = cluster.path / pod
    words = [f"{root}{word}" if word.startswith(("/tmp/", "/host")) else word for word in argv]
    done = subprocess.run(words, env=environment(cluster), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RefusedError(done.stdout + done.stderr)
    return done.stdout


def copy(cluster: Cluster, names: list[str], cwd: Path) -> str:
    """`kubectl cp`: POD:PATH is the pod's file, everything else the reader's."""
    source, target = (
        cluster.path / word.partition(":")[0] / word.partition(":")[2].lstrip("/")
        if ":" in word
        else cwd / word
        for word in names
    )
    target.write_bytes(source.read_bytes())
    return ""
