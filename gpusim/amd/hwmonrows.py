"""Sensor files by generation, as data: which there are, and what an idle board shows.

A row is the set of files of a capture where there is one; the readings in it (``*_input``, ``*_average``,
``fan1_*``, ``pwm1``) are those of the moment it was taken and do not move: nothing here computes heat.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpusim.amd.product import Product
from gpusim.kernel import Behaviour

Readings = Mapping[str, str | int]

_NO_HYSTERESIS = -273150
"""What the driver prints for a hysteresis it does not know: absolute zero (both Radeon captures)."""


def _limits(number: int, critical: int, emergency: int) -> dict[str, str | int]:
    return {
        f"temp{number}_crit": critical,
        f"temp{number}_crit_hyst": _NO_HYSTERESIS,
        f"temp{number}_emergency": emergency,
    }


def _cap(default: int, most: int) -> dict[str, str | int]:
    """Power limits, µW, as the driver sets them when it loads."""
    return {
        "power1_cap": default,
        "power1_cap_default": default,
        "power1_cap_max": most,
        "power1_cap_min": 0,
    }


_LABELS: dict[str, str | int] = {
    "power1_label": "PPT",
    "freq1_label": "sclk",
    "freq2_label": "mclk",
}

_INSTINCT: Readings = {
    # Names: kernel.md 3, GC 9.4.3 to 9.5.0. The numbers are not captured: an idle card, clocks in deep sleep;
    # the limits are inf, the same for all these boards but for what a product can draw.
    **_LABELS,
    "temp2_label": "junction",
    "temp2_input": 45_000,
    **_limits(2, 100_000, 105_000),
    "temp3_label": "mem",
    "temp3_input": 40_000,
    **_limits(3, 95_000, 105_000),
    "power1_input": 150_000_000,
    "freq1_input": 132_000_000,
    "freq2_input": 900_000_000,
}
_BOARD_VOLTAGE: Readings = {"in2_label": "vddboard", "in2_input": 54_000}
"""kernel.md 3 has the sensor's number and meaning; label and reading inf."""
_OLD_INSTINCT: Readings = {
    # kernel.md 3: MI200 has power1_average and three temperatures. Vega10 alike; numbers inf.
    **_LABELS,
    "temp1_label": "edge",
    "temp1_input": 40_000,
    **_limits(1, 100_000, 105_000),
    "temp2_label": "junction",
    "temp2_input": 42_000,
    **_limits(2, 110_000, 115_000),
    "temp3_label": "mem",
    "temp3_input": 45_000,
    **_limits(3, 100_000, 105_000),
    "power1_average": 40_000_000,
    **_cap(300_000_000, 300_000_000),
    "freq1_input": 800_000_000,
    "freq2_input": 1_600_000_000,
}
_FAN: dict[str, str | int] = {
    "fan1_min": 0,
    "pwm1_max": 255,
    "pwm1_min": 0,
    "in0_label": "vddgfx",
}
_RDNA2: Readings = {
    # rdna2-rx6900xt
    **_LABELS,
    **_FAN,
    "temp1_label": "edge",
    "temp1_input": 56_000,
    **_limits(1, 100_000, 105_000),
    "temp2_label": "junction",
    "temp2_input": 59_000,
    **_limits(2, 110_000, 115_000),
    "temp3_label": "mem",
    "temp3_input": 54_000,
    **_limits(3, 100_000, 105_000),
    "power1_average": 36_000_000,
    **_cap(289_000_000, 332_000_000),
    "fan1_enable": 0,
    "fan1_input": 0,
    "fan1_max": 3400,
    "fan1_target": 0,
    "pwm1": 0,
    "pwm1_enable": 2,
    "in0_input": 775,
    "freq1_input": 500_000_000,
    "freq2_input": 1_000_000_000,
}
_RDNA4: Readings = {
    # rdna4-rx9070; its user had lowered power1_cap to 200 W.
    **_LABELS,
    **_FAN,
    "temp1_label": "edge",
    "temp1_input": 48_000,
    **_limits(1, 110_000, 115_000),
    "temp2_label": "junction",
    "temp2_input": 52_000,
    **_limits(2, 110_000, 115_000),
    "temp3_label": "mem",
    "temp3_input": 72_000,
    **_limits(3, 108_000, 113_000),
    "power1_average": 49_000_000,
    **_cap(220_000_000, 245_000_000),
    "fan1_input": 1944,
    "fan1_max": 6000,
    "fan1_target": 1944,
    "pwm1": 117,
    "in0_input": 790,
    "freq1_input": 900_000_000,
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
    "in0_label": "vddgfx",
    "in0_input": 0,
    "in1_label": "vddnb",
    "in1_input": 0,
}

_CAPS: Mapping[str, int] = {
    # Watts a board may draw, inf: the makers' data sheets.
    "MI300X": 750,
    "MI308X": 650,
    "MI325X": 1000,
    "MI300A": 550,
    "MI350X": 1000,
    "MI355X": 1400,
}


def readings(product: Product, rules: Behaviour) -> Readings:
    """Sensor files of a product, without the chip's name."""
    if 90402 <= product.gfx <= 90500:
        watts = _CAPS.get(product.name, 0) * 10**6
        # A guest is told no limit: inf, the host sets it.
        cap = _cap(watts, watts) if watts else {}
        return {**_INSTINCT, **cap, **(_BOARD_VOLTAGE if rules.hwmon_board_voltage else {})}
    if product.apu:
        return _SMALL_APU
    if product.gfx < 100000:
        return _OLD_INSTINCT
    return _RDNA4 if product.gfx >= 120000 else _RDNA2  # RDNA3 like RDNA2: inf
