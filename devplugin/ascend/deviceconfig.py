"""The device configuration, which the plugin shares with HAMi's scheduler: what each kind of chip is.

Two layouts are read: `vnpus` as a mapping with the mode and the `configs`, and the plain list of HAMi 2.8 and
before, whose mode stood beside it. Source: ascend_ppu_hami.md A.2 and A.3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from devplugin.ascend.settings import ChipConfig, Template
from devplugin.configfile import INT32_MAX, MOST_SHARES, RESOURCE, ConfigError, read
from devplugin.settings import shown

_SOFT = frozenset({"hami-core", "hamicore"})
_TEMPLATE = "template"
_ENPU = "enpu"

_WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,41}[A-Za-z0-9])?")
"""An annotation's name has 63 characters, and the longest is ``<commonWord>-devices-to-allocate``."""
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_Natural = Annotated[int, Meta(ge=0, le=INT32_MAX)]
_Positive = Annotated[int, Meta(ge=1, le=INT32_MAX)]


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """What the file says of all nodes."""

    chips: tuple[ChipConfig, ...]
    """In the order of the file."""
    soft: bool = False
    soft_cores: int = 100
    split: int = 0
    """vnpuDeviceSplitCount: shares of a card in soft mode; 0: not said."""


class _Template(Struct, rename="camel"):
    name: str
    memory: _Natural
    ai_core: _Natural = 0
    ai_cpu: _Natural = msgspec.field(default=0, name="aiCPU")


class _Chip(Struct, rename="camel"):
    chip_name: str
    common_word: str
    resource_name: str
    memory_allocatable: _Positive
    ai_core: _Natural
    memory_capacity: _Natural = 0
    ai_cpu: _Natural = msgspec.field(default=0, name="aiCPU")
    templates: list[_Template] | None = None


class _Vnpus(Struct, rename="camel"):
    configs: list[_Chip] | None = None
    hami_vnpu_core: bool | None = None
    hami_vnpu_mode: str | None = None
    device_core_scaling: float | None = None
    vnpu_device_split_count: int | None = None
    enpu: object = msgspec.UNSET


class _File(Struct, rename="camel"):
    vnpus: list[_Chip] | _Vnpus
    hami_vnpu_core: bool | None = None
    """Of the old layout alone."""


def parse(data: bytes) -> DeviceConfig:
    """What the file says.

    Raises:
        ConfigError: it cannot be read as one, or says what cannot be served.
    """
    file = read(data, _File)
    if isinstance(file.vnpus, _Vnpus):
        vnpus, where = file.vnpus, "$.vnpus.configs"
    else:
        vnpus, where = _Vnpus(configs=file.vnpus, hami_vnpu_core=file.hami_vnpu_core), "$.vnpus"
    if vnpus.enpu is not msgspec.UNSET:
        raise ConfigError("vnpus.enpu has been removed; use vnpus.hamiVnpuMode: enpu")
    split = vnpus.vnpu_device_split_count or 0
    if split > MOST_SHARES:
        raise ConfigError(f"$.vnpus.vnpuDeviceSplitCount: {split}: at most {MOST_SHARES}")
    return DeviceConfig(
        tuple(_chip(chip, f"{where}[{place}]") for place, chip in enumerate(vnpus.configs or ())),
        soft=_soft(vnpus),
        soft_cores=_cores(vnpus.device_core_scaling),
        split=max(split, 0),
    )


def _soft(vnpus: _Vnpus) -> bool:
    """hamiVnpuMode overrules hamiVnpuCore; blanks around it and upper case are overlooked."""
    word = (vnpus.hami_vnpu_mode or "").strip().lower()
    if not word:
        return bool(vnpus.hami_vnpu_core)
    if word == _ENPU:
        raise ConfigError("$.vnpus.hamiVnpuMode: enpu is not built; use template or hami-core")
    if word != _TEMPLATE and word not in _SOFT:
        raise ConfigError(f"$.vnpus.hamiVnpuMode: {shown(word)}: use template or hami-core")
    return word in _SOFT


def _cores(scaling: float | None) -> int:
    """Percent a card registers in soft mode: what no int32 above 0 comes of counts as not said."""
    if scaling is None or not math.isfinite(scaling):
        return 100
    cores = math.floor(100 * scaling + 0.5) if abs(scaling) < INT32_MAX else 0
    return cores if 1 <= cores <= INT32_MAX else 100


def _chip(chip: _Chip, where: str) -> ChipConfig:
    """One entry, its templates in order of their memory."""
    if not chip.chip_name:
        raise ConfigError(f"{where}.chipName: empty")
    if _WORD.fullmatch(chip.common_word) is None:
        raise ConfigError(f"{where}.commonWord: {shown(chip.common_word)} is no part of an annotation's name")
    if RESOURCE.fullmatch(chip.resource_name) is None:
        raise ConfigError(f"{where}.resourceName: {shown(chip.resource_name)} is no name of a resource")
    return ChipConfig(
        chip=chip.chip_name,
        word=chip.common_word,
        resource=chip.resource_name,
        allocatable_mib=chip.memory_allocatable,
        capacity_mib=chip.memory_capacity or chip.memory_allocatable,
        ai_cores=chip.ai_core,
        ai_cpus=chip.ai_cpu,
        templates=_templates(chip, where),
    )


def _templates(chip: _Chip, where: str) -> tuple[Template, ...]:
    found: list[Template] = []
    for place, template in enumerate(chip.templates or ()):
        here = f"{where}.templates[{place}]"
        if _TEMPLATE_NAME.fullmatch(template.name) is None:
            raise ConfigError(f"{here}.name: {shown(template.name)} is no name of a template")
        if not 0 < template.memory <= chip.memory_allocatable:
            told = "must be above 0" if template.memory == 0 else "more than memoryAllocatable"
            raise ConfigError(f"{here}.memory: {template.memory}: {told}")
        found.append(Template(template.name, template.memory, template.ai_core, template.ai_cpu))
    if len({template.name for template in found}) < len(found):
        raise ConfigError(f"{where}.templates: two of one name")
    found.sort(key=lambda template: template.memory_mib)
    if found and (shares := chip.memory_allocatable // found[0].memory_mib) > MOST_SHARES:
        raise ConfigError(f"{where}.templates: {shares} shares of a card: at most {MOST_SHARES}")
    return tuple(found)


def config_of(name: str, chips: Sequence[ChipConfig]) -> ChipConfig | None:
    """The first entry whose chipName is this one; none is another chip's."""
    return next((chip for chip in chips if chip.chip == name), None)
