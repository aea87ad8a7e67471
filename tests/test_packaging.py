"""The wheel in the hands of somebody who has no checkout and no network: built, installed elsewhere, used."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from email.parser import Parser
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "property-tests.md"


def run(*command: str | Path, cwd: Path, status: int = 0) -> str:
    """What a command printed, run without anything of this checkout in its surroundings."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=kept, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built offline from a copy, so that the checkout stays as it is."""
    source = tmp_path_factory.mktemp("source") / "gpusim"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "tests", "docs")
    shutil.copytree(ROOT, source, ignore=ignored)
    out = tmp_path_factory.mktemp("wheel")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", out, source, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def metadata(wheel: Path) -> list[Requirement]:
    """What the wheel asks for."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        fields = Parser().parsestr(archive.read(name).decode())
    assert fields["Requires-Python"] == ">=3.11"
    return [Requirement(line) for line in fields.get_all("Requires-Dist", [])]


@cache
def needed(requirement: str) -> frozenset[str]:
    """A distribution of this environment and all that it needs, as pip would bring it."""
    wanted = Requirement(requirement)
    found = {wanted.name}
    for line in importlib.metadata.requires(wanted.name) or []:
        inner = Requirement(line)
        extras = wanted.extras or {""}
        if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
            found |= needed(f"{inner.name}[{','.join(sorted(inner.extras))}]" if inner.extras else inner.name)
    return frozenset(found)


class Place:
    """An empty directory somewhere, and a virtual environment with the wheel and what else was installed."""

    def __init__(self, path: Path, python: Sequence[str], wheel: Path, distributions: Sequence[str]) -> None:
        self.work = path / "work"
        self.work.mkdir()
        self.bin = path / "venv" / "bin"
        run(*python, "-m", "venv", "--without-pip", path / "venv", cwd=path)
        self.python = self.bin / "python"
        options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
        run(sys.executable, "-m", "pip", "--python", self.python, "install", *options, wheel, cwd=path)
        (site,) = (path / "venv" / "lib").glob("python*/site-packages")
        for name in distributions:
            self._lend(importlib.metadata.distribution(name), site)

    def _lend(self, distribution: importlib.metadata.Distribution, site: Path) -> None:
        """Links to what a distribution put into our environment: there is no network to fetch it anew."""
        tops = {Path(str(file)).parts[0] for file in distribution.files or []}
        for top in tops - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))

    def pytest(self, *words: str, status: int = 0) -> str:
        return run(
            self.python, "-m", "pytest", "-p", "no:cacheprovider", *words, cwd=self.work, status=status
        )


Places = Callable[..., Place]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Places:
    """A place with these distributions of ours; the same one when the same are asked for again."""

    @cache
    def make(*distributions: str, python: str = sys.executable) -> Place:
        return Place(tmp_path_factory.mktemp("place"), (python,), wheel, sorted(distributions))

    return make


def page_files() -> dict[str, str]:
    """The files of docs/property-tests.md by name."""
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(blocks)


def extra(wheel: Path, name: str) -> frozenset[str]:
    """All distributions that an extra brings."""
    asked = [r for r in metadata(wheel) if r.marker is not None and r.marker.evaluate({"extra": name})]
    return frozenset().union(*(needed(one.name) for one in asked))


def test_the_wheel_holds_fixtures_and_type_information_and_nothing_of_the_checkout(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    top = ROOT / "fixtures"
    fixtures = {f"gpusim/_fixtures/{path.relative_to(top)}" for path in top.rglob("*.yaml")}
    assert fixtures
    assert fixtures <= inside
    beside = {
        str(path.relative_to(ROOT))
        for package in ("gpusim", "devplugin")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert beside <= inside, sorted(beside - inside)
    tops = {name.partition("/")[0] for name in inside}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gpusim", "devplugin"}


def test_its_metadata_names_ranges_and_pins_nothing(wheel: Path) -> None:
    asked = metadata(wheel)
    assert asked
    for one in asked:
        signs = {spec.operator for spec in one.specifier}
        assert not signs & {"==", "===", "~="}, f"{one}: pins belong into bin/lock"
        assert one.marker is not None, f"{one}: the machine itself needs the standard library only"


def test_the_oldest_pytest_of_the_plugin_stands_in_the_metadata_and_on_the_page(wheel: Path) -> None:
    wanted = [r for r in metadata(wheel) if r.marker is not None and r.marker.evaluate({"extra": "pytest"})]
    assert [f"{one.name}{one.specifier}" for one in wanted] == ["pytest>=8.0"]
    assert "for pytest 8.0 and later" in PAGE.read_text()


def test_the_extra_for_tests_brings_no_grpc_and_no_kubernetes(wheel: Path) -> None:
    names = {name.lower().replace("_", "-") for name in extra(wheel, "sim")}
    assert {"hypothesis", "pyyaml"} <= names
    assert not names & {"grpcio", "protobuf", "kubernetes", "aiohttp", "pydantic"}


def test_with_plain_pytest_and_no_extras_the_plugin_loads_and_is_no_burden(place: Places) -> None:
    here = place(*needed("pytest"))
    (here.work / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    assert 'gpusim.testing.pytest_plugin' in sys.modules\n"
        "    assert not {'hypothesis', 'grpc', 'yaml', 'gpusim.machine'} & sys.modules.keys()\n"
        "def test_machine(machine): ...\n"
    )
    said = here.pytest("-q", "--strict-markers", status=1)
    assert "1 passed, 1 error" in said
    assert "needs yaml: pip install 'gpusim[sim]'" in said
    assert "fixture 'machine' not found" in here.pytest("-q", "-p", "no:gpusim", status=1)
    assert "@pytest.mark.machine(source, *, faults=Plan())" in here.pytest("--markers")
    code = "import gpusim.testing.machines as m, gpusim; gpusim.Machine(m.node()).list('/sys/class/kfd/kfd')"
    run(here.python, "-c", code, cwd=here.work)


@pytest.mark.timeout(300)
def test_a_fifteen_line_test_finds_the_bug_of_a_wrong_allocator(place: Places, wheel: Path) -> None:
    here = place(*needed("pytest"), *extra(wheel, "sim"))
    files = page_files()
    test, allocator = files["test_allocator.py"], files["allocator.py"]
    assert len([line for line in test.splitlines() if line]) <= 15
    assert len([line for line in allocator.splitlines() if line.startswith("    ")]) <= 15
    (here.work / "allocator.py").write_text(allocator)
    (here.work / "test_allocator.py").write_text(test)
    said = here.pytest("-q", "--tb=short", status=1)
    assert re.search(
        r"\[memory-within-device\] gpu-\d has \d MiB and \d are given away \(pod-1: \d MiB", said
    )
    example = said[said.index("state = Pods()") : said.index("state.teardown()")]
    assert "Device(id='gpu-0', memory_mib=1, cus=0)" in example
    assert example.count("state.allocate(") <= 2
    assert len(example.splitlines()) <= 14
    (here.work / "allocator.py").write_text(allocator.replace("emptiest[0]", "emptiest[-1]"))
    assert "1 passed" in here.pytest("-q")
    loaded = run(
        here.python,
        "-c",
        "import sys, gpusim.testing.strategies, gpusim.testing.machines as m; m.PluginMachine, m.NodeMachine;"
        "import gpusim.testing.used, gpusim.testing.pytest_plugin; print('grpc' in sys.modules)",
        cwd=here.work,
    )
    assert loaded == "False\n"


def test_its_commands_work_without_the_daemons_extra(place: Places, wheel: Path) -> None:
    here = place(*needed("pytest"), *extra(wheel, "sim"))
    shown = run(here.bin / "gpusim", "show", "mi355x/qpx-6.14", cwd=here.work)
    assert "0000:75:00.0" in shown
    assert "mi355x/qpx-6.14" in run(here.bin / "gpusim", "fixtures", cwd=here.work)
    dry = run(here.bin / "amd-device-plugin", "-simulate", "mi355x/qpx-6.14", "-dry_run", cwd=here.work)
    assert '"schema": 1' in dry
    assert "usage" in run(here.bin / "node-labeller", "-help", cwd=here.work).lower()


def test_every_command_starts_with_the_daemons_extra(place: Places, wheel: Path) -> None:
    here = place(*extra(wheel, "daemon"))
    for name in ("gpusim", "amd-device-plugin", "ascend-device-plugin", "node-labeller", "vgpu-monitor"):
        assert "usage" in run(here.bin / name, "--help", cwd=here.work).lower()


def test_a_type_checker_sees_our_types(place: Places) -> None:
    here = place(*needed("mypy"))
    (here.work / "mine.py").write_text(
        "import gpusim\n"
        "text: str = gpusim.Machine(gpusim.load('x')).read('/sys')  # bytes, in truth\n"
    )  # fmt: skip
    said = run(here.python, "-m", "mypy", "--strict", "--no-incremental", "mine.py", cwd=here.work, status=1)
    assert 'has type "bytes", variable has type "str"' in said
    assert "py.typed" not in said


def interpreter(version: str) -> str | None:
    """A program of that version of Python that can make virtual environments."""
    candidates = [shutil.which(f"python{version}")]
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path) for path in sorted(kept.glob(f"{version}*/bin/python{version}"))]
    for program in filter(None, candidates):
        asked = [program, "-c", "import venv"]
        if subprocess.run(asked, capture_output=True, check=False, cwd="/").returncode == 0:
            return program
    return None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_other_pythons_run_it_too(version: str, place: Places) -> None:
    program = interpreter(version)
    if program is None:
        pytest.skip(f"no Python {version} with venv on this machine")
    # Without Hypothesis: what is compiled in our environment is of one version of Python.
    here = place(*needed("pytest"), "pyyaml", python=program)
    code = (
        "import compileall, gpusim, sys, pathlib, devplugin\n"
        "for package in (gpusim, devplugin):\n"
        "    top = pathlib.Path(package.__file__).parent\n"
        "    for path in top.rglob('*.py'):\n"
        "        compile(path.read_text(), str(path), 'exec')\n"
        "import devplugin.amd.vendor, devplugin.launch, gpusim.serve, gpusim.remote, gpusim.cli.main\n"
        "print('%d.%d' % sys.version_info[:2])\n"
    )
    assert run(here.python, "-W", "error", "-c", code, cwd=here.work).strip() == version
    test = page_files()["test_node.py"]
    plain = test[: test.index("@settings")].replace("from hypothesis import given, settings\n", "")
    plain = plain.replace("from gpusim.testing import strategies\n", "")
    (here.work / "test_node.py").write_text(plain)
    assert "1 passed" in here.pytest("-q", "-W", "error")
