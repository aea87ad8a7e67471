"""How well a chip is: the words of npu-smi and the numbers of the driver behind them.

Only OK is healthy (decision 42), and its code is 0 (ascend_ppu_hami.md A.4). The other words and numbers
are those of Huawei's public DCMI documentation (dcmi_get_device_health).
"""

from __future__ import annotations

from enum import Enum


class Health(Enum):
    """The health column of ``npu-smi info``."""

    OK = "OK"
    WARNING = "Warning"
    ALARM = "Alarm"
    CRITICAL = "Critical"
    UNKNOWN = "UNKNOWN"

    @property
    def code(self) -> int:
        """What the driver answers: 0 healthy, 1 to 3 by severity, all ones for a chip that is not there."""
        return {"OK": 0, "Warning": 1, "Alarm": 2, "Critical": 3, "UNKNOWN": 0xFFFFFFFF}[self.value]


WORDS = tuple(health.value for health in Health)
"""What a fixture may say."""
