"""Whether a soft container survives the hook that older schedulers put into it: the table of A.8.

HAMi v2.9 gives every hami-core container without a PostStart one that runs bash; v2.10.0-r2 does not any
more. The plugin cannot change that: who upgrades asks this first (guide-ascend.md, upgrade notes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

OLDEST = "v2.9.0-rc0"
WITHOUT_HOOK = "v2.10.0-r2"

_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?(?:-(rc|r)\.?([0-9]{1,4}))?")
_STAGES = {"rc": 0, "r": 1, None: 2}
"""Suffixes in the order of their release; the open-source release has none."""

Mode = Literal["template", "hami-core"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the container will run, and what to do where it will not."""

    ok: bool
    text: str


class ReleaseError(ValueError):
    """A text that is no release of HAMi."""


def check(mode: Mode, scheduler: str, *, has_poststart: bool, has_bash: bool) -> Verdict:
    """The table's row for one container.

    Args:
        mode: of the container.
        scheduler: release of HAMi, as its image tag says: ``v2.9.1``, ``v2.10.0-r2``.
        has_poststart: the container has a PostStart of its own.
        has_bash: its image has bash.

    Raises:
        ReleaseError: `scheduler` is no release.
    """
    release = _release(scheduler)
    if release < _release(OLDEST):
        return Verdict(False, f"scheduler {scheduler} is older than {OLDEST}: upgrade HAMi")
    if mode == "template":
        return Verdict(True, "template mode has no hook")
    if release >= _release(WITHOUT_HOOK):
        return Verdict(True, f"scheduler {scheduler} injects no hook")
    if has_poststart:
        return Verdict(True, "the container's own PostStart is left alone")
    if has_bash:
        return Verdict(True, f"the hook that scheduler {scheduler} injects finds its bash")
    return Verdict(
        False,
        f"scheduler {scheduler} injects a PostStart that needs bash, which the image lacks: upgrade HAMi to "
        f"{WITHOUT_HOOK}, or give the container a PostStart of its own",
    )


def _release(text: str) -> tuple[int, int, int, int, int]:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ReleaseError(f"{text[:60]!a} is no release of HAMi: v2.10.0-r2 is one")
    major, minor, patch, stage, number = match.groups()
    return int(major), int(minor), int(patch or 0), _STAGES[stage], int(number or 0)
