"""Which kernel and driver a capture fits: its traces compared with every row of the behaviour table.

Captures rarely say on which release they were made, but key sets, file names and a few values do (kfd.md 1,
kernel.md 0). What was seen is `Trace`s; the pair of releases that contradicts fewest of them is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpusim.errors import GpusimError
from gpusim.kernel import ROWS, Behaviour, UnknownReleaseError, behaviour, parse_driver, parse_kernel

_OLDEST_KERNEL, _OLDEST_DKMS = "5.4", "dkms-5.6"
"""Releases for the steps that have no lower bound: of the age of vega10-single-legacy-kernel (kfd.md 1)."""
_USUAL = "6.14"
"""Tried first: what is taken when nothing tells."""
_OLDEST_MODERN = (6, 5)
"""The first in-tree driver after 5.x of which anything is known."""
_LIMITED_UPDATE = (6, 8, 0, 79)
"""The update of Ubuntu's 6.8 that still has the 64-minor limit (decision 5)."""
_UBUNTU = (6, 8)
"""The release whose distribution updates are told apart by a fourth number."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Something seen in the capture, and which behaviours leave it."""

    what: str
    """For a person: ``links have recommended_sdma_engine_id_mask``."""
    fits: Callable[[Behaviour], bool]
    weight: int = 1
    """How much a contradiction counts."""


@dataclass(frozen=True, slots=True)
class Release:
    """The pair chosen."""

    kernel: str
    driver: str
    against: tuple[str, ...]
    """Traces that even this pair contradicts."""


def choose(traces: Sequence[Trace], kernel: str | None, driver: str | None) -> Release:
    """The pair that contradicts least; among equals the older, and the kernel's own driver first.

    Args:
        traces: what was seen.
        kernel: the running release, when the capture says it.
        driver: ``in-tree`` or ``dkms-A.B.C``, when the capture says it.
    """
    kernel, driver = _known(kernel), driver if driver is None or _driver_known(driver) else None
    best: tuple[tuple[int, int], str, str] | None = None
    for order, (release, module) in enumerate(_pairs(kernel, driver)):
        try:
            rules = behaviour(release, module)
        except UnknownReleaseError:
            continue
        wrong = sum(trace.weight for trace in traces if not trace.fits(rules))
        if best is None or (wrong, order) < best[0]:
            best = (wrong, order), release, module
    if best is None:
        raise GpusimError(f"no row of the behaviour table describes kernel {kernel} with driver {driver}")
    _, release, module = best
    rules = behaviour(release, module)
    against = tuple(trace.what for trace in traces if not trace.fits(rules))
    return Release(release, module, against)


def _known(kernel: str | None) -> str | None:
    try:
        return kernel if kernel and parse_kernel(kernel) else None
    except UnknownReleaseError:
        return None


def _driver_known(driver: str) -> bool:
    try:
        parse_driver(driver)
    except UnknownReleaseError:
        return False
    return True


def _pairs(kernel: str | None, driver: str | None) -> Iterator[tuple[str, str]]:
    """The candidates, likeliest first."""
    kernels = [kernel] if kernel else list(_kernels())
    if kernel is None and driver is None:
        yield _USUAL, "in-tree"
    if driver in (None, "in-tree"):
        yield from ((release, "in-tree") for release in kernels)
    modules = [driver] if driver not in (None, "in-tree") else list(_modules()) if driver is None else []
    for module in modules:
        yield from ((release, module) for release in _near(kernels, module))


def _near(kernels: list[str], module: str) -> list[str]:
    """`kernels` for an out-of-tree driver: the newest that is not newer than it first, then older ones."""
    age = parse_driver(module) or ()
    older = sorted((k for k in kernels if parse_kernel(k)[:2] <= age[:2]), key=parse_kernel, reverse=True)
    return [*older, *(k for k in kernels if k not in older)]


def _kernels() -> Iterator[str]:
    """A release for every step of the table, oldest first; 5.x, which few captures are of, last."""
    bounds = {bound for row in ROWS for step in row.steps for bound in (step.kernel, step.in_tree or ())}
    bounds = {bound for bound in bounds if bound > _OLDEST_MODERN} | {_OLDEST_MODERN, _LIMITED_UPDATE}
    for version in sorted(bounds):
        text = ".".join(map(str, version[:3])) + (f"-{version[3]}" if len(version) > 3 else "")
        yield f"{text}-generic" if version[:2] == _UBUNTU else text
    yield _OLDEST_KERNEL


def _modules() -> Iterator[str]:
    bounds = {step.dkms for row in ROWS for step in row.steps if step.dkms}
    yield _OLDEST_DKMS
    yield from (f"dkms-{'.'.join(map(str, version))}" for version in sorted(bounds))


def module_version(version: str | None, has_module: bool) -> str | None:
    """The driver as fixtures write it; None: not recorded.

    Args:
        version: text of /sys/module/amdgpu/version.
        has_module: whether other files of that directory were recorded (kernel.md 0: in-tree has no version).
    """
    if version:
        match = re.match(r"\d+(\.\d+){1,2}", version)
        return f"dkms-{match[0]}" if match else None
    return "in-tree" if has_module else None


def key(what: str, seen: bool, fits: Callable[[Behaviour], bool], weight: int = 1) -> Trace:
    """A trace of a yes-or-no row: the row's value must be what was seen."""
    return Trace(f"{what}: {'yes' if seen else 'no'}", lambda rules: fits(rules) == seen, weight)
