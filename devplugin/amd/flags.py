"""The AMD plugin's flags, environment and node annotations, resolved to one `Settings`.

Names, defaults and meanings are those of the vendor guide (guide-amd.md, amd.md 1.1 and 1.2); which
source wins and what is refused is decided in decisions 32 and 34.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence

from devplugin.amd.partitioning import MODES
from devplugin.amd.settings import MODE_CU, MODE_PARTITION, Settings
from devplugin.amd.uuid import normal_bdf
from devplugin.explain import DEFAULT, Choice, environment
from devplugin.settings import SettingsError, add_flag, go_bool, go_float, go_int, shown
from devplugin.vendor import SettingsInput

ANNOTATION_MODE = "hami.io/amd-operating-mode"
ANNOTATION_COMPUTE = "hami.io/amd-compute-partition"

POLICIES = ("besteffort", "binpack", "spread")
NAMINGS = ("single", "mixed")

MOST_SLOTS = 4096
"""Of one GPU: every slot of every GPU stands in each ListAndWatch list, and gRPC takes 4 MiB a message."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare every flag of the guide's table, and what it means, for `-help`."""
    group = parser.add_argument_group(
        "AMD GPUs",
        "environment: NODE_NAME (needed except with -dry_run), OPERATING_MODE (cu or partition, default cu), "
        "HOST_HOOK_PATH (host directory of vgpu/libamvgpu.so, the memory hook; the chart gives /usr/local).\n"
        "COMPUTE_PARTITION (spx, dpx, tpx, qpx or cpx: in partition mode idle GPUs are switched to it at the "
        "start), AMD_METRICS_EXPORTER_SOCKET (where AMD's metrics exporter is not at its own path).\n"
        f"node annotations, read once at start and stronger than the environment: {ANNOTATION_MODE}, "
        f"{ANNOTATION_COMPUTE}.",
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
    add_flag(
        group,
        "exclude_gpus",
        str,
        "",
        "GPUs this node keeps for itself: PCI addresses (0000:06:00.0) or DRM cards (card1), separated by "
        "commas or blanks",
    )
    add_flag(
        group,
        "device_memory_scaling",
        go_float,
        1.0,
        "factor on the registered memory of every shared GPU; above 1 pods get HIP_OVERSUBSCRIBE=true, and "
        "hipMalloc takes managed memory (needs XNACK on CDNA)",
    )
    add_flag(
        group,
        "report_node_capacity",
        go_bool,
        False,
        "publish memory (amd.com/gpumem, MiB) and CUs (amd.com/gpucores) of healthy GPUs as the node's "
        "capacity and allocatable; off removes them",
    )
    add_flag(
        group,
        "cdi_spec_dir",
        str,
        "",
        "write the CDI specification there and give containers CDI names instead of device nodes; "
        "empty: no CDI",
    )
    add_flag(
        group,
        "musl_fail_closed",
        go_bool,
        False,
        "experimental: look into a slice's image and refuse it when it cannot load the memory hook (musl, "
        "static, glibc before 2.34), unless dmem limits it",
    )
    add_flag(group, "ctr_path", str, "/usr/local/bin/ctr", "containerd's client, for -musl_fail_closed")
    add_flag(
        group,
        "containerd_socket",
        str,
        "/run/containerd/containerd.sock",
        "containerd's socket, for -musl_fail_closed",
    )
    add_flag(
        group,
        "hip_log_level",
        go_int,
        0,
        "log level of the memory hook in pods (LIBHIP_LOG_LEVEL): 1 errors, 2 warnings, 3 information, "
        "4 debugging; 0: the library's own",
    )
    add_flag(group, "install_hook", str, "", "SRC:DST: copy the hook library SRC to the node's DST, and exit")
    add_flag(group, "pulse", go_int, 0, "seconds between health checks of the GPUs; 0: none")


def resolve(given: SettingsInput) -> tuple[Settings, tuple[str, ...]]:
    """Settings from defaults, flags, environment and node annotations; warnings for what was ignored.

    Raises:
        SettingsError: A flag's value parses and cannot be served (decision 34).
    """
    args, env = given.args, given.env
    _check_range(args)
    _check_paths(args, env)
    mode, warnings = _choice(
        _sources(given, ANNOTATION_MODE, "OPERATING_MODE"), (MODE_CU, MODE_PARTITION), MODE_CU
    )
    compute, more = _choice(_sources(given, ANNOTATION_COMPUTE, "COMPUTE_PARTITION"), MODES, "")
    return (
        Settings(
            node_name=env.get("NODE_NAME", ""),
            mode=mode,
            compute_partition=compute,
            split_count=args.split_count,
            allocator_policy=args.allocator_policy or "besteffort",
            naming=args.resource_naming_strategy,
            dmem_backend=args.dmem_backend,
            exclude=_excluded(args.exclude_gpus),
            memory_scaling=args.device_memory_scaling,
            report_capacity=args.report_node_capacity,
            cdi_dir=args.cdi_spec_dir.rstrip("/"),
            musl_fail_closed=args.musl_fail_closed,
            hip_log_level=args.hip_log_level,
            pulse=args.pulse,
            exporter_socket=env.get("AMD_METRICS_EXPORTER_SOCKET", ""),
            hook_path=env.get("HOST_HOOK_PATH", "").rstrip("/"),
            verbosity=args.v,
        ),
        warnings + more,
    )


def choices(given: SettingsInput, settings: Settings) -> Mapping[str, Choice]:
    """Settings that have no flag, by the variable that usually gives them."""
    mode = _decided(_sources(given, ANNOTATION_MODE, "OPERATING_MODE"), (MODE_CU, MODE_PARTITION))
    compute = _decided(_sources(given, ANNOTATION_COMPUTE, "COMPUTE_PARTITION"), MODES)
    return {
        "operating_mode": Choice(settings.mode, mode),
        "compute_partition": Choice(settings.compute_partition, compute),
        "host_hook_path": environment("HOST_HOOK_PATH", settings.hook_path, given.env),
        "exporter_socket": environment("AMD_METRICS_EXPORTER_SOCKET", settings.exporter_socket, given.env),
    }


def _decided(sources: Iterable[tuple[str, str]], words: Sequence[str]) -> str:
    """Which source `_choice` took."""
    found = next((source for source, value in sources if value in words), "")
    if not found:
        return DEFAULT
    return found if found.startswith("annotation ") else f"environment {found}"


def _check_range(args: argparse.Namespace) -> None:
    """What can never be served, whatever the version."""
    if args.split_count < 0:
        raise SettingsError(f"-split_count={args.split_count}: must not be negative; 0 chooses per GPU")
    if args.split_count > MOST_SLOTS:
        raise SettingsError(
            f"-split_count={args.split_count}: must not be above {MOST_SLOTS}: "
            "kubelet takes no longer list of slots"
        )
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


def _check_paths(args: argparse.Namespace, env: Mapping[str, str]) -> None:
    """What becomes a path of the host must be one from its root."""
    paths = {"HOST_HOOK_PATH": env.get("HOST_HOOK_PATH", ""), "-cdi_spec_dir": args.cdi_spec_dir}
    for name, path in paths.items():
        if path and not _is_path(path):
            raise SettingsError(f"{name}={shown(path)}: must be an absolute path")
    if args.cdi_spec_dir and not args.cdi_spec_dir.strip("/"):
        raise SettingsError(f"-cdi_spec_dir={shown(args.cdi_spec_dir)}: name a directory below it")
    if args.musl_fail_closed:
        for name in ("ctr_path", "containerd_socket"):
            path = getattr(args, name)
            if not _is_path(path):
                raise SettingsError(f"-{name}={shown(path)}: must be an absolute path (-musl_fail_closed)")


def _is_path(path: str) -> bool:
    return path.startswith("/") and path.isprintable() and ".." not in path.split("/")


def _excluded(text: str) -> tuple[str, ...]:
    """The entries of -exclude_gpus in the kernel's spelling, each once (guide-amd.md, dp.excludeGPUs).

    The chart's value is a text or a list (decision 57), so commas and blanks both separate.
    """
    entries = (normal_bdf(word) for word in text.replace(",", " ").split())
    return tuple(dict.fromkeys(entry.lower() for entry in entries))


def _choice(
    sources: Iterable[tuple[str, str]], words: Sequence[str], default: str
) -> tuple[str, tuple[str, ...]]:
    """The first valid value, strongest source first, a warning for each that is none (decision 32)."""
    warnings: list[str] = []
    listed = f"{', '.join(words[:-1])} nor {words[-1]}"
    for source, value in sources:
        if value in words:
            return value, tuple(warnings)
        if value:
            warnings.append(f"{source}={shown(value)}: neither {listed}, ignored")
    return default, tuple(warnings)


def _sources(given: SettingsInput, annotation: str, variable: str) -> tuple[tuple[str, str], ...]:
    """The node annotation and, weaker, the environment variable (amd.md 13)."""
    return (
        (f"annotation {annotation}", (given.node_annotations or {}).get(annotation, "")),
        (variable, given.env.get(variable, "")),
    )
