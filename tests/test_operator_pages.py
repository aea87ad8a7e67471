"""The operators' pages against the code: tables, names, links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from devplugin import rights
from devplugin.amd.settings import Settings
from devplugin.amd.vendor import Amd
from devplugin.ascend.poststart import check
from devplugin.ascend.vendor import Ascend
from devplugin.hami import Node
from devplugin.ppu.vendor import Ppu
from gpusim import Machine, load

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
OPERATORS = ("install.md", "upgrade.md", "operating-mode.md", "on-the-host.md", "troubleshooting.md")


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of the table that begins with this line, without heading and dashes."""
    text = (DOCS / page).read_text()
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def anchors(path: Path) -> set[str]:
    """What GitHub makes of the headings."""
    found = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading_there(path: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", path.read_text()):
        place = (path.parent / target).resolve() if target else path
        assert place.exists(), target
        assert not anchor or anchor in anchors(place), f"{target}#{anchor}"


def test_the_readme_leads_to_every_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert [path.name for path in DOCS.glob("*.md") if f"(docs/{path.name})" not in text] == []


def test_the_poststart_table_is_the_checkers() -> None:
    found = rows("upgrade.md", "| mode of the container | HAMi Enterprise")
    assert len(found) == 6
    for mode, release, container, result in found:
        version = re.search(r"v2\.[0-9.]*(?:-\w+)?", release.replace("v2.9.x", "v2.9.1"))
        assert version is not None
        scheduler = "v2.8.0" if release.startswith("before") else version[0]
        ok = not result.startswith(("**fails", "not supported"))
        for hooked in (False, True) if container == "any" else (container.startswith("has a PostStart"),):
            for bash in (False, True) if "bash" not in container else ("has bash" in container,):
                words = ("template", "hami-core") if mode == "either" else (mode,)
                for word in words:
                    verdict = check(word, scheduler, has_poststart=hooked, has_bash=bash)  # type: ignore[arg-type]
                    assert verdict.ok is ok, (mode, release, container)


def test_the_rights_are_those_the_plugins_ask_for() -> None:
    found = [tuple(row) for row in rows("troubleshooting.md", "| verb | resource |")]
    assert found == [(right.verb, right.resource, right.purpose) for right in rights.PLUGIN]


def test_cleanup_removes_what_the_page_says_and_nothing_else() -> None:
    annotations = {
        "hami.io/node-amd-register": "x", "hami.io/amd-operating-mode": "cu", "hami.io/mutex.lock": "x",
        "hami.io/amd-compute-partition": "qpx", "hami.io/node-register-Ascend910B4": "x",
        "hami.io/node-handshake-Ascend910B4": "x", "hami-vnpu-core": "true",
        "hami.io/node-register-ppu": "x", "hami.io/node-handshake-ppu": "x", "hami.io/node-register-xpu": "x",
    }  # fmt: skip
    node = Node("n", "u", annotations)
    told = rows("on-the-host.md", "| | removed |")
    for vendor, name in ((Amd(), "AMD"), (Ascend(), "Ascend"), (Ppu(), "PPU")):
        patch = vendor.leftovers(node)
        (row,) = [what for what, removed in told if removed == "yes" and what.startswith(f"{name}: ")]
        named = {name.replace("*", "") for name in re.findall(r"`([^`]+)`", row)}
        gone = {key for key in patch.annotations if key in annotations} | set(patch.capacity)
        assert all(any(key.startswith(stem) for stem in named) for key in gone)
        assert all(any(key.startswith(stem) for key in gone) for stem in named)
    kept = {name for what, removed in told if removed == "no" for name in re.findall(r"`([^`…]+)`", what)}
    assert kept.isdisjoint(
        gone for vendor in (Amd(), Ascend(), Ppu()) for gone in vendor.leftovers(node).annotations
    )


@pytest.mark.parametrize(
    "row", rows("operating-mode.md", "| mode | devices of a GPU |"), ids=lambda row: row[0]
)
def test_a_mode_has_the_devices_the_page_says(row: list[str]) -> None:
    mode, count, cores, memory = row
    settings = Settings(node_name="n", mode="partition")
    inventory = Amd().discover(Machine(load(f"mi355x/{mode}-6.14")), settings, None)
    assert len(Amd().offers(inventory, settings)["amd.com/gpu"].devices) == 8 * int(count)
    text = Amd().registration(inventory, settings, 0.0).annotations["hami.io/node-amd-register"]
    assert text is not None
    assert f'"devmem":{memory},"devcore":{cores},' in text.replace(" ", "")


@pytest.mark.parametrize(
    ("fixture", "mode", "naming", "numbers"),
    [
        ("mi355x/qpx-6.14", "cu", "single", {"amd.com/gpu": 80}),
        ("mi355x/qpx-6.8-live-flip", "partition", "single", {"amd.com/gpu": 24}),
        ("mi355x/cpx-6.8-bmc-63", "partition", "single", {"amd.com/gpu": 63}),
        ("mi355x/qpx-6.14", "partition", "mixed", {"amd.com/qpx_nps1": 32}),
    ],
)
def test_the_numbers_of_a_partitioned_node_have_the_reasons_the_page_gives(
    fixture: str, mode: str, naming: str, numbers: dict[str, int]
) -> None:
    settings = Settings(node_name="n", mode=mode, naming=naming)
    inventory = Amd().discover(Machine(load(fixture)), settings, None)
    offered = Amd().offers(inventory, settings)
    assert {name: len(offer.devices) for name, offer in offered.items() if offer.devices} == numbers
    told = {row[0].split()[0].strip(",") for row in rows("troubleshooting.md", "| `amd.com/gpu` | why |")}
    assert str(numbers.get("amd.com/gpu", 0)) in told


@cache
def literals() -> str:
    """All texts of the plugins, a space in place of what is filled in, line after line."""
    return "\n".join(text for path in sorted((ROOT / "devplugin").rglob("*.py")) for text in _texts(path))


def _texts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


def test_the_reasons_of_refusals_are_in_the_words_of_the_plugins() -> None:
    for reasons, _ in rows("troubleshooting.md", "| the reason says |"):
        for reason in re.findall(r"`([^`]+)`", reasons):
            for part in reason.split("…"):
                assert part.strip() in literals(), reason


@pytest.mark.parametrize("page", OPERATORS)
def test_events_and_annotations_of_the_pages_are_the_plugins(page: str) -> None:
    text = (DOCS / page).read_text()
    for word in re.findall(r"`((?:AMDGPU|AscendNPU|NPULibrary)\w+)`", text):
        assert word in literals(), word
    scheduler = {"hami.io/mutex.lock", "hami.io/bind-phase"}
    for key in set(re.findall(r"`(hami\.io/[\w.-]+)`", text)) - scheduler:
        stem = re.sub(r"(-Ascend.*|-amd-register|-ppu)$", "", key)
        assert stem in literals() or key in literals(), key


def test_directories_on_the_host_are_those_the_plugins_and_charts_use() -> None:
    sources = literals() + "\n".join(
        path.read_text() for path in (ROOT / "deploy" / "charts").rglob("*") if path.is_file()
    )
    for paths, *_ in rows("on-the-host.md", "| path | whose |"):
        for path in re.findall(r"`(/[^`<]+)", paths):
            stem = path.rstrip("/")
            above = stem.rpartition("/")[0]
            # /var/lib and the like are everybody's: they prove nothing
            assert stem in sources or (above.count("/") >= 3 and above in sources), path


def test_the_readme_lists_every_folder_of_fixtures_with_its_vendor() -> None:
    text = (ROOT / "README.md").read_text()
    table = text[text.index("| vendor | fixtures |") :].split("\n\n")[0]
    told = set(re.findall(r"`(\w+)/`", table))
    assert told == {path.name for path in (ROOT / "fixtures").iterdir() if path.is_dir()}
    for program in re.findall(r"`(bin/[\w-]+)", table):
        assert (ROOT / program).exists()
