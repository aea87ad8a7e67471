"""The PPU plugin's flags, environment and configuration file, resolved to one `Settings`.

An explicit flag counts before the file, the file before the default, and where flag and file differ there is
a warning: the chart renders both from one value, so a difference is a ConfigMap that somebody else made
(ascend_ppu_hami.md C.2, decisions 53 and 55). What is refused: decision 34.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from devplugin.configfile import ConfigError, load
from devplugin.explain import DEFAULT, FLAG, Choice, environment
from devplugin.ppu import deviceconfig
from devplugin.ppu.deviceconfig import QUOTES, DeviceConfig
from devplugin.ppu.settings import RESOURCE, SCALING, SPLIT, Settings
from devplugin.settings import SettingsError, add_flag, go_float, go_int, shown
from devplugin.vendor import SettingsInput

CONFIG = "config-file"
NODE = "node-name"


def bare(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser of numbers that says where quotes around one come from (decision 55)."""

    def parse(text: str) -> Any:
        if text[:1] in {'"', "'"} or text[-1:] in {'"', "'"}:
            raise argparse.ArgumentTypeError(f"{shown(text)} stands in quotes: {QUOTES}")
        return kind(text)

    return parse


@dataclass(frozen=True, slots=True)
class _Number:
    """A number that has a flag, a key of the file and a default."""

    flag: str
    key: str
    field: str
    """Of `DeviceConfig` and of `Settings`, but for the count."""
    kind: Callable[[str], Any]
    default: float
    wrong: Callable[[Any], str]
    meaning: str


_NUMBERS = (
    _Number(
        "device-split-count",
        "deviceSplitCount",
        "split",
        go_int,
        SPLIT,
        deviceconfig.wrong_split,
        "pods that may share one PPU",
    ),
    _Number(
        "device-memory-scaling",
        "deviceMemoryScaling",
        "memory_scaling",
        go_float,
        SCALING,
        deviceconfig.wrong_scaling,
        "factor on the registered memory of every PPU",
    ),
    _Number(
        "device-core-scaling",
        "deviceCoreScaling",
        "core_scaling",
        go_float,
        SCALING,
        deviceconfig.wrong_core_scaling,
        "factor on the registered compute of every PPU",
    ),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of decision 53, and ours."""
    group = parser.add_argument_group(
        "PPUs",
        "environment: NODE_NAME (default of -node-name). A flag counts before the configuration file.",
    )
    add_flag(group, CONFIG, str, "", "device configuration, shared with HAMi's scheduler: its alibaba block")
    add_flag(group, NODE, str, "", "this node; empty: NODE_NAME")
    for number in _NUMBERS:
        add_flag(group, number.flag, bare(number.kind), number.default, number.meaning)
    add_flag(
        group, "pulse", go_int, 0, "seconds between checks that each PPU's device node opens; 0: no checks"
    )


def resolve(given: SettingsInput) -> tuple[Settings, tuple[str, ...]]:
    """Settings and the warnings met on the way.

    Raises:
        SettingsError: a value or the device configuration cannot be served, or what is needed is not given.
    """
    args = given.args
    for name in ("pulse", "v"):
        if getattr(args, name) < 0:
            raise SettingsError(f"-{name}={getattr(args, name)}: must not be negative")
    file = _file(given)
    chosen: dict[str, Any] = {}
    warnings = []
    for number in _NUMBERS:
        value, said = getattr(args, number.flag), getattr(file, number.field)
        if number.flag not in args.explicit:
            chosen[number.field] = number.default if said is None else said
            continue
        if why := number.wrong(value):
            raise SettingsError(f"-{number.flag}={why}")
        chosen[number.field] = value
        if said is not None and said != value:
            path = shown(getattr(args, CONFIG), 200)
            warnings.append(
                f"-{number.flag}={value:g} overrules {number.key} {said:g} of {path}: make both the same, "
                "for the scheduler reads only the file"
            )
    settings = Settings(node_name=given.node, resource=file.resource or RESOURCE, verbosity=args.v, **chosen)
    return settings, tuple(warnings)


def choices(given: SettingsInput, settings: Settings) -> Mapping[str, Choice]:
    """What the file and the environment decide."""
    args, file = given.args, _file(given)
    path = f"file {getattr(args, CONFIG)}"
    found = {
        number.flag: Choice(
            getattr(settings, number.field), DEFAULT if getattr(file, number.field) is None else path
        )
        for number in _NUMBERS
        if number.flag not in args.explicit
    }
    found["resource"] = Choice(settings.resource, path if file.resource else DEFAULT)
    name = settings.node_name
    found[NODE] = Choice(name, FLAG) if getattr(args, NODE) else environment("NODE_NAME", name, given.env)
    return found


def _file(given: SettingsInput) -> DeviceConfig:
    """The device configuration; without one, nothing is said."""
    path = getattr(given.args, CONFIG)
    if not path:
        return DeviceConfig()
    try:
        return load(given.read, path, deviceconfig.parse)
    except ConfigError as error:
        raise SettingsError(f"failed to load config from {error}") from error
