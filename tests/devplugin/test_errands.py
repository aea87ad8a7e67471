"""`-check` finds what is missing with its remedy; `-cleanup` takes back what the API server was told."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devplugin.amd.vendor import Amd
from devplugin.launch import main
from devplugin.ppu.vendor import Ppu
from devplugin.rights import PLUGIN
from gpusim.cluster.apifaults import Fault
from gpusim.cluster.apiserver import ApiServer
from gpusim.fixture import load
from gpusim.machine import Machine

NODE = "n1"


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer(0)
    server.start()
    server.store.create("nodes", {"metadata": {"name": NODE}})
    yield server
    server.stop()


@pytest.fixture
def plugins(tmp_path: Path) -> Iterator[Path]:
    """kubelet's directory, and somebody who answers on its socket."""
    directory = tmp_path / "p"
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(directory / "kubelet.sock"))
        kubelet.listen()
        yield directory


def machine() -> Machine:
    one = Machine(load("mi355x/spx-6.14"))
    one.mkdir("/usr/local/vgpu")
    one.put("/usr/local/vgpu/libamvgpu.so", b"hook")
    return one


def run(api: ApiServer, tmp_path: Path, *words: str, host: Any = None, **env: str) -> tuple[int, str]:
    config = api.kubeconfig(tmp_path / "kubeconfig")
    given = {"NODE_NAME": NODE, "HOST_HOOK_PATH": "/usr/local", "KUBECONFIG": str(config), **env}
    out = io.StringIO()
    status = main(Amd(), words, host=host or machine(), env=given, out=out)  # type: ignore[arg-type]
    return status, out.getvalue()


def checks(api: ApiServer, tmp_path: Path, plugins: Path, **more: Any) -> tuple[int, dict[str, Any]]:
    status, said = run(api, tmp_path, "-check", "-json", "-kubelet_dir", str(plugins), **more)
    return status, {one["name"]: one for one in json.loads(said)["checks"]}


def test_a_node_that_is_ready_has_nothing_missing(api: ApiServer, tmp_path: Path, plugins: Path) -> None:
    status, found = checks(api, tmp_path, plugins)
    assert status == 0
    assert {one["verdict"] for one in found.values()} == {"ok"}
    assert found["devices to offer"]["found"] == "amd.com/gpu: 80"
    assert {f"right {right}" for right in PLUGIN} <= set(found)
    assert api.store.get("nodes", NODE)["metadata"].get("annotations", {}) == {}, "nothing is written"


@pytest.mark.parametrize("right", PLUGIN, ids=str)
def test_a_right_that_is_not_granted_is_named_with_its_remedy(
    api: ApiServer, tmp_path: Path, plugins: Path, right: Any
) -> None:
    kind, _, sub = right.resource.partition("/")
    api.faults.add(Fault(verb=right.verb, resource=kind, subresource=sub, code=403, times=None))
    _, found = checks(api, tmp_path, plugins)
    one = found[f"right {right}"]
    assert one["found"] == "not granted"
    assert f"grant verb {right.verb!r} on {right.resource!r}" in one["remedy"]
    assert right.purpose in one["remedy"]


def test_no_right_is_asked_for_that_a_vendors_plugin_never_uses(
    api: ApiServer, tmp_path: Path, plugins: Path
) -> None:
    """A PPU plugin publishes no capacity; its chart grants no `nodes/status`, and nothing is missing."""
    config = api.kubeconfig(tmp_path / "kubeconfig")
    out = io.StringIO()
    main(
        Ppu(),
        ["-check", "-json", "-kubelet_dir", str(plugins)],
        host=Machine(load("ppu/zw810e-1")),  # type: ignore[arg-type]
        env={"NODE_NAME": NODE, "KUBECONFIG": str(config)},
        out=out,
    )
    asked = {one["name"] for one in json.loads(out.getvalue())["checks"] if one["name"].startswith("right ")}
    assert asked == {f"right {right}" for right in PLUGIN if right.resource != "nodes/status"}


def test_what_pods_need_is_missing_and_what_only_people_read_is_a_warning(
    api: ApiServer, tmp_path: Path, plugins: Path
) -> None:
    for resource, verb, status in (("events", "create", 0), ("pods", "patch", 1)):
        api.faults.add(Fault(verb=verb, resource=resource, code=403, times=None))
        assert checks(api, tmp_path, plugins)[0] == status


@pytest.mark.parametrize(
    ("words", "verdict", "status"), [((), "warning", 0), (("-dmem_backend=false",), "missing", 1)]
)
def test_a_hook_is_missing_where_nothing_else_would_limit_a_slice(
    api: ApiServer, tmp_path: Path, plugins: Path, words: tuple[str, ...], verdict: str, status: int
) -> None:
    bare = Machine(load("mi355x/spx-6.14"))
    given = ("-check", "-json", "-kubelet_dir", str(plugins), *words)
    ended, said = run(api, tmp_path, *given, host=bare)
    found = {one["name"]: one for one in json.loads(said)["checks"]}
    assert (found["memory hook"]["verdict"], ended) == (verdict, status)
    assert ("every slice is refused" in found["memory hook"]["found"]) == (status == 1)


def test_without_kubelet_and_node_the_remedies_say_what_to_do(api: ApiServer, tmp_path: Path) -> None:
    status, said = run(api, tmp_path, "-check", "-kubelet_dir", str(tmp_path / "none"), NODE_NAME="elsewhere")
    assert status == 1
    assert f"{tmp_path}/none is no directory" in said
    assert "the cluster has no node elsewhere" in said
    assert said.rstrip().endswith("warnings")


def test_a_driver_that_is_not_loaded_is_missing(api: ApiServer, tmp_path: Path, plugins: Path) -> None:
    bare = machine()
    bare.unload()
    status, found = checks(api, tmp_path, plugins, host=bare)
    assert status == 1
    assert found["driver"]["verdict"] == "missing"
    assert "load amdgpu" in found["driver"]["remedy"]
    assert found["devices to offer"]["verdict"] == "missing"


def test_a_check_opens_no_compute_interface(api: ApiServer, tmp_path: Path, plugins: Path) -> None:
    """An open /dev/kfd blocks every partition switch of the node (decision 28)."""

    class Watching(Machine):
        def probe(self, path: str, access: str = "rw") -> None:
            assert path != "/dev/kfd"
            super().probe(path, access)

    one = Watching(load("mi355x/spx-6.14"))
    _, found = checks(api, tmp_path, plugins, host=one)
    assert found["compute interface"]["verdict"] == "ok"
    assert found["/dev/dri/renderD128"]["verdict"] == "ok"


def test_a_socket_that_nobody_answers_on_is_no_kubelet(api: ApiServer, tmp_path: Path) -> None:
    directory = tmp_path / "dead"
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "kubelet.sock"))
    _, found = checks(api, tmp_path, directory)
    assert found["kubelet socket"]["verdict"] == "missing"


def test_cleanup_removes_what_the_plugin_wrote_and_nothing_else(
    api: ApiServer, tmp_path: Path, plugins: Path
) -> None:
    api.store.patch(
        "nodes", NODE, {"metadata": {"annotations": {"hami.io/node-amd-register": "[]", "other": "kept"}}}
    )
    status = {"capacity": {"amd.com/gpumem": "1", "cpu": "8"}, "allocatable": {"amd.com/gpumem": "1"}}
    api.store.patch("nodes", NODE, {"status": status}, subresource="status")
    words = ("-cleanup", "-kubelet_dir", str(plugins))
    assert run(api, tmp_path, *words) == (
        0,
        "annotation hami.io/node-amd-register removed\ncapacity amd.com/gpumem removed\n",
    )
    node = api.store.get("nodes", NODE)
    assert node["metadata"]["annotations"] == {"other": "kept"}
    assert node["status"]["capacity"] == {"cpu": "8"}
    assert run(api, tmp_path, *words) == (0, f"node {NODE}: nothing of ours is left\n")


def test_cleanup_of_a_plugin_that_still_answers_is_refused(
    api: ApiServer, tmp_path: Path, plugins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.store.patch("nodes", NODE, {"metadata": {"annotations": {"hami.io/node-amd-register": "[]"}}})
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(plugins / "amd.com_gpu-1-deadbeef.sock"))
        alive.listen()
        assert run(api, tmp_path, "-cleanup", "-kubelet_dir", str(plugins))[0] == 1
    assert "uninstall it first" in capsys.readouterr().err
    assert api.store.get("nodes", NODE)["metadata"]["annotations"]


def test_cleanup_without_the_right_says_which_verb_on_which_resource(
    api: ApiServer, tmp_path: Path, plugins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.store.patch("nodes", NODE, {"metadata": {"annotations": {"hami.io/node-amd-register": "[]"}}})
    api.faults.add(Fault(verb="patch", resource="nodes", code=403, times=None))
    assert run(api, tmp_path, "-cleanup", "-kubelet_dir", str(plugins))[0] == 1
    assert "grant verb 'patch' on 'nodes'" in capsys.readouterr().err
