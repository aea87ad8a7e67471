"""The ``alibaba:`` block of the device configuration, which the plugin shares with HAMi's scheduler.

The plugin uses four of its values: the name of the resource that kubelet counts, how often a card is shared,
and the two scalings; default requests and policies are the scheduler's (ascend_ppu_hami.md C.2). A number
that stands in quotes is refused, because then somebody's chart renders it so, and the next reader stumbles
(decision 55).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec import Struct

from devplugin.configfile import INT32_MAX, MOST_SHARES, RESOURCE, ConfigError, read
from devplugin.ppu import settings
from devplugin.settings import shown

BLOCK = "alibaba"
QUOTES = "its quotes came from the chart, which must render it bare"
"""What is said of a number in quotes, in the file as on the command line."""


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """What the file says; None where it says nothing."""

    resource: str | None = None
    split: int | None = None
    memory_scaling: float | None = None
    core_scaling: float | None = None


class _Alibaba(Struct, rename="camel"):
    resource_count_name: str | None = None
    # Whatever stands there: who reads it says what is wrong with it.
    device_split_count: object = None
    device_memory_scaling: object = None
    device_core_scaling: object = None


class _File(Struct):
    alibaba: _Alibaba


def parse(data: bytes) -> DeviceConfig:
    """What the file says.

    Raises:
        ConfigError: it cannot be read as one, has no such block, or says what cannot be served.
    """
    block = read(data, _File).alibaba
    name = block.resource_count_name
    if name is not None and RESOURCE.fullmatch(name) is None:
        raise ConfigError(f"{_place('resourceCountName')}: {shown(name)} is no name of a resource")
    split = _number("deviceSplitCount", block.device_split_count)
    if split is not None and not split.is_integer():
        raise ConfigError(f"{_place('deviceSplitCount')}: {split:g}: must be a whole number")
    memory = _number("deviceMemoryScaling", block.device_memory_scaling)
    core = _number("deviceCoreScaling", block.device_core_scaling)
    for key, why in (
        ("deviceSplitCount", "" if split is None else wrong_split(int(split))),
        ("deviceMemoryScaling", "" if memory is None else wrong_scaling(memory)),
        ("deviceCoreScaling", "" if core is None else wrong_core_scaling(core)),
    ):
        if why:
            raise ConfigError(f"{_place(key)}: {why}")
    return DeviceConfig(name, None if split is None else int(split), memory, core)


def wrong_split(split: int) -> str:
    """Why a card cannot be shared so often; empty when it can."""
    return "" if 1 <= split <= MOST_SHARES else f"{split}: must be 1 to {MOST_SHARES}"


def wrong_scaling(scaling: float) -> str:
    """Why a factor cannot be one (decision 34); what a card makes of it has to fit an int32 (D.2)."""
    good = math.isfinite(scaling) and 0 < scaling <= INT32_MAX
    return "" if good else f"{scaling:g}: must be a number above 0, at most {INT32_MAX}"


def wrong_core_scaling(scaling: float) -> str:
    """The same, for compute: the scheduler counts whole percents in an int32 (D.2)."""
    if why := wrong_scaling(scaling):
        return why
    fits = 1 <= settings.cores(scaling) <= INT32_MAX
    return "" if fits else f"{scaling:g}: 100 times that is no int32 above 0"


def _number(key: str, value: object) -> float | None:
    """A number, whole or not.

    Raises:
        ConfigError: text, even of digits; a truth value, a list, ….
    """
    if value is None:
        return None
    if isinstance(value, str):
        why = QUOTES if _digits(value) else "must be a number"
        raise ConfigError(f"{_place(key)}: {shown(value)} is text: {why}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{_place(key)}: {shown(str(value))}: must be a number")
    try:
        return float(value)
    except OverflowError as error:
        raise ConfigError(f"{_place(key)}: larger than any number") from error


def _digits(text: str) -> bool:
    try:
        float(text.strip("\"'"))
    except ValueError:
        return False
    return True


def _place(key: str) -> str:
    return f"$.{BLOCK}.{key}"
