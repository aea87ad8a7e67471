"""The pytest plugin: simulated nodes as fixtures, and the node with its trace in the report of a failure.

Pytest loads this file in every run where the package is installed, so it imports pytest and nothing else
until a test asks for one of its fixtures; Hypothesis and gRPC it never imports unasked. It is safe under
pytest-xdist (workers share nothing but ``--gpusim-traces``, where each test has a file of its own) and
beside pyfakefs (fixtures are read from, and traces written to, the real disk). ``-p no:gpusim`` turns it off.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpusim.testing import witness

if TYPE_CHECKING:
    from gpusim.cluster.apiserver import ApiServer
    from gpusim.cluster.kubelet import Kubelet
    from gpusim.testing.surroundings import PluginProcess, Surroundings
    from gpusim.testing.used import Used

_MOST_NODES = 3
_LAST_CALLS = 12
_AROUND: pytest.StashKey[Surroundings] = pytest.StashKey()
_TRACES: pytest.StashKey[Path] = pytest.StashKey()
_EXTRAS = {"yaml": "sim", "grpc": "daemon", "google.protobuf": "daemon", "kubernetes": "daemon"}
"""Module → the extra that brings it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where traces go."""
    parser.getgroup("gpusim", "simulated accelerator nodes").addoption(
        "--gpusim-traces",
        metavar="DIR",
        help="keep the traces of failed tests here (default: a temporary directory)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker, for runs with --strict-markers."""
    config.addinivalue_line(
        "markers",
        "machine(source, *, faults=Plan()): what the fixture `machine` gives: the name or path of a node's "
        "description, or a NodeSpec; and what goes wrong on it",
    )


# Nodes


@pytest.fixture(scope="session")
def make_machine() -> Callable[..., Used]:
    """A function that makes nodes: ``make_machine("mi355x/qpx-6.14")``, also from a spec, also with faults.

    Of session scope, so that a test with ``@given`` may use it: each example makes its own nodes.
    """
    _need("make_machine", "yaml")

    def make(*args: Any, **named: Any) -> Used:
        with _real_files():
            from gpusim.testing.used import make

            return make(*args, **named)

    return make


@pytest.fixture
def machine(request: pytest.FixtureRequest, make_machine: Callable[..., Used]) -> Used:
    """The node that ``@pytest.mark.machine(…)`` names, or an indirect parameter; an 8-GPU MI355X otherwise.

    For a test without ``@given``: pytest makes it once a test, not once an example.
    """
    if hasattr(request, "param"):
        return make_machine(request.param)
    mark = request.node.get_closest_marker("machine")
    if mark is None:
        return make_machine()
    try:
        return make_machine(*mark.args, **mark.kwargs)
    except TypeError as error:
        raise pytest.UsageError(f"{request.node.nodeid}: @pytest.mark.machine: {error}") from error


# What stands around a node


@pytest.fixture
def _around(request: pytest.FixtureRequest) -> Iterator[Surroundings]:
    from gpusim.testing.surroundings import Surroundings

    with Surroundings() as around:
        request.node.stash[_AROUND] = around
        yield around


@pytest.fixture
def apiserver(_around: Surroundings) -> Iterator[ApiServer]:
    """An API server (`gpusim.cluster.apiserver`) with one node object, ``node-1``, on a port of its own."""
    from gpusim.cluster.apiserver import ApiServer
    from gpusim.testing.surroundings import NODE

    with ApiServer() as server:
        server.store.create("nodes", {"metadata": {"name": NODE}})
        server.kubeconfig(_around.kubeconfig)
        yield server


@pytest.fixture
def _served(_around: Surroundings, machine: Used) -> Iterator[str]:
    from gpusim.serve import Server

    server: Any = Server(machine, str(_around.socket))  # type: ignore[arg-type]  # a machine by its calls
    server.lock = machine.lock
    with server:
        yield server.path


@pytest.fixture
def kubelet(_around: Surroundings, machine: Used, apiserver: ApiServer, _served: str) -> Iterator[Kubelet]:
    """The kubelet of ``node-1``: pods bound to it get devices, cgroups and processes on `machine`.

    Needs the extra ``daemon`` (gRPC).
    """
    _need("kubelet", "grpc", "google.protobuf")
    from gpusim.cluster.kubelet import Kubelet
    from gpusim.cluster.podcgroups import Layout
    from gpusim.remote import RemoteMachine
    from gpusim.testing.surroundings import NODE

    remote = RemoteMachine(_served)
    running = Kubelet(
        _around.kubelet,
        node=NODE,
        api=apiserver.url,
        numa_nodes=range(machine.spec.cpus.nodes),
        poll_seconds=0.05,
        machine=remote,
        layout=Layout(driver=machine.spec.cgroup_driver),
    )
    try:
        with running:
            yield running
    finally:
        remote.disconnect()


@pytest.fixture
def plugin_process(_around: Surroundings, kubelet: Kubelet) -> Callable[..., PluginProcess]:
    """Start a device plugin as a process of its own: ``plugin_process(*flags, command=None, env=None)``.

    Without `command` it is the AMD plugin, on `machine`, with `kubelet` and `apiserver`; needs the extra
    ``daemon``. See `gpusim.testing.surroundings.Surroundings.start`.
    """
    _need("plugin_process", "kubernetes")
    return _around.start


def _need(fixture: str, *modules: str) -> None:
    """Fail with the remedy where an extra is absent; a test that cannot run must not look green."""
    for module in modules:
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            extra = _EXTRAS[module]
            pytest.fail(f"the fixture {fixture} needs {module}: pip install 'gpusim[{extra}]'", pytrace=False)


# The report of a failure


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No node has been used yet."""
    witness.forget()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the nodes of a failed test, and what the plugin processes printed."""
    report = yield
    if report.failed:
        with _real_files():
            for place, node in enumerate(witness.nodes()[-_MOST_NODES:]):
                report.sections.append(("simulated node", _told(item, node, place)))
            around = item.stash.get(_AROUND, None)
            for process in around.processes if around is not None and around.directory.is_dir() else ():
                report.sections.append(("plugin process", process.said()))
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Let nodes go; those of a teardown that fails are not shown."""
    witness.forget()


def _told(item: pytest.Item, node: Any, place: int) -> str:
    """The picture, the last calls, and how to do all of them again."""
    from gpusim.testing.picture import picture, words

    try:
        lines = [picture(getattr(node, "machine", node).describe())]
        text = node.text() if hasattr(node, "text") else ""
        if text:
            calls = [json.loads(line) for line in text.splitlines()[1:-1]]
            last = calls[-_LAST_CALLS:]
            if last:
                lines.append("its only calls:" if last == calls else f"the last of {len(calls)} calls:")
                lines += [f"  {words(call)}" for call in last]
            lines.append(_kept(item, text, place))
    except Exception as error:  # the test's own failure is to be reported, whatever happens here
        return f"cannot be shown: {error!r}"
    return "\n".join(lines)


def _kept(item: pytest.Item, text: str, place: int) -> str:
    """How to do it again; where the directory takes no trace, why not: the picture is shown all the same."""
    try:
        path = _traces(item.config) / _file_name(item.nodeid, place)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return f"the trace cannot be kept: {error}"
    return f"again: gpusim replay {path}"


def _traces(config: pytest.Config) -> Path:
    if _TRACES not in config.stash:
        named = config.getoption("--gpusim-traces")
        made = Path(named) if named else Path(tempfile.mkdtemp(prefix="gpusim-traces-"))
        made.mkdir(parents=True, exist_ok=True)
        config.stash[_TRACES] = made.absolute()
    return config.stash[_TRACES]


def _file_name(nodeid: str, place: int) -> str:
    """A file name of one test's own: its name for people, a digest of the node id for the rest."""
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", nodeid.partition("::")[2])[:60].strip("-")
    digest = hashlib.sha256(nodeid.encode()).hexdigest()[:8]
    return f"{readable}-{digest}{f'-{place}' if place else ''}.jsonl"


def _real_files() -> contextlib.AbstractContextManager[Any]:
    """The real file system, also in a test that pyfakefs has given another."""
    fake = sys.modules.get("pyfakefs.fake_filesystem_unittest")
    patcher = None if fake is None else fake.Patcher.PATCHER
    if fake is None or patcher is None or not patcher.is_patching:
        return contextlib.nullcontext()
    paused: contextlib.AbstractContextManager[Any] = fake.Pause(patcher)
    return paused
