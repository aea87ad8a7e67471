"""A dry run against a golden result: equal, different, written anew, and as a JUnit report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devplugin.amd.vendor import Amd
from devplugin.launch import main
from devplugin.linux import LinuxHost
from devplugin.replay import Golden, Verdict, _lines, diff, golden, junit, replay
from devplugin.settings import SettingsError

from .daemon.storeapi import DictHost
from .daemon.toyplugin import Toy

NODE = DictHost({"/toy/a": "ok", "/toy/b": "ok"})
REPORT = {"schema": 1, "vendor": "toy", "mode": "soft", "things": 2}


def run(*words: str, host: DictHost = NODE) -> int:
    return main(Toy(), ["-dry_run", *words], host=host, env={})


@pytest.fixture
def expected(tmp_path: Path) -> Path:
    file = tmp_path / "golden.json"
    file.write_text(json.dumps(REPORT, indent=2) + "\n")
    return file


def test_what_is_as_expected_ends_with_0(expected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--expect", str(expected)) == 0
    assert capsys.readouterr() == (f"{expected}: as expected\n", "")


def test_the_layout_of_the_golden_file_does_not_matter(expected: Path) -> None:
    expected.write_text(json.dumps(dict(reversed(REPORT.items()))))
    assert run("-expect", str(expected)) == 0


def test_settings_are_compared_when_the_golden_file_has_them(expected: Path) -> None:
    assert run("-expect", str(expected), "-slots", "7") == 0
    assert run("-expect", str(expected), "-update") == 0
    assert "settings" in json.loads(expected.read_text())
    assert run("-expect", str(expected)) == 0
    assert run("-expect", str(expected), "-slots", "7") == 1


def test_true_is_not_1(expected: Path) -> None:
    expected.write_text(json.dumps({**REPORT, "schema": True}))
    assert run("-expect", str(expected)) == 1


def test_what_differs_is_shown_with_its_place_and_ends_with_1(
    expected: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = expected.read_bytes()
    assert run("-expect", str(expected), host=DictHost({"/toy/a": "ok"})) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines()[:3] == [f"--- {expected}", "+++ this run", "@@ things @@"]
    assert '-   "things": 2' in shown.out.splitlines()
    assert '+   "things": 1' in shown.out.splitlines()
    assert shown.err == f"toy-device-plugin: {expected}: 2 lines differ\n"
    assert expected.read_bytes() == before


def test_a_hunk_names_the_device_it_is_about() -> None:
    left = {"registration": [{"id": "one", "devmem": 1, "x": [1] * 20}, {"id": "two", "devmem": 1}]}
    right = {"registration": [{"id": "one", "devmem": 1, "x": [1] * 20}, {"id": "two", "devmem": 2}]}
    assert "@@ registration[1 two].devmem @@" in diff(left, right, "g").splitlines()


def test_a_golden_file_that_is_not_there_is_a_failure_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-expect", str(tmp_path / "none.json")) == 1
    assert capsys.readouterr().err.endswith("none.json: does not exist; write it with -update, and read it\n")
    assert list(tmp_path.iterdir()) == []


def test_a_golden_file_that_is_no_json_is_a_failure(
    expected: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected.write_text("not json")
    assert run("-expect", str(expected)) == 1
    assert "is no JSON" in capsys.readouterr().err


def test_a_golden_file_nested_without_end_is_a_failure_in_one_line(
    expected: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("[" * 100_000, "[" * 100_000 + "]" * 100_000):
        expected.write_text(text)
        assert run("-expect", str(expected)) == 1
        shown = capsys.readouterr().err
        assert len(shown.splitlines()) == 1
        assert "is nested too deeply" in shown


def test_neither_a_link_nor_a_pipe_is_replaced_by_a_result(
    expected: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, link, dangling = (expected.with_name(name) for name in ("pipe", "link", "dangling"))
    os.mkfifo(pipe)
    link.symlink_to(expected.name)
    dangling.symlink_to("none")
    before = {path: path.lstat() for path in (pipe, link, dangling, expected)}
    for path in (pipe, link, dangling):
        assert run("-expect", str(expected), "-junit", str(path)) == 1
        refusal = f"-junit='{path}': is no regular file, and is not replaced"
        assert capsys.readouterr().err == f"toy-device-plugin: {refusal}\n"
    for path in (link, dangling, pipe):
        other = DictHost({"/toy/a": "ok"})
        assert run("-expect", str(path), "-update", host=other) == 1
        assert "is no regular file, and is not replaced" in capsys.readouterr().err
    for path, stat in before.items():
        found = path.lstat()
        assert (found.st_ino, found.st_mode, found.st_size) == (stat.st_ino, stat.st_mode, stat.st_size)
    assert sorted(entry.name for entry in expected.parent.iterdir()) == [
        "dangling",
        "golden.json",
        "link",
        "pipe",
    ]


def test_update_writes_what_a_dry_run_prints_and_nothing_when_it_is_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "golden.json"
    assert run("-expect", str(file), "-update") == 0
    assert capsys.readouterr().out == f"{file}: written\n"
    assert run() == 0
    assert file.read_text() == capsys.readouterr().out
    os.utime(file, (1, 1))
    assert run("-expect", str(file), "-update") == 0
    assert file.stat().st_mtime == 1
    assert run("-expect", str(file), "-update", host=DictHost({"/toy/a": "ok"})) == 0
    assert json.loads(file.read_text())["things"] == 1


def test_update_replaces_the_file_at_once_and_keeps_its_mode(expected: Path) -> None:
    expected.write_text("{}")
    expected.chmod(0o600)
    before = expected.stat().st_ino
    with expected.open() as reader:  # who has it open reads the old result to its end
        assert run("-expect", str(expected), "-update") == 0
        assert reader.read() == "{}"
    assert expected.stat().st_ino != before
    assert expected.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in expected.parent.iterdir()] == ["golden.json"]


def test_an_update_that_cannot_be_written_is_one_line(
    expected: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-expect", str(expected.parent), "-update") == 1
    assert capsys.readouterr().err == f"toy-device-plugin: -expect='{expected.parent}': Is a directory\n"
    assert run("-expect", str(expected), "-junit", str(expected / "x.xml")) == 1
    assert capsys.readouterr().err.startswith("toy-device-plugin: -junit=")


@pytest.mark.parametrize("things", [2, 3])
def test_junit_says_the_same_to_a_ci_system(expected: Path, tmp_path: Path, things: int) -> None:
    report = tmp_path / "junit.xml"
    host = DictHost({f"/toy/{n}": "ok" for n in range(things)})
    status = run("-expect", str(expected), "-junit", str(report), host=host)
    suite = ElementTree.fromstring(report.read_text()).find("testsuite")
    assert suite is not None
    case = suite.find("testcase")
    assert case is not None
    assert (suite.get("name"), case.get("name")) == ("toy-device-plugin -dry_run", str(expected))
    failure = case.find("failure")
    if things == 2:
        assert (status, suite.get("failures"), failure) == (0, "0", None)
    else:
        assert (status, suite.get("failures")) == (1, "1")
        assert failure is not None and failure.text is not None
        assert '+   "things": 3' in failure.text.splitlines()


@given(st.text(), st.text(), st.text())
def test_junit_is_xml_whatever_stands_in_names_and_differences(message: str, text: str, case: str) -> None:
    parsed = ElementTree.fromstring(junit(Verdict(False, message, text), "suite", case).encode("utf-8"))
    assert parsed.get("failures") == "1"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_the_lines_of_a_value_are_those_of_json(value: Any) -> None:
    assert "\n".join(text for _, text in _lines(value)) == json.dumps(value, indent=2)


@given(JSON, JSON)
def test_a_diff_shows_something_exactly_when_the_texts_differ(left: Any, right: Any) -> None:
    lines = diff(left, right, "g").splitlines()[2:]
    assert bool(lines) == (json.dumps(left) != json.dumps(right))


def test_a_long_diff_is_cut() -> None:
    lines = diff([], list(range(5000)), "g").splitlines()
    assert len(lines) == 401
    assert lines[-1].startswith("… and ")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"update": True}, "-update=true: only with -expect FILE"),
        ({"junit": "x"}, "-junit='x': only with -expect FILE"),
        ({"expect": "x", "dry_run": False}, "-expect='x': only with -dry_run"),
        ({"expect": ""}, "-expect='': is empty; name a file"),
        ({"expect": "x", "junit": ""}, "-junit='': is empty; name a file"),
    ],
)
def test_a_flag_alone_is_refused_in_one_line(flags: dict[str, Any], text: str) -> None:
    given_flags: dict[str, Any] = {"expect": None, "update": False, "junit": None, "dry_run": True, **flags}
    with pytest.raises(SettingsError, match=text):
        golden(**given_flags)


def test_nothing_is_compared_when_nothing_is_asked() -> None:
    assert golden(expect=None, update=False, junit=None, dry_run=False) is None


@pytest.mark.parametrize("words", [["-expect", ""], ["-expect="], ["-expect", "x", "-junit", ""]])
def test_a_file_without_a_name_passes_for_no_comparison(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert (
        shown.err
        == f"toy-device-plugin: -{'junit' if 'x' in words else 'expect'}='': is empty; name a file\n"
    )


def test_a_root_that_cannot_be_read_is_an_error_in_the_junit_report(expected: Path) -> None:
    report = expected.with_name("junit.xml")
    report.write_text("of an earlier run")
    words = ["-root", str(expected.with_name("none")), "-dry_run", "-expect", str(expected)]
    assert main(Toy(), [*words, "-junit", str(report)], env={}) == 1
    suite = ElementTree.fromstring(report.read_text()).find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    error = suite.find("testcase/error")
    assert error is not None
    assert "No such file or directory" in error.get("message", "")


def test_a_link_at_the_golden_name_is_read_through(expected: Path) -> None:
    link = expected.with_name("link.json")
    link.symlink_to(expected.name)
    assert replay(REPORT, Golden(str(link)), LinuxHost(), suite="s").equal


# ------------------------------------------------------------------ -root PACK


def test_a_packed_capture_is_a_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import gpusim
    from gpusim.export.render import render
    from gpusim.snapshots import directory, pack

    render(gpusim.Machine(gpusim.load("mi355x/spx-6.14")), tmp_path / "tree")
    pack.write(directory.collect(tmp_path / "tree"), tmp_path / "node.gpusim")
    for root in ("tree", "node.gpusim"):
        file = str(tmp_path / "golden.json")
        words = ["-root", str(tmp_path / root), "-dry_run", "-expect", file]
        assert main(Amd(), [*words, *(["-update"] if root == "tree" else [])], env={}) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{file}: as expected"
    assert len(json.loads((tmp_path / "golden.json").read_text())["registration"]) == 8


def test_an_unpacked_capture_keeps_its_errnos_as_a_root(tmp_path: Path) -> None:
    from devplugin import launch
    from gpusim.snapshots import directory, pack
    from gpusim.snapshots.pack import Entry, Kind

    recorded = pack.capture({"/sys/guarded": Entry(Kind.FILE, 0o444, error="EPERM")})
    directory.write(recorded, tmp_path / "node")
    args = type("Args", (), {"simulate": "", "root": str(tmp_path / "node")})()
    with pytest.raises(PermissionError, match="not permitted"):
        launch._node(args).read("/sys/guarded")


def test_a_file_that_is_no_pack_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x").write_bytes(b"gpusim-pack 2\n")
    assert main(Toy(), ["-root", str(tmp_path / "x"), "-dry_run"], env={}) == 1
    assert "has pack format 2, this gpusim reads up to 1; use a newer gpusim" in capsys.readouterr().err
    (tmp_path / "x").write_bytes(b"PK")
    assert main(Toy(), ["-root", str(tmp_path / "x"), "-dry_run"], env={}) == 1
    shown = capsys.readouterr().err
    assert "is no packed capture" in shown
    assert len(shown.splitlines()) == 1


def test_without_the_simulator_installed_a_pack_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    (tmp_path / "x").write_bytes(b"gpusim-pack 1\n")
    assert main(Toy(), ["-root", str(tmp_path / "x"), "-dry_run"], env={}) == 1
    assert "nothing installed offers packed captures" in capsys.readouterr().err
