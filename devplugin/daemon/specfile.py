"""Keep the CDI specification true: written before the devices in it are offered, and again at every look.

Directories like /var/run/cdi are empty after a reboot, and anybody may delete the file. While it cannot be
written, containers get device nodes instead (amd.md 9). Switching CDI off leaves the file (guide-amd.md).
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from typing import Generic

from devplugin.cdi import CdiError, Place, Published, publish
from devplugin.host import words
from devplugin.vendor import Inv, S, Vendor

log = logging.getLogger(__name__)


class SpecFile(Generic[Inv, S]):
    """The file of one vendor.

    Args:
        vendor, settings: who says what is in it, and where it is.
        place: the node; touched in `worker` only.
        worker: an executor of one thread.
    """

    def __init__(self, vendor: Vendor[Inv, S], settings: S, *, place: Place, worker: Executor) -> None:
        self._vendor = vendor
        self._settings = settings
        self._place = place
        self._worker = worker
        self._said = ""
        self.good = False
        """Whether the file says what the last inventory wants."""

    async def keep(self, inventory: Inv) -> None:
        """Have the file say these devices; a file that cannot be written is told once."""
        wanted = self._vendor.cdi(inventory, self._settings)
        if wanted is None:
            return
        loop = asyncio.get_running_loop()
        try:
            done = await loop.run_in_executor(
                self._worker,
                publish,
                self._place,
                wanted.directory,
                wanted.kind,
                wanted.devices,
                wanted.shared,
            )
        except CdiError as error:
            self._failed(str(error))
        except OSError as error:
            self._failed(f"{error.filename or wanted.directory}: {words(error)}")
        else:
            if done is Published.WRITTEN:
                log.info(
                    "CDI: %d devices of %s written to %s", len(wanted.devices), wanted.kind, wanted.directory
                )
            self._said = ""
            self.good = done is not Published.NOTHING

    def _failed(self, why: str) -> None:
        self.good = False
        level = logging.DEBUG if why == self._said else logging.WARNING
        log.log(level, "CDI: the specification cannot be written, containers get device nodes: %s", why)
        self._said = why
