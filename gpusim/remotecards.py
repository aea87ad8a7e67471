"""The actions of a served machine on NPUs and PPUs, as its client calls them.

They mean what `gpusim.machine.Machine` says, and raise what the machine raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gpusim.view import Completed


class _Asks(Protocol):
    """Whoever has a connection."""

    def _ask(self, do: str, body: bytes = b"", /, **args: Any) -> tuple[Any, bytes]: ...


class RemoteNpus:
    """A part of `gpusim.remote.RemoteMachine`."""

    def npu_health(self: _Asks, phy: int, health: str, codes: Sequence[int] = ()) -> None:
        """Let an NPU be well or ill."""
        self._ask("npu_health", phy=phy, health=health, codes=list(codes))

    def npu_smi_fails(self: _Asks, form: str, output: str | None, status: int = 1) -> None:
        """Let a form of npu-smi fail, or work again."""
        self._ask("npu_smi_fails", form=form, output=output, status=status)

    def npu_cut(self: _Asks, phy: int, template: str, container: str) -> int:
        """Make a vNPU for a container; its number."""
        return int(self._ask("npu_cut", phy=phy, template=template, container=container)[0])

    def npu_release(self: _Asks, number: int, *, destroy: bool = True) -> None:
        """The container of a vNPU ended."""
        self._ask("npu_release", number=number, destroy=destroy)

    def npu_smi_inside(
        self: _Asks,
        argv: Sequence[str],
        phys: Sequence[int],
        *,
        vnpu: int | None = None,
        quota_mib: int | None = None,
        tracked: Sequence[int | None] = (),
    ) -> Completed:
        """npu-smi as a container runs it."""
        from gpusim.machine import Completed

        where = {"phys": list(phys), "vnpu": vnpu, "quota_mib": quota_mib, "tracked": list(tracked)}
        (status, split), out = self._ask("npu_smi_inside", argv=list(argv), **where)
        return Completed(status, out[:split], out[split:])


class RemotePpus:
    """A part of `gpusim.remote.RemoteMachine`."""

    def ppu_health(self: _Asks, minor: int, health: str) -> None:
        """Let a PPU answer or not."""
        self._ask("ppu_health", minor=minor, health=health)

    def ppu_use(self: _Asks, minor: int, used_mib: int, busy: int = 0) -> None:
        """Let a PPU be in use."""
        self._ask("ppu_use", minor=minor, used_mib=used_mib, busy=busy)

    def ppu_vanish(self: _Asks, minor: int) -> None:
        """Let a PPU fall off the bus."""
        self._ask("ppu_vanish", minor=minor)

    def ppu_return(self: _Asks, minor: int) -> None:
        """Let a vanished PPU be found again."""
        self._ask("ppu_return", minor=minor)

    def ppu_unload(self: _Asks) -> None:
        """Unload the PPU driver. EBUSY."""
        self._ask("ppu_unload")

    def ppu_load(self: _Asks) -> None:
        """Load the PPU driver."""
        self._ask("ppu_load")

    def ppu_smi_fails(self: _Asks, form: str, output: str | None, status: int = 0) -> None:
        """Let a form of ppu-smi fail, or work again."""
        self._ask("ppu_smi_fails", form=form, output=output, status=status)

    def ppu_smi_unknown(self: _Asks, minor: int, fields: Sequence[str]) -> None:
        """Let ppu-smi say N/A of these fields of a PPU, and of no others."""
        self._ask("ppu_smi_unknown", minor=minor, fields=list(fields))

    def ppu_smi_inside(self: _Asks, argv: Sequence[str], nodes: Sequence[str]) -> Completed:
        """ppu-smi as a container with these device nodes runs it."""
        from gpusim.view import Completed

        (status, split), out = self._ask("ppu_smi_inside", argv=list(argv), nodes=list(nodes))
        return Completed(status, out[:split], out[split:])
