"""What a capture claims, made a node that can exist: one damaged number must not spoil the whole fixture.

The fixture reader itself is asked (it knows the range of every key and what goes with what), and each value
it refuses falls to the default, with a note. A GPU or a display refused as such is left out.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

from gpusim import fixture
from gpusim.errors import GpusimError
from gpusim.snapshots.board import Say
from gpusim.spec import Cpus, GpuSpec, NodeSpec

_KEY = re.compile(r"\$\.(?:(gpus|cards|cpus)(?:\[(\d+)\])?\.)?(\w+)(?:\[(\d+)\])?.*")
_LONGEST = 60
"""Digits of a refused number that a note shows."""


def possible(spec: NodeSpec, say: Say) -> NodeSpec:
    """`spec` with defaults where its fixture would be refused.

    Args:
        spec: what was read.
        say: takes a sentence about each value that was given up.

    Raises:
        GpusimError: a refusal that no default mends, with the node and the place.
    """
    # Every round mends one value for good.
    for _ in range(len(fields(NodeSpec)) + (len(spec.gpus) + 1) * len(fields(GpuSpec)) + len(spec.cards)):
        refused = _refused(spec)
        if refused is None:
            return spec
        mended = _mended(spec, refused, say)
        if mended is None:
            break
        spec = mended
    loadable(spec)
    return spec


def loadable(spec: NodeSpec) -> None:
    """Raise GpusimError, with the node and the place, when the fixture of `spec` cannot be loaded."""
    if (refused := _refused(spec)) is not None:
        raise GpusimError(
            f"the capture of {spec.name} gives no fixture that can be loaded: {refused.key}: {refused.why}"
        )


def _refused(spec: NodeSpec) -> fixture.BadFixture | None:
    try:
        fixture.loads(fixture.dump(spec), path=spec.name)
    except fixture.BadFixture as refusal:
        return refusal
    return None


def _mended(spec: NodeSpec, refused: fixture.BadFixture, say: Say) -> NodeSpec | None:
    """`spec` without the value that is at fault; None: nothing can stand for it."""
    match = _KEY.fullmatch(refused.key)
    if match is None:
        return None
    where, row, key, column = match.groups()
    at = row or column
    if where == "gpus":
        chosen = range(len(spec.gpus)) if at is None else [int(at)]
        return _mended_gpus(spec, list(chosen), key, refused.why, say)
    if where == "cards" and row is not None:
        say(f"display {spec.cards[int(row)].bdf}: left out: {key}: {_short(refused.why)}")
        return replace(spec, cards=(*spec.cards[: int(row)], *spec.cards[int(row) + 1 :]))
    mended: NodeSpec | None = None
    if where == "cpus":
        cpus = _default(spec.cpus, Cpus(), key)
        mended = None if cpus is None else replace(spec, cpus=cpus)
    elif key not in ("gpus", "cards"):
        mended = _default(spec, NodeSpec(spec.name, spec.kernel), key)
    if mended is not None:
        say(f"{refused.key.removeprefix('$.')}: {_short(refused.why)}: the default stands")
    return mended


def _mended_gpus(spec: NodeSpec, chosen: list[int], key: str, why: str, say: Say) -> NodeSpec | None:
    if key in ("bdf", "product"):
        for index in reversed(chosen):
            say(f"{spec.gpus[index].bdf}: left out: {key}: {_short(why)}")
            spec = _without_gpu(spec, index)
        return spec if spec.gpus else None
    gpus = list(spec.gpus)
    for index in chosen:
        usual = GpuSpec("", "")
        if key == "vram_used" and gpus[index].vram_used == usual.vram_used:
            usual = replace(usual, vram_used=0)  # less memory than the default uses
        if key in ("mode", "boot_mode") and gpus[index].mode == usual.mode:
            key = "nps"  # the first mode goes with NPS1 at least
        gpu = _default(gpus[index], usual, key)
        if gpu is None:
            return None
        gpus[index] = gpu
        say(f"{gpu.bdf}: {key}: {_short(why)}: the default stands")
    return replace(spec, gpus=tuple(gpus))


def _without_gpu(spec: NodeSpec, index: int) -> NodeSpec:
    cards = tuple(replace(card, before=card.before - (card.before > index)) for card in spec.cards)
    return replace(spec, gpus=(*spec.gpus[:index], *spec.gpus[index + 1 :]), cards=cards)


def _default(value: Any, usual: Any, key: str) -> Any:
    """`value` with the default of one field; None when it has it, or has no such field."""
    if not hasattr(usual, key) or getattr(value, key) == getattr(usual, key):
        return None
    return replace(value, **{key: getattr(usual, key)})


def _short(why: str) -> str:
    return re.sub(rf"\d{{{_LONGEST},}}", lambda match: f"{match[0][:20]}… ({len(match[0])} digits)", why)
