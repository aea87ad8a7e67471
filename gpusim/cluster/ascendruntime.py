"""The container runtime's part on an Ascend node: what a container's environment gives it.

The plugin returns no device nodes: the runtime takes them from ASCEND_VISIBLE_DEVICES, and cuts a vNPU where
ASCEND_VNPU_SPECS names a template (ascend_ppu_hami.md A.4). A vNPU is destroyed when its container ends;
where the end was not seen it stays idle, which is what the plugin's sweep looks for (A.9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpusim.ascend.inside import Inside
from gpusim.ascend.npu import Npu, NpuError, Npus
from gpusim.ascend.runtime import MIB, BadQuotaError, quota_bytes
from gpusim.errors import GpusimError
from gpusim.machine import Machine

VISIBLE = "ASCEND_VISIBLE_DEVICES"
SPECS = "ASCEND_VNPU_SPECS"
_COMMON = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


class AscendRuntimeError(GpusimError):
    """The container cannot be started; nothing was made for it."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a container got.

    Attributes:
        devices: paths of its device nodes, those of the cards first, in ascending order.
        vnpu: its slice; None: whole chips, or none.
        smi: its npu-smi; None: it asked for no NPU.
    """

    devices: tuple[str, ...] = ()
    vnpu: int | None = None
    smi: Inside | None = None


class AscendRuntime:
    """The runtime of one node.

    Args:
        machine: a node with NPUs.

    Raises:
        GpusimError: it has none.
    """

    def __init__(self, machine: Machine) -> None:
        _ = machine.npus
        self._machine = machine
        self._given: dict[str, Given] = {}

    @property
    def _npus(self) -> Npus:
        """The state the machine is in now: it may have been rewound."""
        return self._machine.npus

    def start(self, container: str, environ: Mapping[str, str]) -> Given:
        """Start a container.

        Args:
            container: its id, twelve hexadecimal digits or more.
            environ: its environment, as Allocate answered it.

        Raises:
            AscendRuntimeError: it runs already; devices that do not exist; a template for other than one
                device, or one that does not fit; a quota that says nothing (decision 50).
        """
        if container in self._given:
            raise AscendRuntimeError(f"container {container} runs already")
        try:
            given = self._give(container[:12], environ)
        except (NpuError, BadQuotaError) as error:
            raise AscendRuntimeError(f"container {container}: {error}") from error
        self._given[container] = given
        return given

    def stop(self, container: str, *, seen: bool = True) -> None:
        """A container ended.

        Args:
            container: its id.
            seen: False: the runtime was killed with it, and its vNPU stays, idle.

        Raises:
            AscendRuntimeError: no such container.
        """
        if container not in self._given:
            raise AscendRuntimeError(f"no container {container}")
        number = self._given.pop(container).vnpu
        if number is not None:
            self._npus.use(number, None)
            if seen:
                self._npus.destroy(number)

    def _give(self, container: str, environ: Mapping[str, str]) -> Given:
        chips = self._visible(environ.get(VISIBLE, ""))
        template = environ.get(SPECS, "")
        if not chips:
            if template:
                raise NpuError(f"{SPECS} without {VISIBLE}")
            return Given()
        phys = tuple(npu.phy for npu in chips)
        if template:
            if len(chips) != 1:
                raise NpuError(f"{SPECS} is for one device, {VISIBLE} names {len(chips)}")
            number = self._npus.create(chips[0], template, container=container).number
            devices = (f"/dev/vdavinci{number}", *_COMMON)
            return Given(devices, number, Inside(self._npus, phys, vnpu=number))
        whole = tuple(f"/dev/davinci{phy}" for phy in phys) + _COMMON
        return Given(whole, None, Inside(self._npus, phys, quota_mib=quota_bytes(environ) // MIB or None))

    def _visible(self, text: str) -> list[Npu]:
        """The chips of a comma-joined list of physical ids, in ascending order."""
        words = [word.strip() for word in text.split(",")] if text.strip() else []
        for word in words:
            if not (word.isascii() and word.isdecimal()):
                raise NpuError(f"{VISIBLE}={text!r}: a list of physical ids is wanted")
        return [self._npus.phy(phy) for phy in sorted({int(word) for word in words})]
