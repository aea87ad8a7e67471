"""From a command line to a daemon, or to one JSON object: the console scripts.

The one place that names vendors and picks the node: the real one, a directory (`-root`), or what an
installed package offers through the entry-point group ``devplugin.hosts``: a packed capture (`-root`), a
simulated node (`-simulate`). Exit status: 2 for what is no flag, 1 for what is refused, with one line and
no traceback (decision 34). gRPC and the API client are imported only to serve: `-dry_run` needs neither
them nor NODE_NAME nor an API server.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, TypeVar, cast

from devplugin import errands, explain, extras, hook
from devplugin.host import Host, Kind
from devplugin.linux import LinuxHost
from devplugin.metered import Metered
from devplugin.replay import Golden, failed, golden, replay
from devplugin.settings import GoParser, SettingsError, add_common_flags, shown
from devplugin.stdout import printed, told
from devplugin.vendor import SettingsInput, Vendor

Inv = TypeVar("Inv")
S = TypeVar("S")

DISTRIBUTION = "gpusim"
"""The package on the index, of both halves."""
HOSTS = "devplugin.hosts"
SIMULATE = "simulate"
PACK = "pack"

_NODE = ("node_name", "node-name")
"""Flags that name the node, of vendors that have one."""

METERED = ("amd", "ppu")
"""Vendors with a monitor of its own; Ascend's plugin shows what a monitor would."""

CAPTURE = ".gpusim-capture.json"
"""Beside an unpacked capture's tree: what plain files cannot hold. Such a directory is no plain one."""


@extras.daemon
def amd_device_plugin(argv: Sequence[str] | None = None, host: Host | None = None) -> int:
    """`amd-device-plugin`: the exit status."""
    from devplugin.amd.vendor import Amd

    return main(Amd(), argv, host=host)


@extras.daemon
def ascend_device_plugin(argv: Sequence[str] | None = None, host: Host | None = None) -> int:
    """`ascend-device-plugin`: the exit status."""
    from devplugin.ascend.vendor import Ascend

    return main(Ascend(), argv, host=host)


@extras.daemon
def ppu_device_plugin(argv: Sequence[str] | None = None, host: Host | None = None) -> int:
    """`ppu-device-plugin`: the exit status."""
    from devplugin.ppu.vendor import Ppu

    return main(Ppu(), argv, host=host)


@extras.daemon
def node_labeller(argv: Sequence[str] | None = None, host: Host | None = None) -> int:
    """`node-labeller`: the exit status."""
    from devplugin import labeller

    return labeller.main(
        sys.argv[1:] if argv is None else argv,
        env=os.environ,
        find=_node if host is None else lambda _: host,
    )


@extras.daemon
def vgpu_monitor(
    argv: Sequence[str] | None = None, host: Host | None = None, *, env: Mapping[str, str] | None = None
) -> int:
    """`vgpu-monitor`: the exit status; a wrong flag leaves by SystemExit(2)."""
    from devplugin.kube import connect
    from devplugin.monitor import Start, add_flags, run

    env = os.environ if env is None else env
    parser = GoParser("vgpu-monitor", "Prometheus exporter of a node's devices and their containers' memory.")
    add_flags(parser, METERED)
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    try:
        node = env.get("NODE_NAME", "")
        if not node:
            raise SettingsError("NODE_NAME is not set: the monitor must know which node it is on")
        return run(
            Start(
                vendor=_metered(args.vendor),
                host=host if host is not None else _node(args),
                node=node,
                connect=lambda: connect(env.get("KUBECONFIG") or None, component="vgpu-monitor"),
                bind_address=args.metrics_bind_address,
                cgroup_root=_directory("cgroup_root", args.cgroup_root),
                drm_root=_directory("drm_root", args.drm_root),
                verbosity=args.v,
            )
        )
    except SettingsError as error:
        told(f"{parser.prog}: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _metered(name: str) -> Metered:
    """Whom the monitor asks.

    Raises:
        SettingsError: no such vendor.
    """
    if name == "amd":
        from devplugin.amd.vendor import Amd

        return Amd()
    if name == "ppu":
        from devplugin.ppu.metrics import PpuMonitor

        return PpuMonitor()
    raise SettingsError(f"-vendor={shown(name)}: use {' or '.join(METERED)}")


def main(
    vendor: Vendor[Inv, S],
    argv: Sequence[str] | None = None,
    *,
    host: Host | None = None,
    env: Mapping[str, str] | None = None,
    out: TextIO | None = None,
) -> int:
    """Run one vendor's device plugin.

    Args:
        vendor: whose.
        argv: the words after the program's name; None takes the process's.
        host: the node, instead of what the flags name.
        env: the environment; None takes the process's.
        out: where `-dry_run` prints; None is standard output.

    Returns:
        The exit status; a wrong flag leaves by SystemExit(2) as argparse does.
    """
    env = os.environ if env is None else env
    parser = GoParser(f"{vendor.name}-device-plugin", f"Kubernetes device plugin for {vendor.name} devices.")
    add_common_flags(parser)
    vendor.add_flags(parser)
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    if getattr(args, "version", False):
        return printed(f"version: {_version()}", parser.prog, out)
    wanted: Golden | None = None
    try:
        wanted = golden(expect=args.expect, update=args.update, junit=args.junit, dry_run=args.dry_run)
        node = host if host is not None else _node(args)
        read = _configuration(node)
        name = next(filter(None, (getattr(args, flag, "") for flag in _NODE)), env.get("NODE_NAME", ""))
        given = SettingsInput(args, env, None, name, read)
        settings, warnings = vendor.settings(given)
        if not args.dry_run or args.check or args.cleanup or getattr(args, "install_hook", ""):
            return _work(vendor, node, given, settings, errands.Place(parser.prog, out))
    except SettingsError as error:
        told(f"{parser.prog}: {error}")
        if wanted is not None:
            _not_compared(str(error), wanted, parser.prog)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    inventory = vendor.discover(node, settings, None)
    for line in dict.fromkeys((*warnings, *vendor.notices(inventory, settings))):
        told(f"{parser.prog}: warning: {line}")
    report = {
        **vendor.report(node, inventory, settings),
        "settings": explain.shown(explain.choices(parser, args, vendor.choices(given, settings))),
    }
    if wanted is not None:
        return _replayed(report, wanted, parser.prog, out)
    return printed(json.dumps(report, indent=2), parser.prog, out)


def _version() -> str:
    """Of the package these programs came with."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def _work(
    vendor: Vendor[Any, Any], node: Host, given: SettingsInput, settings: Any, place: errands.Place
) -> int:
    """Whatever is asked for beside a dry run: an errand, or to serve."""
    if errand := getattr(given.args, "install_hook", ""):
        return place.printed(str(_install(node, errand)))
    if given.args.cleanup:
        return errands.cleanup(vendor, given, place)
    if given.args.check:
        return errands.check(vendor, node, given, settings, place)
    return _serve(vendor, node, given)


def _replayed(report: Mapping[str, Any], wanted: Golden, prog: str, out: TextIO | None) -> int:
    """Compare a dry run with its golden file, and say how that ended; the exit status."""
    try:
        verdict = replay(report, wanted, LinuxHost(), suite=f"{prog} -dry_run")
    except SettingsError as error:
        told(f"{prog}: {error}")
        return error.exit_code
    if verdict.equal:
        return printed(verdict.message, prog, out)
    told(f"{prog}: {verdict.message}")
    if verdict.diff:
        printed(verdict.diff.removesuffix("\n"), prog, out)
    return 1


def _not_compared(why: str, wanted: Golden, prog: str) -> None:
    """Let the JUnit report say, too, why there was nothing to compare."""
    try:
        failed(why, wanted, LinuxHost(), suite=f"{prog} -dry_run")
    except SettingsError as error:
        told(f"{prog}: {error}")


def _directory(flag: str, path: str) -> str:
    """A directory of the node that a flag names, without a slash at the end."""
    if not path.startswith("/"):
        raise SettingsError(f"-{flag}={shown(path)}: expected an absolute path")
    return path.rstrip("/") or "/"


def _node(args: argparse.Namespace) -> Host:
    """The host that the flags name.

    Raises:
        SettingsError: both flags, or what they name cannot be used.
    """
    if args.simulate:
        if args.root not in ("", "/"):
            raise SettingsError(f"-root={shown(args.root)}: not together with -simulate, choose one")
        return _offered(SIMULATE, "simulate", args.simulate, "simulated nodes")
    root = args.root or "/"
    if _is_capture(root):
        return _offered(PACK, "root", root, "packed captures")
    host = LinuxHost(root)
    try:
        host.list("/")
    except OSError as error:
        raise SettingsError(f"-root={shown(root)}: {error.strerror}") from error
    return host


def _is_capture(root: str) -> bool:
    """Whether `-root` names a packed capture, or an unpacked one with its notes."""
    real = LinuxHost()
    try:
        if real.stat(root).kind is Kind.FILE:
            return True
        return root != "/" and real.stat(f"{root}/{CAPTURE}").kind is Kind.FILE
    except OSError:
        return False


def _install(node: Host, text: str) -> hook.Installed:
    """Copy the hook library onto the node: what the DaemonSet's postStart runs (amd.md 1.3).

    Raises:
        SettingsError: no two paths, or the copy cannot be made.
    """
    try:
        return hook.install(cast("hook.Place", node), hook.parse(text))
    except hook.HookError as error:
        raise SettingsError(f"-install_hook={shown(text, 200)}: {error}") from error


def _offered(name: str, flag: str, argument: str, what: str) -> Host:
    """The host that an installed package offers for a flag's value.

    Args:
        name: of the entry point.
        flag: for errors.
        argument: what it is called with.
        what: it offers, for errors.

    Raises:
        SettingsError: none is installed, or the argument is none of its hosts.
    """
    from importlib.metadata import entry_points

    found = [point for point in entry_points(group=HOSTS) if point.name == name]
    if not found:
        raise SettingsError(
            f"-{flag}={shown(argument)}: nothing installed offers {what} ({HOSTS}); install gpusim"
        )
    try:
        host = cast("Host", found[0].load()(argument))
    except Exception as error:  # its errors are its own; all of them mean that this argument is no node
        raise SettingsError(f"-{flag}={shown(argument)}: {error}") from error
    return host


def _configuration(node: Host) -> Callable[[str], bytes]:
    """Reads configuration files: of the node that the flags name, else of this process's own files.

    A capture or a simulated node may bring its own; a file beside the tool is there for all others.
    """

    def read(path: str) -> bytes:
        try:
            if path.startswith("/"):
                return node.read(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
        return LinuxHost().read(path)

    return read


def _serve(vendor: Vendor[Any, Any], host: Host, given: SettingsInput) -> int:
    args, env, node = given.args, given.env, given.node
    if not node:
        raise SettingsError(
            "NODE_NAME is not set: the daemon must know which node it is on (-dry_run does not)"
        )
    from devplugin.daemon.life import Start
    from devplugin.daemon.main import run
    from devplugin.kube import connect

    return run(
        Start(
            vendor=vendor,
            host=host,
            node=node,
            args=args,
            env=env,
            kubelet_dir=args.kubelet_dir,
            connect=lambda: connect(env.get("KUBECONFIG") or None, component=f"{vendor.name}-device-plugin"),
            pulse=getattr(args, "pulse", 0),
            read=given.read,
            metrics=args.metrics_bind_address,
            verbosity=args.v,
        )
    )
