"""Installed without the extra `daemon`, a program names it in one line and never in a traceback."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from devplugin import extras

from ..conftest import ROOT

CONFIG = str(ROOT / "deploy/examples/ascend-device-config.yaml")


def without(module: str, function: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A console script where a module is not installed."""
    code = (
        f"import sys; sys.modules[{module!r}] = None; from devplugin.launch import {function}; "
        f"sys.exit({function}(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"NODE_NAME": "n", "DS_NODE_NAME": "n", "HOME": "/nowhere", "PATH": "/usr/bin:/bin"},
        cwd=ROOT,
    )


@pytest.mark.parametrize(
    ("function", "module", "words"),
    [
        ("amd_device_plugin", "grpc", ()),
        ("amd_device_plugin", "kubernetes", ("-cleanup",)),
        ("ascend_device_plugin", "yaml", ("-config_file", CONFIG, "-dry_run")),
        ("ascend_device_plugin", "structlog", ("-config_file", CONFIG)),
        ("ppu_device_plugin", "kubernetes", ("-check",)),
        ("vgpu_monitor", "prometheus_client", ("-metrics_bind_address=127.0.0.1:0",)),
        ("node_labeller", "structlog", ("-vram",)),
    ],
)
def test_a_module_that_is_not_installed_is_named_with_its_extra(
    function: str, module: str, words: tuple[str, ...]
) -> None:
    done = without(module, function, "-simulate", "ppu/zw810e-1", *words)
    name = function.replace("_", "-")
    assert (done.returncode, done.stderr) == (
        1,
        f"{name}: this needs {module}: pip install 'gpusim[daemon]'\n",
    )


def test_a_dry_run_needs_nothing_that_only_serving_needs() -> None:
    done = without("grpc", "ppu_device_plugin", "-simulate", "ppu/zw810e-1", "-dry_run")
    assert done.returncode == 0, done.stderr


def test_a_missing_module_of_our_own_stays_a_mistake() -> None:
    @extras.daemon
    def program() -> int:
        raise ModuleNotFoundError("No module named 'devplugin.nosuch'", name="devplugin.nosuch")

    with pytest.raises(ModuleNotFoundError, match="nosuch"):
        program()


def test_every_package_of_the_extra_is_known() -> None:
    project = tomllib.loads(Path(ROOT / "pyproject.toml").read_text())["project"]
    packages = {line.split(">")[0].replace("-", "_") for line in project["optional-dependencies"]["daemon"]}
    other = {"grpcio": "grpc", "protobuf": "google", "pyelftools": "elftools", "pyyaml": "yaml"}
    assert {other.get(name, name) for name in packages} == extras.MODULES
