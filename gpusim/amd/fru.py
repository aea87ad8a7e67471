"""What a board says of itself: the FRU texts in a GPU's PCI directory.

They come from an EEPROM that Instinct boards have; guests, APUs and most consumer cards have none (kernel.md
3). Name and maker are the product's; the numbers are invented from the node's seed, and only their forms (a
part number in three groups, twelve digits) are meant to look like AMD's.
"""

from __future__ import annotations

from gpusim.amd.gpu import Gpu
from gpusim.amd.kfd_ids import invented
from gpusim.kernel import Behaviour
from gpusim.nodes import Attr, Node
from gpusim.spec import NodeSpec

MANUFACTURER = "AMD"
_SERIAL, _BOARD = 0x53455249, 0x46525549
_OLD = ("product_name", "product_number", "serial_number")
"""What older drivers made for every GPU, EEPROM or not (rdna2-rx6900xt reads empty lines)."""


def texts(gpu: Gpu, spec: NodeSpec, rules: Behaviour) -> dict[str, str]:
    """File name → text without newline; empty when there are no such files."""
    product = gpu.product
    if product.product_name:
        return {
            "fru_id": f"{_digits(spec, gpu, _BOARD):012d}",
            "manufacturer": MANUFACTURER,
            "product_name": product.product_name,
            "product_number": f"102-G{product.device_id:05d}-00",
            "serial_number": f"{_digits(spec, gpu, _SERIAL):012d}",
        }
    if rules.fru_without_eeprom and not (product.vf or product.apu):
        return dict.fromkeys(_OLD, "")
    return {}


def entries(gpu: Gpu, spec: NodeSpec, rules: Behaviour) -> dict[str, Node]:
    """The files."""
    return {name: Attr(f"{text}\n") for name, text in texts(gpu, spec, rules).items()}


def _digits(spec: NodeSpec, gpu: Gpu, what: int) -> int:
    return invented(spec.seed, what, gpu.index) % 10**12
