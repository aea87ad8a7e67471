"""The sensors of a GPU: ``hwmon/hwmon<M>`` in its PCI directory.

Which files there are depends on the generation (kernel.md 3: GC 9.4.3, 9.4.4 and 9.5.0 have neither an edge
sensor nor an average power; captures rdna4-rx9070 and apu-strixpoint-890m). Readings are those of an idle
GPU and do not move: nothing here computes heat. ``M`` is arbitrary in Linux too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gpusim.amd.gpu import Gpu, answers
from gpusim.amd.products import Product
from gpusim.nodes import Attr, Dir, Link, Node

_FIRST = 2
"""Other chips of the host, its disks and processors, come before."""

Readings = Mapping[str, str | int]

_INSTINCT: Readings = {
    # Names: kernel.md 3. The numbers are not captured: an idle card, clocks in deep sleep.
    "temp2_label": "junction",
    "temp2_input": 45_000,
    "temp3_label": "mem",
    "temp3_input": 40_000,
    "power1_label": "PPT",
    "power1_input": 150_000_000,
    "freq1_label": "sclk",
    "freq1_input": 132_000_000,
    "freq2_label": "mclk",
    "freq2_input": 900_000_000,
}
_DISCRETE: Readings = {
    # rdna4-rx9070; Vega and MI200 have the same sensors (kernel.md 3).
    "temp1_label": "edge",
    "temp1_input": 48_000,
    "temp2_label": "junction",
    "temp2_input": 52_000,
    "temp3_label": "mem",
    "temp3_input": 72_000,
    "power1_label": "PPT",
    "power1_average": 49_000_000,
    "freq1_label": "sclk",
    "freq1_input": 900_000_000,
    "freq2_label": "mclk",
    "freq2_input": 1_124_000_000,
}
_SMALL_APU: Readings = {
    # apu-strixpoint-890m
    "temp1_label": "edge",
    "temp1_input": 38_000,
    "power1_label": "PPT",
    "power1_average": 9_087_000,
    "power1_input": 9_087_000,
    "freq1_label": "sclk",
    "freq1_input": 848_000_000,
}


def readings(product: Product) -> Readings:
    """Sensor files of a product, without the chip's name."""
    if 90402 <= product.gfx <= 90500:
        return _INSTINCT
    return _SMALL_APU if product.apu else _DISCRETE


def entries(gpu: Gpu) -> dict[str, Node]:
    """What is in the GPU's ``hwmon`` directory."""
    found: dict[str, Node] = {"name": Attr("amdgpu\n"), "device": Link(f"../../../{gpu.bdf}")}
    for name, value in readings(gpu.product).items():
        # Labels are texts of the driver; a reading has to be fetched.
        found[name] = Attr(f"{value}\n", guard=None if name.endswith("_label") else partial(answers, gpu))
    return {f"hwmon{_FIRST + gpu.index}": Dir(found)}
