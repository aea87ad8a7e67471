"""The AMD plugin's flags, environment and node annotations, resolved to one `Settings`.

Names, defaults and meanings are those of the vendor guide (guide-amd.md, amd.md 1.1 and 1.2); which
source wins and what is refused is decided in decisions 32 and 34. Flags whose work comes later are
parsed, and refused with "not yet" unless they are left at their default.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from devplugin.amd.settings import MODE_CU, MODE_PARTITION, Settings
from devplugin.settings import Later, SettingsError, add_flag, go_bool, go_float, go_int, shown
from devplugin.vendor import SettingsInput

ANNOTATION_MODE = "hami.io/amd-operating-mode"
ANNOTATION_COMPUTE = "hami.io/amd-compute-partition"

POLICIES = ("besteffort", "binpack", "spread")
NAMINGS = ("single", "mixed")

_LATER = (
    Later("exclude_gpus", ""),
    Later("device_memory_scaling", 1.0),
    Later("report_node_capacity", False),
    Later("cdi_spec_dir", ""),
    Later("musl_fail_closed", False),
    Later("hip_log_level", 0),
    Later("pulse", 0),
    Later("install_hook", ""),
)
"""Known, refused when set. What only serves one of them (`ctr_path`, `containerd_socket`) is accepted."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare every flag of the guide's table, and what it means, for `-help`."""
    group = parser.add_argument_group(
        "AMD GPUs",
        "environment: NODE_NAME (needed except with -dry_run), OPERATING_MODE (cu or partition, default cu), "
        "HOST_HOOK_PATH (host directory of vgpu/libamvgpu.so, the memory hook; the chart gives /usr/local).\n"
        f"node annotation, read once at start and stronger than OPERATING_MODE: {ANNOTATION_MODE}.",
    )
    add_flag(group, "split_count", go_int, 0, "pods that may share one GPU; 0: 2 on gfx12 and later, else 10")
    add_flag(
        group,
        "allocator_policy",
        str,
        "besteffort",
        "which GPUs kubelet gets for a pod of several: besteffort, also called binpack (nearest), or spread",
    )
    add_flag(
        group,
        "resource_naming_strategy",
        str,
        "single",
        "single: all is amd.com/gpu; mixed: amd.com/<compute>_<memory> for GPUs that can be partitioned",
    )
    add_flag(
        group, "dmem_backend", go_bool, True, "also limit VRAM of slices by the kernel's dmem controller"
    )
    later = parser.add_argument_group(
        "AMD GPUs, not yet: known, accepted at their default, refused otherwise"
    )
    add_flag(later, "exclude_gpus", str, "", "PCI addresses or DRM cards this node keeps for itself")
    add_flag(later, "device_memory_scaling", go_float, 1.0, "factor on the registered memory of every GPU")
    add_flag(later, "report_node_capacity", go_bool, False, "publish amd.com/gpumem and amd.com/gpucores")
    add_flag(later, "cdi_spec_dir", str, "", "directory for the CDI specification; empty: no CDI")
    add_flag(later, "musl_fail_closed", go_bool, False, "refuse slices whose image cannot load the hook")
    add_flag(later, "ctr_path", str, "/usr/local/bin/ctr", "containerd's client, for -musl_fail_closed")
    add_flag(
        later,
        "containerd_socket",
        str,
        "/run/containerd/containerd.sock",
        "containerd's socket, for -musl_fail_closed",
    )
    add_flag(later, "hip_log_level", go_int, 0, "log level 0..4 of the memory hook in pods")
    add_flag(later, "pulse", go_int, 0, "seconds between health checks; 0: none")
    add_flag(later, "install_hook", str, "", "SRC:DST: copy the hook library to the node, and exit")


def resolve(given: SettingsInput) -> tuple[Settings, tuple[str, ...]]:
    """Settings from defaults, flags, environment and node annotations; warnings for what was ignored.

    Raises:
        SettingsError: A flag's value parses and cannot be served (decision 34).
    """
    args, env = given.args, given.env
    _check_range(args)
    for flag in _LATER:
        Later(f"-{flag.name}", flag.default).check(getattr(args, flag.name))
    Later("COMPUTE_PARTITION", "").check(env.get("COMPUTE_PARTITION", ""))

    annotations = given.node_annotations or {}
    mode, warnings = _mode(env, annotations)
    compute = annotations.get(ANNOTATION_COMPUTE, "")
    if compute:
        warnings += (f"annotation {ANNOTATION_COMPUTE}={shown(compute)}: not yet supported, ignored",)
    return (
        Settings(
            node_name=env.get("NODE_NAME", ""),
            mode=mode,
            split_count=args.split_count,
            allocator_policy=args.allocator_policy or "besteffort",
            naming=args.resource_naming_strategy,
            dmem_backend=args.dmem_backend,
            pulse=args.pulse,
            hook_path=env.get("HOST_HOOK_PATH", "").rstrip("/"),
            verbosity=args.v,
        ),
        warnings,
    )


def _check_range(args: argparse.Namespace) -> None:
    """What can never be served, whatever the version."""
    if args.split_count < 0:
        raise SettingsError(f"-split_count={args.split_count}: must not be negative; 0 chooses per GPU")
    if args.allocator_policy not in ("", *POLICIES):
        raise SettingsError(
            f"-allocator_policy={shown(args.allocator_policy)}: use one of {', '.join(POLICIES)}"
        )
    if args.resource_naming_strategy not in NAMINGS:
        given = shown(args.resource_naming_strategy)
        raise SettingsError(f"-resource_naming_strategy={given}: use one of {', '.join(NAMINGS)}")
    scaling = args.device_memory_scaling
    if not 0 < scaling < float("inf"):
        raise SettingsError(f"-device_memory_scaling={scaling}: must be a finite number above 0")
    if not 0 <= args.hip_log_level <= 4:
        raise SettingsError(f"-hip_log_level={args.hip_log_level}: must be 0 to 4")
    if args.pulse < 0:
        raise SettingsError(f"-pulse={args.pulse}: must not be negative; 0 is off")
    if args.v < 0:
        raise SettingsError(f"-v={args.v}: must not be negative")


def _mode(env: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The strongest valid source: annotation, environment, default (amd.md 13, decision 32)."""
    warnings: list[str] = []
    for source, value in (
        (f"annotation {ANNOTATION_MODE}", annotations.get(ANNOTATION_MODE, "")),
        ("OPERATING_MODE", env.get("OPERATING_MODE", "")),
    ):
        if value in (MODE_CU, MODE_PARTITION):
            return value, tuple(warnings)
        if value:
            warnings.append(f"{source}={shown(value)}: neither {MODE_CU} nor {MODE_PARTITION}, ignored")
    return MODE_CU, tuple(warnings)
