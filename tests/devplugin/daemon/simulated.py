"""A cluster of one node whose plugin looks at a simulated machine behind a socket, of any vendor."""

from __future__ import annotations

import json
import sys
from typing import Any, ClassVar

from gpusim.machine import Machine
from gpusim.serve import Server

from .rig import Rig


class SimulatedRig(Rig):
    """A cluster of one node of a vendor."""

    program: ClassVar[str]
    """Function of `devplugin.launch`."""
    register: ClassVar[str]
    """Annotation of the registration."""
    machine: Machine
    server_of_node: Server | None = None

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        if self.server_of_node is not None:
            self.server_of_node.stop()

    def serve(self, machine: Machine) -> Machine:
        """Let plugins that are started from now on look at this machine."""
        self.machine = machine
        socket = str(self.path / "node.sock")
        self.server_of_node = Server(machine, socket)
        self.server_of_node.start()
        code = f"import sys; from devplugin.launch import {self.program} as go; sys.exit(go())"
        self.command = (sys.executable, "-c", code, "-simulate", f"unix:{socket}")
        return machine

    def registered(self) -> list[dict[str, Any]]:
        """The cards of the registration; none: there is no registration."""
        found: list[dict[str, Any]] = json.loads(self.node_annotation(self.register) or "[]")
        return found
