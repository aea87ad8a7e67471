"""The files of the image, laid out without Docker: every program runs from them and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

from .engine import AMD, NAMES, ROOT, Strict, container, needs_helm, objects, plugin

IMAGE = ROOT / "deploy" / "image"
MACHINES = {"amd64": 62, "arm64": 183}
PROGRAMS = {
    name
    for name, entry in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].items()
    if entry.startswith("devplugin.")
}
LINKS = {
    "k8s-device-plugin": "amd-device-plugin",
    "k8s-vgpu-monitor": "vgpu-monitor",
    "k8s-node-labeller": "node-labeller",
}


def library(path: Path, arch: str) -> None:
    """The head of a shared library, and no more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + MACHINES[arch].to_bytes(2, "little") + bytes(44)
    )


def inputs(folder: Path, arch: str = "amd64", built_for: str | None = None) -> Path:
    """Hook libraries as somebody lays them for a build."""
    for name in ("libamvgpu.so", "libvnpu.so", "ppu-hami-core/libppu.so"):
        library(folder / arch / name, built_for or arch)
    (folder / arch / "ppu-hami-core" / "ld.so.preload").write_text("/ppu-hami-core/libppu.so\n")
    return folder


def layout(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, IMAGE / "layout", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("image") / "root"
    done = layout(root, "--hooks", inputs(tmp_path_factory.mktemp("hooks")), "--lend")
    assert done.returncode == 0, done.stderr
    return root


def ran(tree: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of the tree, found as in a container; Python is the only thing it takes from outside."""
    path = f"{tree}/usr/local/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
    program = next(
        str(place)
        for folder in path.split(":")
        if (place := Path(folder, words[0]) if "/" not in words[0] else Path(f"{tree}{words[0]}")).exists()
    )
    return subprocess.run(
        [program, *words[1:]],
        env={"PATH": path, **(env or {})},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("name", sorted(PROGRAMS | set(LINKS)))
def test_every_program_explains_itself_under_its_own_and_the_vendors_name(tree: Path, name: str) -> None:
    done = ran(tree, name, "-help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {LINKS.get(name, name)} ")


def test_the_tree_holds_the_locked_packages_and_this_project_and_no_other(tree: Path) -> None:
    lib = tree / "opt/device-plugins/lib"
    found = {
        one.metadata["Name"].lower().replace("_", "-"): one.version for one in distributions(path=[str(lib)])
    }
    lock = (ROOT / "bin/lock/daemon.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    assert found.pop("gpusim")
    assert found == locked
    assert not {"hypothesis", "pytest", "rich", "setuptools"} & set(found)


def test_the_lock_of_the_image_agrees_with_that_of_the_tests() -> None:
    def pins(name: str) -> dict[str, str]:
        text = (ROOT / "bin/lock" / name).read_text()
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))

    for name in ("daemon.txt", "build.txt"):
        assert pins(name).items() <= pins("dev.txt").items(), "run bin/lock/update"


def test_links_hold_wherever_the_tree_is(tree: Path) -> None:
    for path in (tree / "usr/local/bin").iterdir():
        assert not path.readlink().is_absolute()
        assert path.resolve().is_relative_to(tree.resolve())
        assert os.access(path, os.X_OK)


def commands() -> dict[str, list[str]]:
    """Whatever a chart or the labeller's manifest runs, by its first word."""
    pods = [
        container(document)
        for name in NAMES
        for given in ({}, {"monitor": {"enabled": True}} if name == AMD else {})
        for (kind, _), document in objects(name, given).items()
        if kind == "DaemonSet"
    ]
    manifest = (ROOT / "deploy" / "k8s-ds-amdgpu-labeller.yaml").read_text()
    pods += [container(d) for d in yaml.load_all(manifest, Strict) if d["kind"] == "DaemonSet"]
    found = {pod["command"][0]: pod["args"] for pod in pods}
    for pod in pods:
        hook: dict[str, Any] = pod.get("lifecycle", {}).get("postStart", {})
        if hook:
            found[hook["exec"]["command"][0]] = hook["exec"]["command"][1:]
    return found


@needs_helm
def test_every_command_of_charts_and_manifest_is_in_the_tree(tree: Path) -> None:
    found = commands()
    assert {"k8s-device-plugin", "k8s-vgpu-monitor", "k8s-node-labeller", "ascend-device-plugin"} <= set(
        found
    )
    there = {path.name for path in (tree / "usr/local/bin").iterdir()}
    for command in found:
        inside = tree / command.lstrip("/") if "/" in command else tree / "usr/local/bin" / command
        assert inside.name in there or inside.exists(), command


@needs_helm
def test_the_amd_plugin_of_the_tree_takes_what_the_chart_passes(tree: Path) -> None:
    pod = container(plugin(AMD, {"dp": {"operatingMode": "partition", "splitCount": 3}}))
    env = {one["name"]: one.get("value", "node") for one in pod["env"]}
    done = ran(tree, *pod["command"], *pod["args"], "-simulate", "mi355x/qpx-6.14", "-dry_run", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mode"] == "partition"


@needs_helm
def test_what_the_chart_runs_after_the_start_installs_the_hook(tree: Path, tmp_path: Path) -> None:
    given = {"dp": {"hostHookPath": str(tmp_path)}}
    command = container(plugin(AMD, given))["lifecycle"]["postStart"]["exec"]["command"]
    source = tree / "opt/hami/lib/amd/libamvgpu.so"
    done = ran(tree, *command, env={"AMD_VGPU_HOOK_SOURCE": str(source)})
    assert done.returncode == 0, done.stderr
    installed = tmp_path / "vgpu" / "libamvgpu.so"
    assert installed.read_bytes() == source.read_bytes()
    assert installed.stat().st_mode & 0o777 == 0o555


def test_the_initialiser_names_the_place_where_the_image_has_the_hook_and_asks_for_a_directory(
    tree: Path,
) -> None:
    text = (IMAGE / "amd-vgpu-init.sh").read_text()
    (source,) = re.findall(r"AMD_VGPU_HOOK_SOURCE:-([^}]+)\}", text)
    assert (tree / source.lstrip("/")).is_file()
    done = ran(tree, "/opt/hami/bin/amd-vgpu-init.sh")
    assert done.returncode != 0
    assert "usage" in done.stderr


def test_ascends_library_lies_where_its_plugin_looks_with_the_line_that_preloads_it(tree: Path) -> None:
    from devplugin.ascend.settings import ASSETS

    folder = tree / ASSETS.lstrip("/")
    assert (folder / "libvnpu.so").is_file()
    assert (folder / "ld.so.preload").read_text() == "/hami-vnpu-core/libvnpu.so\n"


def test_ppus_library_lies_where_its_plugin_looks(tree: Path) -> None:
    from devplugin.ppu.words import ASSETS, INSIDE, PRELOAD

    folder = tree / ASSETS.lstrip("/")
    named = (folder / PRELOAD).read_text().split()
    assert named
    assert all((folder / name.removeprefix(f"{INSIDE}/")).is_file() for name in named)


# What is missing, or is for another machine


def test_a_hook_library_that_is_not_there_is_named_with_what_to_do_and_nothing_is_made(
    tmp_path: Path,
) -> None:
    folder = inputs(tmp_path / "hooks")
    (folder / "amd64" / "libvnpu.so").unlink()
    (folder / "amd64" / "ppu-hami-core" / "libppu.so").unlink()
    done = layout(tmp_path / "root", "--hooks", folder, "--lend")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert str(folder / "amd64" / "libvnpu.so") in lines[0]
    assert str(folder / "amd64" / "ppu-hami-core") in lines[1]
    assert all("--vendors" in line and "missing" in line for line in lines)
    assert not (tmp_path / "root").exists()


def test_ppus_library_needs_the_list_that_names_it(tmp_path: Path) -> None:
    folder = inputs(tmp_path / "hooks")
    (folder / "amd64" / "ppu-hami-core" / "ld.so.preload").unlink()
    done = layout(tmp_path / "root", "--hooks", folder, "--lend")
    assert done.returncode == 1
    assert "ppu-hami-core/ld.so.preload: missing" in done.stderr


def test_a_library_for_another_machine_is_refused(tmp_path: Path) -> None:
    folder = inputs(tmp_path / "hooks", "arm64", built_for="amd64")
    done = layout(tmp_path / "root", "--hooks", folder, "--arch", "arm64", "--vendors", "amd", "--lend")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("libamvgpu.so: built for amd64, wanted arm64")


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\necho no library\n", b"\x7fELF"])
def test_a_file_that_is_no_library_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = inputs(tmp_path / "hooks")
    (folder / "amd64" / "libamvgpu.so").write_bytes(content)
    done = layout(tmp_path / "root", "--hooks", folder, "--lend")
    assert done.returncode == 1
    assert "no shared library" in done.stderr


def test_a_vendor_that_is_left_out_needs_no_library(tmp_path: Path) -> None:
    library(tmp_path / "hooks" / "arm64" / "libvnpu.so", "arm64")
    words = ("--hooks", tmp_path / "hooks", "--arch", "arm64", "--vendors", "ascend", "--lend")
    done = layout(tmp_path / "root", *words)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "root").glob("**/libamvgpu.so"))
    assert list((tmp_path / "root").glob("**/libvnpu.so"))


def test_an_unknown_vendor_and_a_directory_in_use_are_refused(tmp_path: Path) -> None:
    folder = inputs(tmp_path / "hooks")
    assert "nvidia" in layout(tmp_path / "root", "--hooks", folder, "--vendors", "amd,nvidia").stderr
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    assert "not empty" in layout(tmp_path / "used", "--hooks", folder).stderr


# The Dockerfile


def test_the_dockerfile_copies_what_is_there_and_what_the_context_keeps() -> None:
    text = (IMAGE / "Dockerfile").read_text()
    kept = {
        line[1:] for line in (IMAGE / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"
    }
    copied = [
        word
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for word in line.split()[:-1]
    ]
    assert set(copied) == kept
    for name in copied:
        assert (ROOT / name).exists(), name


def test_what_the_layout_takes_from_the_checkout_is_in_the_context() -> None:
    kept = {
        line[1:] for line in (IMAGE / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"
    }
    text = (IMAGE / "layout").read_text()
    (files,) = re.findall(r'for name in \(("pyproject[^)]+)\)', text)
    (folders,) = re.findall(r'for name in \(("devplugin[^)]+)\)', text)
    assert set(re.findall(r'"([^"]+)"', files + folders)) <= kept


def test_both_stages_have_one_slim_base_and_the_last_one_gets_the_tree_only() -> None:
    text = (IMAGE / "Dockerfile").read_text()
    assert len(set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))) == 1
    assert "-slim" in text.split("FROM ")[1].splitlines()[0]
    last = text.rpartition("\nFROM ")[2]
    assert re.findall(r"^(?:COPY|RUN|ADD) .*$", last, re.MULTILINE) == ["COPY --from=build /out/ /"]


def test_hook_libraries_are_never_committed() -> None:
    done = subprocess.run(
        ["git", "check-ignore", "deploy/image/hooks/amd64/libamvgpu.so"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if done.returncode == 128:
        pytest.skip("no git checkout")
    assert done.returncode == 0
