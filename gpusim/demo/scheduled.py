"""What the plays of vendors with a device configuration share: the scheduler, and pods it places.

The configuration is one file that scheduler and plugin both read, as HAMi's charts install it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpusim.cluster import pods
from gpusim.cluster.apiclient import ApiClient
from gpusim.cluster.scheduler_config import config_vendors
from gpusim.cluster.scheduler_webhook import admit
from gpusim.demo.showing import admitted, annotation, registered, show_devices
from gpusim.demo.stage import NODE, DemoError, Stage, allocatable


@dataclass(frozen=True, slots=True)
class Scene:
    """A stage with a scheduler on it."""

    stage: Stage
    api: ApiClient
    config: Mapping[str, Any]
    """The device configuration."""
    word: str
    """The vendor's, in ``hami.io/node-register-<word>``."""
    resource: str
    """Count resource."""

    @property
    def register(self) -> str:
        """The register annotation's key."""
        return f"hami.io/node-register-{self.word}"

    @property
    def file(self) -> Path:
        """The device configuration's file."""
        return self.stage.scratch / "device-config.yaml"

    def open(self) -> None:
        """Write the configuration and start the scheduler."""
        self.file.write_text(yaml.safe_dump(dict(self.config), sort_keys=False))
        words = ["--apiserver", self.api.url, "--device-config", str(self.file), "--register-seconds", "1"]
        self.stage.start("scheduler", "gpusim", "scheduler", *words)

    def plugin(self, program: str, *flags: str, mode: str) -> list[dict[str, Any]]:
        """(Re)start the plugin, wait until scheduler and kubelet see its devices; show and return them."""
        scratch = self.stage.scratch
        env = {"NODE_NAME": NODE, "KUBECONFIG": str(scratch / "kubeconfig")}
        sockets = ["-simulate", f"unix:{scratch}/node.sock", "-kubelet_dir", f"{scratch}/kubelet"]
        self.stage.start("plugin", program, *flags, *sockets, env=env)

        def ready() -> list[dict[str, Any]] | None:
            devices = registered(self.api, self.register)
            slots = sum(d.get("count", 0) for d in devices if d.get("health"))
            fresh = (annotation(self.api, self.register.replace("register", "handshake")) or "").startswith(
                "Requesting"  # the scheduler read what the plugin wrote
            )
            return devices if slots and fresh and allocatable(self.api, self.resource) == slots else None

        devices: list[dict[str, Any]] = self.stage.until(
            f"the {mode} devices at kubelet and scheduler", ready
        )
        count = allocatable(self.api, self.resource)
        self.stage.console.print(f"plugin: [green]{mode}[/green], {self.resource}: {count}")
        show_devices(self.stage.console, self.register, devices)
        return devices

    def run(
        self,
        name: str,
        limits: dict[str, int | str],
        *,
        annotations: Mapping[str, str] | None = None,
        shown: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Create a pod as the webhook lets it through, and show what its container receives; the pod.

        Raises:
            DemoError: the webhook or the plugin refused it, or nothing came of it.
        """
        wanted = pods.pod(name, [pods.container("main", limits)])
        wanted["metadata"].setdefault("annotations", {}).update(annotations or {})
        verdict = admit(wanted, config_vendors(self.config))
        if verdict.denied:
            raise DemoError(f"pod {name} was denied: {verdict.denied}")
        self.stage.console.print(
            f"pod [bold]{name}[/bold] asks for {limits} {dict(annotations or {}) or ''}", highlight=False
        )
        self.api.create("pods", verdict.pod)
        allocated = f"hami.io/{self.word}-devices-allocated"
        return admitted(self.stage, self.api, name, (allocated, *shown))
