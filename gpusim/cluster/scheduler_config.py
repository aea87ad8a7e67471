"""All rows that a device configuration file asks for: the one file plugins and scheduler share.

``vnpus:`` makes Ascend's rows, ``alibaba:`` PPU's (ascend_ppu_hami.md A.2, C.2). Blocks of other vendors are
passed over; AMD's names are no matter of it here, its row is `scheduler_vendors.AMD`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gpusim.cluster.scheduler_ascend import ascend_vendors
from gpusim.cluster.scheduler_block import BadDeviceConfigError
from gpusim.cluster.scheduler_ppu import ppu_vendors
from gpusim.cluster.scheduler_vendors import Vendor
from gpusim.yamlnode import BadYaml, parse


def config_vendors(config: Mapping[str, Any], *, release: str = "2.10") -> tuple[Vendor, ...]:
    """The rows of a device configuration, as plain values.

    Args:
        config: the configuration.
        release: of HAMi, see `scheduler_ascend.ascend_vendors`.

    Raises:
        BadDeviceConfigError: it cannot be used; the text names the key.
    """
    return (*ascend_vendors(config, release=release), *ppu_vendors(config))


def read_config(path: str | Path) -> dict[str, Any]:
    """The configuration in a file.

    Raises:
        BadDeviceConfigError: it cannot be read, or is no YAML mapping.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        parse(text)  # refuses keys that stand twice and tags
        config = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadDeviceConfigError(f"{path}: {error}") from None
    except (BadYaml, yaml.YAMLError, ValueError) as error:  # ValueError: a date in month 13, the number 0b_
        raise BadDeviceConfigError(f"{path}: {error}") from None
    if not isinstance(config, dict):
        raise BadDeviceConfigError(f"{path}: expected a mapping")
    return config
