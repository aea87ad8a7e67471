"""The programs of bin/ as the reader of a page finds them, on the node that the page is about.

Each is the real program of this checkout. A daemon that names no node works on the page's simulated one
instead of this computer; `kubectl` and `helm` are the stand-ins of this folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from .blocks import ROOT

DAEMONS = {
    "amd-device-plugin": "amd_device_plugin",
    "k8s-device-plugin": "amd_device_plugin",
    "ascend-device-plugin": "ascend_device_plugin",
    "ppu-device-plugin": "ppu_device_plugin",
    "vgpu-monitor": "vgpu_monitor",
    "node-labeller": "node_labeller",
    "k8s-node-labeller": "node_labeller",
}
"""Command → function of devplugin.launch; also by the name that the vendor's chart uses."""
OTHERS = {"build-recorder": "dist/gpusim-record.pyz", "fuzz": ""}
"""Program → words behind those of the page: what is built belongs to the reader, not to this checkout."""

_DAEMON = """#!{python}
import os, sys
from devplugin.launch import {function}
words = sys.argv[1:]
if not any(word.lstrip("-").partition("=")[0] in ("root", "simulate", "help") for word in words):
    nodes = {surroundings!r}
    words += nodes.get(os.environ.get("NODE_NAME"), next(iter(nodes.values())))
sys.exit({function}(words))
"""
_GPUSIM = """#!{python}
import sys
from gpusim.cli.main import main
words = sys.argv[1:]
if words[:1] == ["record"] and "--root" not in words:
    words += ["--root", {root!r}]
sys.exit(main(words))
"""
_OTHER = """#!/bin/sh
exec {program} "$@" {words}
"""
_CLUSTER = """#!{python} -S
import json, os, socket, sys
stdin = sys.stdin.read() if "-" in sys.argv else ""
asked = json.dumps({{"program": {name!r}, "words": sys.argv[1:], "cwd": os.getcwd(), "stdin": stdin}})
with socket.socket(socket.AF_UNIX) as wire:
    wire.connect({control!r})
    wire.sendall(asked.encode() + b"\\n")
    status, out, err = json.loads(wire.makefile().readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(status)
"""


def launch(name: str) -> list[str]:
    """The words that start a daemon of the image as a process."""
    code = f"import sys; from devplugin.launch import {DAEMONS[name]} as go; sys.exit(go())"
    return [sys.executable, "-c", code]


def lay(
    place: Path,
    surroundings: Mapping[str, Mapping[str, list[str]]],
    root: Path,
    control: str,
    *,
    python: str = sys.executable,
) -> None:
    """Put them into ``place/bin``.

    Args:
        place: the reader's directory.
        surroundings: program → node → flags it gets when it names none; by NODE_NAME, else the first node's.
        root: the files of the node that `gpusim record` records.
        control: socket of the cluster.
        python: who runs them.
    """
    folder = place / "bin"
    folder.mkdir()
    for name, function in DAEMONS.items():
        flags = dict(surroundings[name])
        _write(folder / name, _DAEMON.format(python=python, function=function, surroundings=flags))
    _write(folder / "gpusim", _GPUSIM.format(python=python, root=str(root)))
    for name, words in OTHERS.items():
        _write(folder / name, _OTHER.format(program=ROOT / "bin" / name, words=words))
    for name in ("kubectl", "helm"):
        _write(folder / name, _CLUSTER.format(python=python, name=name, control=control))


def environment(place: Path, kubeconfig: Path, node: str) -> dict[str, str]:
    """What the reader's shell has."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR", "PYTHONPATH") if name in os.environ}
    path = f"{place / 'bin'}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return {**kept, "PATH": path, "KUBECONFIG": str(kubeconfig), "NODE": node}


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
