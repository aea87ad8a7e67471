"""The dry run says of every setting what is in force and who decided it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from devplugin.amd.vendor import Amd
from devplugin.launch import main
from gpusim.fixture import load
from gpusim.machine import Machine

ERRANDS = ("root", "simulate", "kubelet_dir", "dry_run", "expect", "update", "junit", "install_hook")


def settings(*argv: str, **env: str) -> dict[str, dict[str, Any]]:
    out = io.StringIO()
    machine = Machine(load("mi355x/spx-6.14"))
    assert main(Amd(), ["-dry_run", *argv], host=machine, env=env, out=out) == 0  # type: ignore[arg-type]
    found = json.loads(out.getvalue())["settings"]
    assert isinstance(found, dict)
    return found


BEFORE = settings()


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("split_count", 7),
        ("allocator_policy", "spread"),
        ("resource_naming_strategy", "mixed"),
        ("dmem_backend", False),
        ("exclude_gpus", "card1"),
        ("device_memory_scaling", 1.5),
        ("report_node_capacity", True),
        ("cdi_spec_dir", "/var/run/cdi"),
        ("musl_fail_closed", True),
        ("ctr_path", "/opt/ctr"),
        ("containerd_socket", "/run/other.sock"),
        ("hip_log_level", 3),
        ("pulse", 10),
        ("metrics_bind_address", ":9395"),
        ("v", 4),
    ],
)
def test_a_flag_changes_exactly_its_own_setting(flag: str, value: Any) -> None:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    now = settings(f"-{flag}={text}")
    assert {name for name in now if now[name] != BEFORE[name]} == {flag}
    assert now[flag] == {"value": value, "source": "flag"}
    assert BEFORE[flag]["source"] == "default"


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("OPERATING_MODE", "partition", "operating_mode"),
        ("COMPUTE_PARTITION", "qpx", "compute_partition"),
        ("HOST_HOOK_PATH", "/usr/local", "host_hook_path"),
        ("AMD_METRICS_EXPORTER_SOCKET", "/run/exporter.sock", "exporter_socket"),
    ],
)
def test_a_variable_changes_exactly_its_own_setting(variable: str, value: str, name: str) -> None:
    now = settings(**{variable: value})
    assert {key for key in now if now[key] != BEFORE[key]} == {name}
    assert now[name] == {"value": value, "source": f"environment {variable}"}


def test_a_value_that_is_refused_leaves_the_default_in_force() -> None:
    assert settings(OPERATING_MODE="Partition")["operating_mode"] == {"value": "cu", "source": "default"}


def test_a_flag_that_repeats_the_default_is_a_choice_all_the_same() -> None:
    assert settings("-split_count=0")["split_count"] == {"value": 0, "source": "flag"}


def test_where_to_look_and_what_to_do_are_no_settings() -> None:
    assert not set(ERRANDS) & set(BEFORE)
