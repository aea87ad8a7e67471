"""`gpusim top`: who uses the GPUs of a node now, on one screen that keeps itself up to date.

GPUs, their partitions, and the pods on them: VRAM against limits, occupied CUs. On a terminal the screen is
redrawn until Ctrl-C; elsewhere it is written once, as plain text. `--live` is the one place of this
package that reads the computer it runs on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpusim import hosts
from gpusim.cli.toplook import DRIVER, Files, Look, look
from gpusim.errors import GpusimError
from gpusim.stdout import is_terminal, say

Row = tuple[str, ...]

GPU_HEAD: Row = ("GPU", "PCI address", "product", "mode", "VRAM", "used", "busy", "CUs", "temp", "power")
POD_HEAD: Row = ("pod", "class", "GPU", "VRAM", "limit", "used", "CUs", "processes")
_LEFT = frozenset({"PCI address", "product", "mode", "pod", "class"})
_MIB = 1 << 20
_FRAME = 6
"""Lines of both tables' heads and between them."""


def add_commands(commands: Any) -> None:
    """``top``."""
    command = commands.add_parser(
        "top",
        help="show who uses the GPUs: VRAM against limits, occupied CUs, by pod",
        description="Show GPUs, partitions and pods, and refresh until Ctrl-C; once where the output is no "
        "terminal. Pods are named by uid, as their cgroups are. VRAM of a pod is what dmem counts, "
        "without dmem what its processes asked of KFD.",
        examples="  gpusim top unix:/tmp/node.sock\n  gpusim top mi355x/qpx-6.14 --json\n  gpusim top --live",
    )
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "node",
        nargs="?",
        metavar="FIXTURE",
        help="a fixture (name or path), or unix:SOCKET of a served machine",
    )
    which.add_argument("--live", action="store_true", help="look at the computer this runs on")
    command.add_argument("--json", action="store_true", help="print everything once, as one JSON object")
    command.add_argument(
        "--interval", type=_seconds, default=2.0, metavar="S", help="seconds between two looks (default: 2)"
    )
    command.set_defaults(run=_run)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.1 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return number


def _run(args: argparse.Namespace) -> int:
    with _files(args) as files:
        if args.json:
            say(json.dumps(look(files), indent=2))
        elif is_terminal():
            _keep_showing(lambda: look(files), args.interval)
        else:
            for line in plain(look(files)):
                say(line)
    return 0


@contextlib.contextmanager
def _files(args: argparse.Namespace) -> Iterator[Files]:
    if args.live:
        files = RealFiles()
        try:
            files.list(DRIVER)
        except OSError as error:
            raise GpusimError(f"{DRIVER}: {error.strerror}; amdgpu drives no GPU of this computer") from None
        yield files
    else:
        with hosts.simulated(args.node) as machine:
            yield machine


class RealFiles:
    """The files of the computer this runs on."""

    def read(self, path: str) -> bytes:
        """Content of a file."""
        return Path(path).read_bytes()

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted."""
        return sorted(os.listdir(path))  # noqa: PTH208 - names, not paths


# Rows


def gpu_rows(state: Look, *, idle: bool = True) -> Iterator[Row]:
    """A row a GPU; one for each partition below a GPU that has several, `idle` ones too."""
    for place, gpu in enumerate(state["gpus"]):
        parts = gpu["partitions"]
        mode = "/".join(filter(None, (gpu["mode"], gpu["memory_mode"]))) or "-"
        occupied = sum(part["cus_occupied"] for part in parts)
        yield (
            str(place),
            gpu["bdf"],
            gpu["product"] or "-",
            mode,
            _of(gpu["vram_used"], gpu["vram_total"]),
            _percent(gpu["vram_used"], gpu["vram_total"]),
            _shown(gpu["busy_percent"], " %"),
            f"{occupied} of {sum(part['cus'] for part in parts)}" if parts else "-",
            _shown(gpu["celsius"], " °C"),
            _shown(gpu["watts"], " W"),
        )
        for number, part in enumerate(parts if len(parts) > 1 else ()):
            if not (idle or part["vram_used"] or part["cus_occupied"]):
                continue
            where = f"  {number}  renderD{part['render']}, KFD node {part['node']}"
            cus = f"{part['cus_occupied']} of {part['cus']}"
            yield ("", where, "", "", f"{part['vram_used'] // _MIB} MiB", "", "", cus, "", "")


def pod_rows(state: Look) -> Iterator[Row]:
    """A row for each pod and GPU it uses or is limited on."""
    places = {gpu["bdf"]: str(place) for place, gpu in enumerate(state["gpus"])}
    for pod in state["pods"]:
        for bdf, gpu in pod["gpus"].items():
            used = gpu["used"] if gpu["used"] is not None else gpu.get("processes_vram")
            yield (
                pod["uid"],
                pod["qos"],
                places.get(bdf, bdf),
                _mib(used),
                _mib(gpu["limit"]),
                _percent(used, gpu["limit"]),
                str(gpu.get("cus_occupied", 0)),
                str(len(pod["pids"])),
            )


def notes(state: Look) -> Iterator[str]:
    """What the tables leave out."""
    if not state["gpus"]:
        yield "amdgpu drives no GPU of this node"
    idle = sum(not pod["gpus"] for pod in state["pods"])
    if idle:
        yield f"{idle} {'pod has' if idle == 1 else 'pods have'} no VRAM and no limit"
    outside = [str(process["pid"]) for process in state["processes"] if process["pod"] is None]
    if outside:
        yield f"processes outside pods: {', '.join(outside)}"
    if not state["dmem"]:
        yield "no dmem controller: nothing limits VRAM, and what a pod has is what its processes asked of KFD"


def _shown(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:g}{unit}"


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value // _MIB} MiB"


def _of(used: int | None, total: int | None) -> str:
    return "-" if used is None or total is None else f"{used // _MIB} of {total // _MIB} MiB"


def _percent(used: int | None, total: int | None) -> str:
    return "-" if used is None or not total else f"{100 * used / total:.0f} %"


# Output


def plain(state: Look) -> Iterator[str]:
    """Aligned lines."""
    yield from _aligned(GPU_HEAD, list(gpu_rows(state)))
    pods = list(pod_rows(state))
    if pods:
        yield ""
        yield from _aligned(POD_HEAD, pods)
    remarks = list(notes(state))
    if remarks:
        yield ""
        yield from remarks


def _aligned(head: Row, body: Sequence[Row]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    for row in [head, *body]:
        cells = (
            cell.ljust(width) if title in _LEFT else cell.rjust(width)
            for title, cell, width in zip(head, row, widths, strict=True)
        )
        yield "  ".join(cells).rstrip()


def _keep_showing(now: Callable[[], Look], interval: float) -> None:
    """Redraw until interrupted; the terminal is as it was afterwards."""
    from rich.live import Live

    try:
        with Live(screen=True, auto_refresh=False) as live:
            while True:
                live.update(_screen(now(), live.console.height), refresh=True)
                time.sleep(interval)
    except KeyboardInterrupt:
        return


def _screen(state: Look, height: int) -> Any:
    """The tables; without idle partitions where all of them would be higher than the terminal."""
    from rich.console import Group
    from rich.text import Text

    gpus, pods, remarks = list(gpu_rows(state)), list(pod_rows(state)), [*notes(state), "Ctrl-C ends"]
    if len(gpus) + len(pods) + len(remarks) + _FRAME > height:
        busy = list(gpu_rows(state, idle=False))
        if len(busy) < len(gpus):
            remarks.insert(
                0, f"{len(gpus) - len(busy)} idle partitions are not shown: the terminal is too low"
            )
        gpus = busy
    shown: list[Any] = [_table(GPU_HEAD, gpus), Text("")]
    if pods:
        shown += [_table(POD_HEAD, pods), Text("")]
    return Group(*shown, *(Text(line, style="dim") for line in remarks))


def _table(head: Row, body: Sequence[Row]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False, pad_edge=False)
    for title in head:
        table.add_column(title, justify="left" if title in _LEFT else "right", no_wrap=True)
    used = head.index("used")
    for row in body:
        full = row[used].removesuffix(" %")
        style = "bold" if row[0] else ""
        if full.isdecimal() and int(full) >= 90:
            style = "bold red"
        table.add_row(*(Text(cell) for cell in row), style=style)
    return table
