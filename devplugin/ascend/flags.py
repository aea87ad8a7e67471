"""The Ascend plugin's flags, environment and configuration files, resolved to one `Settings`.

Names, defaults and fatal words: ascend_ppu_hami.md A.1. A device configuration that cannot be used ends the
start; a node configuration that cannot is a warning, and the node is as the device configuration says.
What is refused: decisions 34 and 46.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from devplugin.ascend import deviceconfig, nodeconfig
from devplugin.ascend.deviceconfig import DeviceConfig
from devplugin.ascend.nodeconfig import NodeConfig
from devplugin.ascend.settings import ASSETS, HOOK, Settings
from devplugin.configfile import INT32_MAX, ConfigError, load
from devplugin.explain import DEFAULT, FLAG, Choice, environment
from devplugin.settings import SettingsError, add_flag, bind_address, go_bool, go_int, shown
from devplugin.vendor import SettingsInput

NO_CONFIG = "config file not set, use --config_file to set config file path"
NO_NODE = "node name not set, use --node_name or env NODE_NAME to set node name"

MONITOR = "monitor_bind_address"

KLOG = (
    *(("add_dir_header", go_bool, False), ("alsologtostderr", go_bool, False)),
    *(("log_backtrace_at", str, ""), ("log_dir", str, ""), ("log_file", str, "")),
    *(("log_file_max_size", go_int, 1800), ("one_output", go_bool, False)),
    *(("skip_headers", go_bool, False), ("skip_log_headers", go_bool, False), ("vmodule", str, "")),
)
"""What charts for the Go plugin may pass besides `-v`, `-logtostderr` and `-stderrthreshold`."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare every flag of A.1, and ours."""
    group = parser.add_argument_group(
        "Ascend NPUs",
        "environment: NODE_NAME (default of -node_name), HOOK_PATH (host directory of the runtime library, "
        f"of the containers' directories and of what the monitor reads, default {HOOK}),\n"
        f"HAMI_VNPU_ASSETS_PATH (where this image has libvnpu.so and ld.so.preload, default {ASSETS}).",
    )
    add_flag(group, "config_file", str, "", "device configuration, shared with HAMi's scheduler; needed")
    add_flag(
        group,
        "node_config_file",
        str,
        "",
        "what single nodes do otherwise: soft mode, shares of a card, cards kept back",
    )
    add_flag(group, "node_name", str, "", "this node; empty: NODE_NAME")
    add_flag(group, "check_idle_vnpu_interval", go_int, 60, "seconds between sweeps of idle vNPUs, above 0")
    add_flag(
        group,
        "enable_periodic_idle_vnpu_cleanup",
        go_bool,
        False,
        "sweep idle vNPUs again and again, not only at the start",
    )
    add_flag(group, "report_time_offset", go_int, 1, "seconds added to the time in the handshake annotation")
    add_flag(
        group,
        "hw_loglevel",
        go_int,
        0,
        "-1 debug to 3 critical, of the vendor's driver library; no effect, for npu-smi is asked here",
    )
    add_flag(
        group,
        MONITOR,
        str,
        ":9395",
        "in soft mode serve the containers' memory there for Prometheus; empty: nowhere",
    )
    add_flag(group, "pulse", go_int, 0, "seconds between looks at the NPUs, besides one every 30 s; 0: none")
    add_flag(group, "version", go_bool, False, "print the version, and exit")
    klog = parser.add_argument_group("logging of the Go plugin, taken and without effect")
    for name, kind, default in KLOG:
        add_flag(klog, name, kind, default, "no effect: all lines go to standard error as JSON")


def resolve(given: SettingsInput) -> tuple[Settings, tuple[str, ...]]:
    """Settings and the warnings met on the way.

    Raises:
        SettingsError: a value or the device configuration cannot be served, or what is needed is not given.
    """
    args, env = given.args, given.env
    _check_range(args)
    if args.cleanup:  # what is left on the node object says by itself what it is
        return Settings(node_name=given.node, verbosity=args.v), ()
    if not args.config_file:
        raise SettingsError(NO_CONFIG)
    if not given.node and not args.dry_run:
        raise SettingsError(NO_NODE)
    devices = _devices(given)
    node, warnings = _node(given)
    soft = devices.soft if node.soft is None else node.soft
    return (
        Settings(
            node_name=given.node,
            chips=devices.chips,
            soft=soft,
            soft_cores=devices.soft_cores,
            count=node.count or (devices.split if soft else 0),
            filtered_cards=node.cards,
            filtered_uuids=node.uuids,
            hook_path=_directory(env, "HOOK_PATH", HOOK),
            assets_path=_directory(env, "HAMI_VNPU_ASSETS_PATH", ASSETS),
            time_offset=args.report_time_offset,
            idle_interval=float(args.check_idle_vnpu_interval),
            periodic=args.enable_periodic_idle_vnpu_cleanup,
            monitor_address=args.monitor_bind_address,
            verbosity=args.v,
        ),
        warnings,
    )


def choices(given: SettingsInput, settings: Settings) -> Mapping[str, Choice]:
    """Settings that have no flag: what the configuration files and the environment decide."""
    args = given.args
    node, _ = _node(given)
    device, own = f"file {args.config_file}", f"file {args.node_config_file}"
    mode = own if node.soft is not None else device
    count = own if node.count else device if settings.count else DEFAULT
    filtered = [*sorted(settings.filtered_cards), *sorted(settings.filtered_uuids)]
    name = Choice(settings.node_name, FLAG) if args.node_name else None
    return {
        "node_name": name or environment("NODE_NAME", settings.node_name, given.env),
        "mode": Choice(settings.mode, mode),
        "shares": Choice(settings.count, count),
        "filtered": Choice(filtered, own if filtered else DEFAULT),
        "hook_path": environment("HOOK_PATH", settings.hook_path, given.env),
        "assets_path": environment("HAMI_VNPU_ASSETS_PATH", settings.assets_path, given.env),
    }


def _check_range(args: argparse.Namespace) -> None:
    """What can never be served, whatever the version."""
    interval = args.check_idle_vnpu_interval
    if not 0 < interval <= INT32_MAX:
        raise SettingsError(f"-check_idle_vnpu_interval={interval}: must be above 0, in seconds")
    if abs(args.report_time_offset) > INT32_MAX:
        raise SettingsError(f"-report_time_offset={args.report_time_offset}: more than 68 years")
    if not -1 <= args.hw_loglevel <= 3:
        raise SettingsError(f"-hw_loglevel={args.hw_loglevel}: must be -1 to 3")
    if args.pulse < 0:
        raise SettingsError(f"-pulse={args.pulse}: must not be negative; 0 is off")
    if args.monitor_bind_address:
        bind_address(args.monitor_bind_address, MONITOR)
    if args.v < 0:
        raise SettingsError(f"-v={args.v}: must not be negative")


def _devices(given: SettingsInput) -> DeviceConfig:
    """The device configuration."""
    try:
        return load(given.read, given.args.config_file, deviceconfig.parse)
    except ConfigError as error:
        raise SettingsError(f"failed to load config from {error}") from error


def _node(given: SettingsInput) -> tuple[NodeConfig, tuple[str, ...]]:
    """What the node configuration says of this node; a warning where it cannot be read."""
    path = given.args.node_config_file
    if not path:
        return NodeConfig(), ("node config file not set (--node_config_file): no node is an exception",)
    try:
        return load(given.read, path, lambda data: nodeconfig.parse(data, given.node)), ()
    except ConfigError as error:
        return NodeConfig(), (f"failed to load node config from {error}; no node is an exception",)


def _directory(env: Mapping[str, str], name: str, default: str) -> str:
    """A directory of the node below its root, without a slash at the end."""
    path = env.get(name) or default
    plain = path.startswith("/") and path.isprintable() and not {".", ".."} & set(path.split("/"))
    if not plain or not path.strip("/"):
        raise SettingsError(f"{name}={shown(path)}: must be an absolute path of a directory below /")
    return path.rstrip("/")
