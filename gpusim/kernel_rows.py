"""The table of kernel and driver differences: a row per behaviour, a step per change, a source per step.

Tags: ``cap`` read from a capture, ``src`` read in source, ``inf`` inferred. A boundary that no source proves
is ``inf`` even where the behaviour itself is well known. ``kernel.md``, ``kfd.md`` and the evidence keys in
brackets there (C300, CRP, …) are the specification's; names of captures are those of its snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Version = tuple[int, ...]

MODES = ("SPX", "DPX", "TPX", "QPX", "CPX")
"""Compute modes in the order the driver tests and prints them."""


@dataclass(frozen=True, slots=True)
class NpsRule:
    """Which memory partition numbers a compute mode accepts (kernel.md 2.3, one column)."""

    by_mode: tuple[frozenset[int], ...]
    """In the order of `MODES`."""
    cpx_divides: bool = False
    """CPX accepts every number that divides the XCC count."""
    cpx_vf: frozenset[int] = frozenset()
    """Further numbers CPX accepts on a VF."""

    def allows(self, mode: str, nps: int, xccs: int, *, vf: bool = False) -> bool:
        """Whether `mode` is legal with `nps` memory partitions on a GPU of `xccs` XCCs."""
        if mode == "CPX" and ((self.cpx_divides and xccs % nps == 0) or (vf and nps in self.cpx_vf)):
            return True
        return nps in self.by_mode[MODES.index(mode)]


@dataclass(frozen=True, slots=True)
class Step:
    """One value of a row and from where on it holds. All given bounds must hold; a None bound never does."""

    value: Any
    tag: str
    """``cap``, ``src`` or ``inf``; of the value together with its boundary."""
    source: str
    in_tree: Version | None = ()
    """First in-tree driver; None: never with an in-tree driver."""
    dkms: Version | None = ()
    """First DKMS driver; None: never with a DKMS driver."""
    kernel: Version = ()
    """First running kernel."""
    before: Version = ()
    """First running kernel where it no longer holds; (): no end."""


@dataclass(frozen=True, slots=True)
class Row:
    """One field of `Behaviour`: its steps, oldest first; the last one that holds wins."""

    name: str
    steps: tuple[Step, ...]

    def value(self, kernel: Version, dkms: Version | None) -> Any:
        """The value for this kernel and driver (None: in-tree)."""
        return self.step(kernel, dkms).value

    def step(self, kernel: Version, dkms: Version | None) -> Step:
        """The step that holds; the first step of every row always does."""
        return [step for step in self.steps if _holds(step, kernel, dkms)][-1]


def _holds(step: Step, kernel: Version, dkms: Version | None) -> bool:
    first = step.in_tree if dkms is None else step.dkms
    driver = kernel if dkms is None else dkms
    return (
        first is not None
        and driver >= first
        and kernel >= step.kernel
        and (not step.before or kernel < step.before)
    )


def _rule(*by_mode: set[int], cpx_divides: bool = False, cpx_vf: frozenset[int] = frozenset()) -> NpsRule:
    return NpsRule(tuple(frozenset(nps) for nps in by_mode), cpx_divides, cpx_vf)


# Columns of kernel.md 2.3: SPX, DPX, TPX, QPX, CPX.
_NPS_68 = _rule({1}, {1, 2, 3, 4, 6}, {1, 3}, {1, 4}, {1, 4})
_NPS_612 = _rule({1}, {1, 2}, {1, 3}, {1, 4}, {1, 4})
_NPS_616 = _rule({1}, {1, 2}, {1, 4}, {1, 4}, {1, 4}, cpx_vf=frozenset({2}))
_NPS_DKMS = _rule({1}, {1, 2}, {1, 3}, {1, 4}, set(), cpx_divides=True)

ROWS: tuple[Row, ...] = (
    Row(
        "module_version_file",
        (
            Step(False, "cap", "kernel.md 0: in-tree has srcversion only (I157)"),
            Step(True, "cap", "kernel.md 0: /sys/module/amdgpu/version exists with DKMS only", in_tree=None),
        ),
    ),
    Row(
        "extended_minors",
        (
            Step(False, "src", "kernel.md 2.6: 64 per type; cap mi300x-8gpu-cpx, decision 5: 6.8.0-79"),
            Step(
                True,
                "inf",
                "kernel.md 2.6: distribution backports lift it; I184: 64 render nodes on 6.8.0-106",
                kernel=(6, 8, 0, 106),
                before=(6, 8, 1),
            ),
            Step(
                True,
                "inf",
                "kernel.md 2.6: in 6.12-rc1 and in the 6.10 and 6.11 stable lists",
                kernel=(6, 10),
            ),
        ),
    ),
    Row(
        "control_links",
        (
            Step(True, "cap", "kernel.md 2.6: mi300a-4apu-spx (in-tree, dot names)"),
            Step(
                False,
                "inf",
                "kernel.md 2.6 says some in-tree kernels; none in captures of DKMS",
                in_tree=None,
            ),
            Step(
                False,
                "inf",
                "kernel.md 2.6: upper bound not known, taken with the dot names",
                in_tree=(6, 10),
            ),
        ),
    ),
    Row(
        "dmem_controller",
        (
            Step(False, "src", "kernel.md 4.1"),
            Step(True, "src", "kernel.md 4.1: merged for 6.14", kernel=(6, 14)),
        ),
    ),
    Row(
        "dmem_many_lines",
        (
            Step(True, "src", "kernel.md 4.3: split at newlines, applied until the first error"),
            Step(
                False,
                "inf",
                "kernel.md 4.3: newest mainline takes one pair; 7.2 era, first release not known",
                kernel=(7, 2),
            ),
        ),
    ),
    Row(
        "dmem_bare_region",
        (
            Step("oops", "src", "kernel.md 4.1: NULL dereference in 6.14 to 6.19"),
            Step(
                "EINVAL",
                "inf",
                "kernel.md 4.1: fixed in Feb 2026, 7.0 era; which stables have it is not known",
                kernel=(7, 0),
            ),
        ),
    ),
    Row(
        "dmem_peak",
        (
            Step(False, "cap", "kernel.md 4.1: absent in 7.1.8"),
            Step(True, "inf", "kernel.md 4.1: posted May 2026, 7.2 era", kernel=(7, 2)),
        ),
    ),
    Row(
        "gfx950",
        (
            Step(False, "src", "kernel.md 0: GC 9.5.0 absent from 6.8 and 6.12; decision 5 (spx-6.8-intree)"),
            Step(
                True,
                "src",
                "kernel.md 0: the 6.14 cycle; oldest DKMS seen with it 6.12.12",
                (6, 14),
                (6, 12, 12),
            ),
        ),
    ),
    Row(
        "dmem_region",
        (
            Step(False, "src", "kernel.md 4.1: pure in-tree 6.14 registers nothing"),
            Step(True, "src", "kernel.md 4.1: amdgpu since 6.15-rc2", in_tree=(6, 15), dkms=None),
            Step(
                True,
                "inf",
                "decision 5, kernel.md 4.1: DKMS 6.14.14 registers it where the controller exists",
                in_tree=None,
                dkms=(6, 14, 14),
                kernel=(6, 14),
            ),
        ),
    ),
    Row(
        "xcp_separator",
        (
            Step(".", "cap", "kernel.md 0: I157 (6.8.0-79 in-tree), mi300a-4apu-spx"),
            Step(
                "_",
                "src",
                "kernel.md 0: unique names since 2024-04-30; DKMS always",
                in_tree=(6, 10),
                dkms=(),
            ),
        ),
    ),
    Row(
        "xcp_lowest_free",
        (
            Step(False, "src", "kernel.md 2.6: running counter in 6.5 to 6.9"),
            Step(
                True,
                "src",
                "kernel.md 2.6: lowest free since 6.10; DKMS as current",
                in_tree=(6, 10),
                dkms=(),
            ),
        ),
    ),
    Row(
        "xcp_freed_on_unplug",
        (
            Step(False, "src", "kernel.md 2.6: only at module exit in 6.5 to 6.11"),
            Step(
                True,
                "inf",
                "kernel.md 2.6: newer free them; first release not known",
                in_tree=(6, 12),
                dkms=(6, 12),
            ),
        ),
    ),
    Row(
        "available_compute",
        (
            Step("static", "src", "kernel.md 2.2: 6.5 to 6.12"),
            Step(
                "dynamic", "src", "kernel.md 2.2: 6.13; DKMS of that age", in_tree=(6, 13), dkms=(6, 12, 12)
            ),
        ),
    ),
    Row(
        "vf_compute_files",
        (
            Step("absent", "src", "kernel.md 2.2: 6.5 to 6.12"),
            Step(
                "read-only", "src", "kernel.md 2.2: 6.13 (C350VF on 7.0)", in_tree=(6, 13), dkms=(6, 12, 12)
            ),
        ),
    ),
    Row(
        "partition_config",
        (
            Step(False, "src", "kernel.md 2.5"),
            Step(True, "inf", "kernel.md 2.5: patches of Sept 2024", in_tree=(6, 13), dkms=(6, 12, 12)),
        ),
    ),
    Row(
        "memory_partition",
        (
            Step("read-only", "src", "kernel.md 2.4: 6.5 to 6.12"),
            Step(
                "fixed",
                "src",
                "kernel.md 2.4: 6.13 and 6.14 know NPS1|NPS4 of GC 9.4.3/9.4.4",
                in_tree=(6, 13),
                dkms=None,
            ),
            Step("firmware", "inf", "kernel.md 2.4: 2025 kernels", in_tree=(6, 15), dkms=None),
            Step(
                "firmware",
                "inf",
                "mi355x-8gpu-spx-6.8 with DKMS 6.14.14 offers NPS1, NPS2; older DKMS taken alike",
                in_tree=None,
                dkms=(6, 12, 12),
            ),
        ),
    ),
    Row(
        "nps_rule",
        (
            Step(_NPS_68, "src", "kernel.md 2.3, column 6.8"),
            Step(_NPS_612, "inf", "kernel.md 2.3, column 6.12; first release unknown", (6, 10), (6, 10)),
            Step(_NPS_616, "inf", "kernel.md 2.3, column 6.16; first release unknown", (6, 15), None),
            Step(
                _NPS_616,
                "inf",
                "mi355x-8gpu-spx-6.8: DKMS 6.14.14 lists DPX alone for NPS2; other releases taken alike",
                None,
                (6, 12, 12),
            ),
            Step(_NPS_DKMS, "inf", "kernel.md 2.3, column DKMS; first release unknown", None, (6, 16)),
        ),
    ),
    Row(
        "auto_half",
        (
            Step("QPX", "src", "kernel.md 0, 2.3: QPX on 6.8"),
            Step("CPX", "src", "kernel.md 0, 2.3: changed May 2024", in_tree=(6, 10), dkms=(6, 10)),
        ),
    ),
    Row(
        "busy_rule",
        (
            Step("machine", "src", "kernel.md 2.1"),
            Step(
                "device", "inf", "kernel.md 2.1: change of June 2025, about 6.17, DKMS 6.16", (6, 17), (6, 16)
            ),
        ),
    ),
    Row(
        "reset_errno",
        (
            Step("", "src", "kernel.md 2.1: not checked"),
            Step("EBUSY", "inf", "kernel.md 2.1: EBUSY or EPERM by version", (6, 14), (6, 14)),
            Step("EPERM", "inf", "kernel.md 2.1: EBUSY or EPERM by version", (6, 15), (6, 16)),
        ),
    ),
    Row(
        "reset_read",
        (
            Step(False, "src", "kernel.md 2.1: EPERM in reset is newer"),
            Step(True, "inf", "kernel.md 2.1, 2.4: newer; taken with reset_errno", (6, 14), (6, 14)),
        ),
    ),
    Row(
        "xcp_directory",
        (
            Step(False, "src", "kernel.md 2.6"),
            Step(True, "inf", "kernel.md 2.6: about 6.17, DKMS 6.16", (6, 17), (6, 16)),
        ),
    ),
    Row(
        "kfd_legacy",
        (
            Step(True, "cap", "kfd.md 1: key set of 5.x (vega10-single-legacy-kernel)"),
            Step(False, "src", "kernel.md 1.2", in_tree=(6, 0), dkms=(6, 0)),
        ),
    ),
    Row(
        "kfd_gfx942_lines",
        (
            Step(False, "cap", "kfd.md 1, Caches: C308 prints 0"),
            Step(
                True, "inf", "kfd.md 1, Caches: 6.12 prints them; first release not known", (6, 10), (6, 10)
            ),
        ),
    ),
    Row(
        "kfd_sdma_mask",
        (
            Step(False, "cap", "kernel.md 0; kfd.md: C308"),
            Step(True, "src", "kernel.md 0: 6.12; DKMS of that age", in_tree=(6, 12), dkms=(6, 10)),
        ),
    ),
    Row(
        "kfd_pcie_minimum",
        (
            Step(312, "cap", "kfd.md 1: C308, C210, up to 6.12/6.13"),
            Step(0, "inf", "kfd.md 1: posted Jan 2025; C300, CRP, Strix", in_tree=(6, 14), dkms=(6, 12, 12)),
        ),
    ),
    Row(
        "kfd_queue_reset",
        (
            Step(False, "cap", "kfd.md 1: absent in C210, which already has the SDMA mask"),
            Step(True, "inf", "kfd.md 1: about 6.13/6.14 (C300, CRP)", in_tree=(6, 14), dkms=(6, 12, 12)),
        ),
    ),
    Row(
        "kfd_capability2",
        (
            Step(False, "cap", "kfd.md 1: C300, C308, C210"),
            Step(True, "inf", "kfd.md 1: 6.15; newer DKMS (CRP)", in_tree=(6, 15), dkms=(6, 16)),
        ),
    ),
    Row(
        "kfd_cwsr",
        (
            Step(False, "cap", "kernel.md 1.2: C300, C308"),
            Step(
                True,
                "inf",
                "kernel.md 1.2: late 6.12 stables; which one is not known, taken from 6.12.60",
                in_tree=(6, 12, 60),
                dkms=None,
                before=(6, 13),
            ),
            Step(True, "src", "kernel.md 1.2: 6.19; newest DKMS (CRP)", in_tree=(6, 19), dkms=(6, 18)),
        ),
    ),
    Row(
        "kfd_used_memory",
        (
            Step(False, "src", "kernel.md 1.1: in-tree has no such file"),
            Step(True, "cap", "kernel.md 1.1: DKMS (C308; 5.x: vega10-single-legacy-kernel)", in_tree=None),
        ),
    ),
    Row(
        "kfd_xgmi_mbps",
        (
            Step(0, "src", "kfd.md 1: tests for Aldebaran in the 6.5 era"),
            Step(50000, "inf", "kfd.md 1: 6.12; first release not known", in_tree=(6, 10), dkms=(6, 10)),
            Step(64000, "inf", "kfd.md 1: CRP, SMI355 (DKMS 6.14.14); in-tree of that age", (6, 14), (6, 14)),
        ),
    ),
    Row(
        "kfd_gfx950_l3_by_nps",
        (
            Step(False, "src", "kfd.md 1, Caches"),
            Step(True, "inf", "kfd.md 1, Caches: a later patch adds 9.5.0", in_tree=(6, 16), dkms=(6, 16)),
        ),
    ),
    Row(
        "kfd_unique_id",
        (
            Step("shared", "cap", "kernel.md 1.5: to 6.17 (C300, C308); decision 5: DKMS 6.14.14"),
            Step(
                "xcd", "cap", "kernel.md 1.5: 6.18; DKMS 6.16.13 (FE2O3)", in_tree=(6, 18), dkms=(6, 16, 13)
            ),
            Step(
                "xcd-but-spx",
                "src",
                "kernel.md 1.5: 6.18 stable of Dec 2025 and 6.19 (C350VF)",
                (6, 18, 2),
                (6, 18),
            ),
        ),
    ),
)
"""The table. Order is that of `Behaviour`."""
