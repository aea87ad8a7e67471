"""``gpusim scheduler``: the scheduler as a program of its own, a line on stdout per decision."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from contextlib import ExitStack

from gpusim.cluster.scheduler import Scheduler
from gpusim.cluster.scheduler_ascend import ascend_vendors
from gpusim.cluster.scheduler_config import config_vendors, read_config
from gpusim.cluster.scheduler_filter import Rules
from gpusim.cluster.scheduler_fit import BINPACK, POLICIES, SPREAD
from gpusim.cluster.scheduler_lock import EXPIRY, EXPIRY_VARIABLE, duration
from gpusim.cluster.scheduler_metrics import served
from gpusim.cluster.scheduler_ppu import ppu_vendors
from gpusim.cluster.scheduler_vendors import VENDORS
from gpusim.cluster.scheduler_webhook import SCHEDULER_NAME
from gpusim.errors import GpusimError
from gpusim.stdout import say

_ROWS = {
    **{word: (vendor,) for word, vendor in VENDORS.items()},
    "ascend": ascend_vendors(),
    "ppu": ppu_vendors(),
}
"""Word → rows, of Ascend and PPU those of the shipped configurations."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of ``gpusim scheduler``."""
    parser.add_argument("--apiserver", required=True, metavar="URL", help="http://HOST:PORT")
    parser.add_argument(
        "--vendor", action="append", choices=sorted(_ROWS), help="whose devices (repeatable; default: amd)"
    )
    parser.add_argument(
        "--device-config",
        metavar="FILE",
        help="device-config.yaml of the plugins: its Ascend chips (vnpus) and PPUs (alibaba) beside --vendor",
    )
    parser.add_argument("--name", default=SCHEDULER_NAME, help="schedulerName of the pods it takes")
    parser.add_argument("--node-policy", choices=POLICIES, default=BINPACK, help="which node")
    parser.add_argument("--gpu-policy", choices=POLICIES, default=SPREAD, help="which device")
    parser.add_argument(
        "--believes",
        choices=("capacity", "allocatable"),
        default="capacity",
        help="where a node must count devices, or its registration is removed",
    )
    parser.add_argument("--node-lock-timeout", default="", metavar="DURATION", help="as in Go; default 5m")
    parser.add_argument(
        "--register-seconds", type=float, default=15.0, metavar="N", help="how often registrations are read"
    )
    parser.add_argument(
        "--metrics-port", type=int, metavar="N", help="serve /metrics on 127.0.0.1 (the original: 9395)"
    )
    parser.add_argument(
        "--lost-slots",
        action="store_true",
        help="write no slot for containers without devices, as HAMi's AMD",
    )


def run(args: argparse.Namespace) -> int:
    """Schedule until SIGINT or SIGTERM, a line on stdout per decision. Returns the exit status."""
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    # the flag wins over the variable, and nonsense counts as not given (D.7)
    expiry = duration(args.node_lock_timeout) or duration(os.environ.get(EXPIRY_VARIABLE, "")) or EXPIRY
    chosen = [vendor for word in args.vendor or ("amd",) for vendor in _ROWS[word]]
    try:
        if args.device_config:
            chosen += config_vendors(read_config(args.device_config))
        scheduler = Scheduler(
            args.apiserver,
            vendors=chosen,
            rules=Rules(args.node_policy, args.gpu_policy, empty_slots=not args.lost_slots),
            name=args.name,
            believes=args.believes,
            expiry=expiry,
            refresh_seconds=args.register_seconds,
        )
    except GpusimError as error:
        sys.stderr.write(f"gpusim scheduler: {error}\n")
        return 1
    told = 0
    with ExitStack() as stack:
        try:
            if args.metrics_port is not None:
                stack.enter_context(served(scheduler.metrics, args.metrics_port))
        except (OSError, OverflowError) as error:
            sys.stderr.write(f"gpusim scheduler: --metrics-port {args.metrics_port}: {error}\n")
            return 1
        stack.enter_context(scheduler)
        say(f"scheduler ready for {args.apiserver}")
        while not done.wait(0.1):
            events = scheduler.events
            for event in events[told:]:
                words = " ".join(f"{key}={value}" for key, value in event.detail.items() if key != "uid")
                say(f"{event.kind} {words}")
            told = len(events)
    return 0
