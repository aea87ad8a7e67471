"""The play of an Ascend node: a soft slice that the runtime library limits, then one cut by a template."""

from __future__ import annotations

from typing import Any

from gpusim.ascend.chips import CHIPS, Chip
from gpusim.cluster.scheduler_ascend import shipped
from gpusim.demo.scheduled import Scene
from gpusim.demo.stage import DemoError, Stage, lay, machine, node_and_cluster
from gpusim.spec import NodeSpec

ASSETS = "/usr/local/hami-vnpu-core-assets"
MODE = {"huawei.com/vnpu-mode": "hami-core"}


def configuration(chip: Chip) -> dict[str, Any]:
    """The shipped device configuration, of one kind of chip, with soft slices and the runtime's class."""
    config = shipped(soft=True)
    (entry,) = (one for one in config["vnpus"]["configs"] if one["chipName"] == chip.label)
    config["vnpus"]["configs"] = [{**entry, "runtimeClassName": "ascend"}]
    return config


def act(stage: Stage, fixture: str, spec: NodeSpec) -> None:
    """The whole play."""
    chip = CHIPS[spec.npus[0].chip]
    config = configuration(chip)
    entry = config["vnpus"]["configs"][0]
    memory = chip.templates[0].memory_mib
    api = node_and_cluster(stage, fixture, containers=True)
    scene = Scene(stage, api, config, entry["commonWord"], entry["resourceName"])
    scene.open()
    node = stage.scratch / "node-config.yaml"
    flags = ["--config_file", str(scene.file), "--node_config_file", str(node), "--monitor_bind_address="]
    count, mib, core = (entry[f"resource{part}Name"] for part in ("", "Memory", "Core"))

    stage.console.rule("soft mode: a card's memory and cores, limited by the runtime library")
    stage.console.print(
        f"(the image's libvnpu.so is laid at {ASSETS} on the simulated node)", highlight=False
    )
    lay(stage, f"{ASSETS}/libvnpu.so", b"\x7fELF (stand-in)")
    lay(stage, f"{ASSETS}/ld.so.preload", b"/hami-vnpu-core/libvnpu.so\n", 0o644)
    node.write_text("nodes: []\n")
    scene.plugin("ascend-device-plugin", *flags, mode="soft mode")
    scene.run("soft", {count: 1, mib: memory, core: 25}, annotations=MODE)

    stage.console.rule("template mode: a vNPU of fixed size, cut by the driver")
    api.delete("pods", "soft", grace_seconds=0)
    stage.stop("plugin")
    node.write_text("nodes:\n  - name: demo-node\n    hami-vnpu-core: false\n")
    scene.plugin("ascend-device-plugin", *flags, mode="template mode")
    scene.run("template", {count: 1, mib: memory}, shown=(f"huawei.com/{entry['commonWord']}",))
    _show_cut(stage, spec, entry["templates"][0]["name"])


def _show_cut(stage: Stage, spec: NodeSpec, template: str) -> None:
    """npu-smi's table of the card that was cut.

    Raises:
        DemoError: none was.
    """
    node = machine(stage)
    cards = {npu.card for npu in spec.npus if npu.card is not None} or range(len(spec.npus))
    for card in sorted(cards):
        for chip in range(CHIPS[spec.npus[0].chip].per_card):
            command = ["npu-smi", "info", "-t", "info-vnpu", "-i", str(card), "-c", str(chip)]
            said = node.run(command).stdout.decode()
            if template in said:
                stage.console.print("$ " + " ".join(command), highlight=False)
                stage.console.print(said, highlight=False)
                return
    raise DemoError(f"no card was cut into {template}")
