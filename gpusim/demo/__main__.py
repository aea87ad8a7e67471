"""The main job, from end to end, for somebody who has never seen it: `bin/demo [FIXTURE]`.

A fixture becomes a served machine; the vendor's device plugin, a kubelet, an API server and, where the
vendor has a device configuration, a scheduler run beside it as processes of their own, on real sockets. Pods
get slices and whole devices in each of the vendor's modes. Nothing here is a shortcut: every step is what the
tools of this project do when they are called by hand, and the commands are printed.
"""

from __future__ import annotations

import argparse
import signal
import sys

from rich.console import Console

from gpusim.demo import amd, ascend, ppu
from gpusim.demo.stage import DemoError, Stage, stage_for
from gpusim.errors import GpusimError
from gpusim.fixture import load

DESCRIPTION = """\
Run the main job on a simulated node and show it: serve FIXTURE as a machine, start an API server, a kubelet
and the vendor's device plugin as processes of their own, then allocate pods. AMD GPUs: a slice in cu mode, a
whole partition in partition mode. Ascend NPUs: a soft slice, a slice cut by a template. PPUs: a slice, a
whole card. Everything lives in a temporary directory and is gone afterwards.
"""


def play(stage: Stage, fixture: str) -> None:
    """The play of the fixture's vendor; of a node with several, of each in turn would be too long: the first.

    Raises:
        GpusimError: no such fixture, nothing to offer in it, or a step that failed.
    """
    spec = load(fixture)
    if spec.gpus:
        amd.act(stage, fixture)
    elif spec.npus:
        ascend.act(stage, fixture, spec)
    elif spec.ppus:
        ppu.act(stage, fixture)
    else:
        raise DemoError(f"{fixture}: a node without accelerators has nothing to show; see fixtures/")
    stage.console.rule("done")


def main(argv: list[str] | None = None) -> int:
    """`bin/demo`: 0 all pods were allocated, 1 a step failed, 2 usage, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="bin/demo", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "fixture",
        nargs="?",
        default="mi355x/qpx-6.14",
        metavar="FIXTURE",
        help="name or path (default: %(default)s)",
    )
    args = parser.parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 120)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with stage_for(console) as stage:
            play(stage, args.fixture)
    except GpusimError as error:
        print(f"bin/demo: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
