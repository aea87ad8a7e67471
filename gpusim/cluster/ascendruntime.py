"""The container runtime's part on an Ascend node: what a container's environment gives it.

The plugin returns no device nodes: the runtime takes them from ASCEND_VISIBLE_DEVICES, and cuts a vNPU where
ASCEND_VNPU_SPECS names a template (ascend_ppu_hami.md A.4). A vNPU is destroyed when its container ends;
where the end was not seen, or the container failed after the cut, it may stay behind, idle, which is what the
plugin's sweep looks for (A.9, field report G row 3). Whose a vNPU is stands on the machine, so a runtime that
was restarted still ends what its predecessor began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusim.ascend.ledgerview import read_settled
from gpusim.ascend.runtime import MIB, quota_bytes
from gpusim.ascend.shm import UnknownLedgerError
from gpusim.cluster.kubelet_edits import Mount
from gpusim.errors import GpusimError
from gpusim.machine import Machine
from gpusim.remote import RemoteMachine
from gpusim.view import Completed

HANDLER = "ascend"
"""Name of the RuntimeClass's handler (A.7)."""
VISIBLE = "ASCEND_VISIBLE_DEVICES"
SPECS = "ASCEND_VNPU_SPECS"
LEDGER = "NPU_LOCAL_SHM_PATH"
_SHORT_ID = 12
"""Digits of a container's id that npu-smi shows."""
_COMMON = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


class AscendRuntimeError(GpusimError):
    """The container cannot be started; nothing was made for it, unless a fault says so."""


@dataclass(slots=True)
class RuntimeFaults:
    """How the runtime misbehaves.

    Attributes:
        failing: of how many containers to come the creation fails after their vNPU was cut.
        leaves_vnpu: such a vNPU is not destroyed (G row 3).
    """

    failing: int = 0
    leaves_vnpu: bool = False


@dataclass(frozen=True, slots=True)
class InnerSmi:
    """npu-smi inside a container; where it may be run is `gpusim.ascend.inside`.

    Attributes:
        machine: the node.
        phys: physical ids of its NPUs, ascending (decision 39).
        vnpu: its slice; None: whole chips.
        quota_mib: limit of each device of a soft container; None: it is none.
        ledger: reads the container's ledger on the host; None: it has none.
    """

    machine: Machine | RemoteMachine
    phys: tuple[int, ...]
    vnpu: int | None = None
    quota_mib: int | None = None
    ledger: Callable[[], Sequence[int]] | None = None

    def run(self, argv: Sequence[str], *, timeout: float = 30.0, stdin: bytes = b"") -> Completed:
        """What it prints; memory of a soft container is tracked/quota (decision 51).

        Raises:
            OSError: ENOENT, another program.
        """
        return self.machine.npu_smi_inside(
            argv, self.phys, vnpu=self.vnpu, quota_mib=self.quota_mib, tracked=self._tracked()
        )

    def _tracked(self) -> list[int | None]:
        """MiB a device; 0 where nobody has allocated yet, None where the ledger cannot be believed."""
        used: Sequence[int] = ()
        if self.ledger is not None:
            try:
                used = self.ledger()
            except FileNotFoundError:
                pass
            except (OSError, UnknownLedgerError):
                return [None] * len(self.phys)
            else:
                if len(used) < len(self.phys):
                    return [None] * len(self.phys)
        return [used[rank] // MIB if used else 0 for rank in range(len(self.phys))]


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
    smi: InnerSmi | None = None


class AscendRuntime:
    """The runtime of one node; `gpusim.cluster.containerruntimes.ContainerRuntime`.

    Args:
        machine: a node with NPUs, of this process or served.
        read: reads a file of the host; None: the machine does. Ledgers that are really mapped lie in a real
            directory.

    Raises:
        GpusimError: it has none.
    """

    def __init__(self, machine: Machine | RemoteMachine, read: Callable[[str], bytes] | None = None) -> None:
        self._machine = machine
        self._read = read or machine.read
        self.faults = RuntimeFaults()
        self.given: dict[str, Given] = {}
        """Container → what it got, of those this runtime started and has not seen end."""
        if "npus" not in machine.describe():
            raise GpusimError("the machine has no NPUs: nothing to hand in")

    def start(self, container: str, environ: Mapping[str, str], mounts: Sequence[Mount] = ()) -> Given:
        """Start a container.

        Args:
            container: its id, twelve hexadecimal digits or more.
            environ: its environment, as Allocate answered it.
            mounts: its mounts; the ledger is found through them.

        Raises:
            AscendRuntimeError: it runs already; devices that do not exist; a template for other than one
                device, or one that does not fit; a quota that says nothing (decision 50); a fault.
        """
        if container in self.given:
            raise AscendRuntimeError(f"container {container} runs already")
        try:
            given = self._give(container[:_SHORT_ID], environ, mounts)
        except GpusimError as error:
            raise AscendRuntimeError(f"container {container}: {error}") from error
        if self.faults.failing:
            self.faults.failing -= 1
            if given.vnpu is not None:
                self._machine.npu_release(given.vnpu, destroy=not self.faults.leaves_vnpu)
            raise AscendRuntimeError(f"container {container}: OCI runtime create failed")
        self.given[container] = given
        return given

    def stop(self, container: str, *, seen: bool = True) -> None:
        """A container ended; fine when it has nothing here.

        Args:
            container: its id.
            seen: False: the runtime was killed with it, and its vNPU stays, idle.
        """
        self.given.pop(container, None)
        for number, holder in self._vnpus():
            if holder == container[:_SHORT_ID]:
                self._machine.npu_release(number, destroy=seen)

    def clear(self) -> None:
        """The node rebooted: containers are gone, and so are their vNPUs."""
        self.given.clear()
        for number, holder in self._vnpus():
            if holder is not None:
                self._machine.npu_release(number)

    def _chips(self) -> list[dict[str, Any]]:
        described: Any = self._machine.describe()["npus"]
        chips: list[dict[str, Any]] = described["chips"]
        return chips

    def _vnpus(self) -> list[tuple[int, str | None]]:
        """(number, container) of all vNPUs there are now."""
        return [(vnpu["id"], vnpu["container"]) for chip in self._chips() for vnpu in chip["vnpus"]]

    def _give(self, container: str, environ: Mapping[str, str], mounts: Sequence[Mount]) -> Given:
        phys = self._visible(environ.get(VISIBLE, ""))
        template = environ.get(SPECS, "")
        if not phys:
            if template:
                raise AscendRuntimeError(f"{SPECS} without {VISIBLE}")
            return Given()
        if template:
            if len(phys) != 1:
                raise AscendRuntimeError(f"{SPECS} is for one device, {VISIBLE} names {len(phys)}")
            number = self._machine.npu_cut(phys[0], template, container)
            devices = (f"/dev/vdavinci{number}", *_COMMON)
            return Given(devices, number, InnerSmi(self._machine, phys, vnpu=number))
        quota = quota_bytes(environ) // MIB or None
        whole = tuple(f"/dev/davinci{phy}" for phy in phys) + _COMMON
        return Given(whole, None, InnerSmi(self._machine, phys, None, quota, self._ledger(environ, mounts)))

    def _visible(self, text: str) -> tuple[int, ...]:
        """Physical ids of a comma-joined list, ascending (G row 8: ``5,4`` is what upstream may write)."""
        words = [word.strip() for word in text.split(",")] if text.strip() else []
        for word in words:
            if not (word.isascii() and word.isdecimal() and len(word) < 10):
                raise AscendRuntimeError(f"{VISIBLE}={text!r}: a list of physical ids is wanted")
        phys = tuple(sorted({int(word) for word in words}))
        if unknown := set(phys) - {chip["phy"] for chip in self._chips()}:
            raise AscendRuntimeError(f"there is no chip with phy id {min(unknown)}")
        return phys

    def _ledger(
        self, environ: Mapping[str, str], mounts: Sequence[Mount]
    ) -> Callable[[], Sequence[int]] | None:
        """Bytes in use a device as the container's ledger says; None when no mount leads to one."""
        inside = environ.get(LEDGER, "")
        under = [mount for mount in mounts if inside.startswith(mount.container_path.rstrip("/") + "/")]
        if not under:
            return None
        nearest = max(under, key=lambda mount: len(mount.container_path))
        path = nearest.host_path.rstrip("/") + inside[len(nearest.container_path.rstrip("/")) :]
        return lambda: read_settled(self._read, path).used
