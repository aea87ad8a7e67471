"""How a plugin tells the scheduler that it lives and that its registration is to be read.

The scheduler answers with a time of its own and from then on ignores the register annotation until the
plugin has written this again (ascend_ppu_hami.md D.3, decision 41).
"""

from __future__ import annotations

import datetime

REPORTED = "Reported_"
TIME = "%Y.%m.%d %H:%M:%S"
"""Dots, where the scheduler itself writes dashes (D.3)."""


def reported(when: float) -> str:
    """The value of the handshake annotation.

    Args:
        when: seconds since the epoch; written in the process's own time zone (decision 41).
    """
    return REPORTED + datetime.datetime.fromtimestamp(when).strftime(TIME)
