"""Commands for what stands around a node: kubelet, API server and scheduler, as programs of their own.

Flags and running are theirs (`gpusim.cluster`). They are imported when asked for, because the gRPC stack
takes ten times as long to load as the rest of this command line.
"""

from __future__ import annotations

from typing import Any


def add_commands(commands: Any) -> None:
    """``kubelet``, ``apiserver`` and ``scheduler``."""
    commands.add_parser(
        "kubelet",
        help="run a kubelet on a real socket",
        description="Run the node agent: device plugins register with it, pods bound here are admitted.",
        examples="  gpusim kubelet --dir /tmp/plugins --apiserver http://127.0.0.1:8001 --node node-1",
        module="gpusim.cluster.kubelet",
    )
    commands.add_parser(
        "apiserver",
        help="run a Kubernetes API over HTTP",
        description="Run an API server, as far as device plugins and a scheduler need one.",
        examples="  gpusim apiserver --port 8001 --kubeconfig /tmp/kubeconfig",
        module="gpusim.cluster.apiserver",
    )
    commands.add_parser(
        "scheduler",
        help="run a HAMi scheduler on an API server",
        description="Run a scheduler that reads what device plugins registered, places pods that ask for"
        " devices, locks their node and binds them.",
        examples="  gpusim scheduler --apiserver http://127.0.0.1:8001 --vendor amd\n"
        "  gpusim scheduler --apiserver http://127.0.0.1:8001 --device-config device-config.yaml",
        module="gpusim.cluster.scheduler_command",
    )
