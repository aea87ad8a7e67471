"""Fixtures: a node described in a few lines of YAML, read into a `NodeSpec` and written back.

A fixture says only what cannot follow from rules (kfd.md 2); everything else is a default of `gpusim.spec`.
Eight equal GPUs are one mapping whose values are single (all GPUs) or a list (one each, in probe order);
a list of mappings describes each GPU on its own. A refusal names file, line and key, what was found and what
is allowed there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gpusim import fixturekeys, yamlnode
from gpusim.amd.check import check
from gpusim.errors import GpusimError
from gpusim.fixturekeys import (
    CARD_KEYS,
    CPU_KEYS,
    GPU_KEYS,
    NODE_KEYS,
    NPU_KEYS,
    PPU_KEYS,
    PROSE,
    Codec,
    Refused,
    below,
)
from gpusim.spec import CardSpec, Cpus, GpuSpec, NodeSpec, NpuSpec, PpuSpec, SpecError
from gpusim.yamlnode import Fields, Items, Node, Scalar

_INSIDE = Path(__file__).resolve().parent / "_fixtures"
SHIPPED = _INSIDE if _INSIDE.is_dir() else _INSIDE.parent.parent / "fixtures"
"""The fixtures inside an installed package (setup.py lays them there), else those of the checkout."""

_SUFFIX = ".yaml"


class BadFixture(GpusimError):  # noqa: N818 - the name callers read in `except`
    """A fixture that describes no node: the file, the key (``$.gpus[3].mode``) and why.

    Attributes:
        path: the file as it was named, ``<text>`` for a string.
        key: where in the document, from ``$``; empty when there is no document.
        why: what was found and what is allowed.
        line: the line in the file from 1, or None.
    """

    def __init__(self, path: str, key: str, why: str, line: int | None = None) -> None:
        super().__init__(f"{path}{f':{line}' if line else ''}: {f'{key}: ' if key else ''}{why}")
        self.path = path
        self.key = key
        self.why = why
        self.line = line


def load(name_or_path: str | os.PathLike[str]) -> NodeSpec:
    """The node a fixture describes, by file path or by its name among `names()` (``mi355x/qpx-6.14``).

    Raises:
        BadFixture: no such fixture (near names are told), unreadable, or refused.
    """
    path = find(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadFixture(str(path), "", f"cannot be read: {reason}") from error
    resolved = path.resolve()
    name = resolved.relative_to(SHIPPED) if resolved.is_relative_to(SHIPPED) else Path(resolved.name)
    return loads(text, path=str(name_or_path), name=name.as_posix().removesuffix(_SUFFIX))


def find(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a fixture: the path itself, else a name below the shipped fixtures.

    Raises:
        BadFixture: neither; near names are told.
    """
    asked = os.fspath(name_or_path)
    bare = asked.removeprefix("fixtures/")
    for candidate in (Path(asked), SHIPPED / bare, SHIPPED / (bare + _SUFFIX)):
        if candidate.is_file():
            return candidate
    if Path(asked).is_dir():
        raise BadFixture(asked, "", "is a directory, not a fixture")
    known = names()
    wanted = bare.removesuffix(_SUFFIX)
    near = get_close_matches(wanted, known, n=3, cutoff=0.5) or [n for n in known if wanted in n][:3]
    hint = f"; near: {', '.join(near)}" if near else f"; known: {', '.join(known)}"
    raise BadFixture(asked, "", f"no such file, and no fixture of that name{hint}")


def names() -> tuple[str, ...]:
    """The shipped fixtures, sorted: ``mi355x/qpx-6.14``, …"""
    found = (path.relative_to(SHIPPED).as_posix() for path in SHIPPED.rglob(f"*{_SUFFIX}"))
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in found))


def about(name_or_path: str | os.PathLike[str]) -> str:
    """The sentence after ``about:`` in a fixture, or an empty string.

    Raises:
        BadFixture: as `load`.
    """
    path = find(name_or_path)
    try:
        root = yamlnode.parse(path.read_text(encoding="utf-8"))
    except yamlnode.BadYaml as error:
        raise BadFixture(str(path), "$", error.why, error.line) from error
    said = root.fields.get("about") if isinstance(root, Fields) else None
    return said.text if isinstance(said, Scalar) else ""


def loads(text: str, *, path: str = "<text>", name: str = "node") -> NodeSpec:
    """The node that YAML `text` describes.

    Args:
        text: the document.
        path: how refusals name it.
        name: the node's name when the document has no ``name:``.

    Raises:
        BadFixture: with the path, the key (``$.gpus[3].mode``) and the reason.
    """
    reader = _Reader()
    try:
        spec = reader.node(yamlnode.parse(text), name)
        check(spec)
        if spec.npus:
            from gpusim.ascend.check import check_npus

            check_npus(spec)
        if spec.ppus:
            from gpusim.ppu.check import check_ppus

            check_ppus(spec)
    except yamlnode.BadYaml as error:
        raise BadFixture(path, "$", error.why, error.line) from error
    except Refused as refused:
        raise BadFixture(path, "$" + refused.key, refused.why, refused.line) from refused
    except SpecError as error:
        key, line = reader.place(error.path)
        raise BadFixture(path, key, error.why, line) from error
    return spec


class _Reader:
    """One decoding, which remembers where each value of the spec was written."""

    def __init__(self) -> None:
        self.places: dict[str, tuple[str, int | None]] = {"": ("$", None)}

    def place(self, key: str) -> tuple[str, int | None]:
        """Where the spec's `key` (``gpus[3].mode``) stands in the document: its path there and the line.

        Of a value that is not written the path still names the key, and the line is what it belongs to.
        """
        asked = key
        while key not in self.places:
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        path, line = self.places[key]
        rest = asked[len(key) :]
        return path + ("." if rest and not key else "") + rest, line

    def node(self, root: Node, name: str) -> NodeSpec:
        document = _mapping(
            root,
            [*NODE_KEYS, "cpus", "gpus", "npus", "ppus", "cards", *PROSE],
            "a mapping that describes a node",
        )
        values = self.values(document, NODE_KEYS, "", ".")
        for key in PROSE.keys() & document.fields.keys():
            below(f".{key}", PROSE[key], document.fields[key])
        _needs(document, "kernel")
        values.setdefault("name", name)
        if (cpus := document.fields.get("cpus")) is not None:
            with _Under(".cpus"):
                values["cpus"] = self.cpus(cpus)
        if (gpus := document.fields.get("gpus")) is not None:
            with _Under(".gpus"):
                values["gpus"] = self.gpus(gpus)
        if (npus := document.fields.get("npus")) is not None:
            with _Under(".npus"):
                values["npus"] = self.npus(npus)
        if (ppus := document.fields.get("ppus")) is not None:
            with _Under(".ppus"):
                values["ppus"] = self.ppus(ppus)
        if (cards := document.fields.get("cards")) is not None:
            with _Under(".cards"):
                values["cards"] = self.cards(cards)
        return NodeSpec(**values)

    def cpus(self, node: Node) -> Cpus:
        document = _mapping(node, [*CPU_KEYS, "distance"], "a mapping that describes the CPUs")
        self.places["cpus"] = ("$.cpus", document.line)
        values = self.values(document, CPU_KEYS, "cpus.", ".cpus.")
        if (said := document.fields.get("distance")) is not None:
            self.places["cpus.distance"] = ("$.cpus.distance", said.line)
            with _Under(".distance"):
                values["distance"] = fixturekeys.distance(said, values.get("nodes", Cpus().nodes))
        return Cpus(**values)

    def gpus(self, node: Node) -> tuple[GpuSpec, ...]:
        rows = self.devices(node, "gpus", "product", GPU_KEYS, ("GPU", "GPUs"))
        return tuple(GpuSpec(**row) for row in rows)

    def npus(self, node: Node) -> tuple[NpuSpec, ...]:
        return tuple(NpuSpec(**row) for row in self.devices(node, "npus", "chip", NPU_KEYS, ("NPU", "NPUs")))

    def ppus(self, node: Node) -> tuple[PpuSpec, ...]:
        rows = self.devices(node, "ppus", "product", PPU_KEYS, ("PPU", "PPUs"))
        return tuple(PpuSpec(**row) for row in rows)

    def devices(
        self, node: Node, name: str, kind: str, keys: Mapping[str, Codec], words: tuple[str, str]
    ) -> Sequence[dict[str, Any]]:
        """The values of each device: a list of mappings, or the short form."""
        if not isinstance(node, Items):
            document = _mapping(node, [*keys], f"a list of {words[1]}, or one mapping for all of them")
            return self.equal_devices(document, name, kind, keys)
        rows = []
        for i, item in enumerate(node.items):
            with _Under(f"[{i}]"):
                document = _mapping(item, [*keys], f"a mapping that describes a {words[0]}")
                _needs(document, kind, "bdf")
                self.places[f"{name}[{i}]"] = (f"$.{name}[{i}]", document.line)
                rows.append(self.values(document, keys, f"{name}[{i}].", f".{name}[{i}]."))
        return rows

    def cards(self, node: Node) -> tuple[CardSpec, ...]:
        if not isinstance(node, Items):
            raise fixturekeys.refusal(node, "a list of displays of other vendors")
        cards = []
        for i, item in enumerate(node.items):
            with _Under(f"[{i}]"):
                document = _mapping(item, [*CARD_KEYS], "a mapping that describes a display")
                _needs(document, "driver", "bdf", "vendor", "device")
                self.places[f"cards[{i}]"] = (f"$.cards[{i}]", document.line)
                cards.append(CardSpec(**self.values(document, CARD_KEYS, f"cards[{i}].", f".cards[{i}].")))
        return tuple(cards)

    def equal_devices(
        self, document: Fields, name: str, kind: str, keys: Mapping[str, Codec]
    ) -> Sequence[dict[str, Any]]:
        """The short form: every value stands for all devices, or is a list with one for each."""
        _needs(document, kind, "bdf")
        addresses = document.fields["bdf"]
        count = len(addresses.items) if isinstance(addresses, Items) else 1
        rows: list[dict[str, Any]] = [{} for _ in range(count)]
        self.places |= {f"{name}[{i}]": (f"$.{name}", document.line) for i in range(count)}
        for key, node in document.fields.items():
            each = node.items if isinstance(node, Items) else None
            if each is not None and len(each) != count:
                why = f"found {len(each)} values for {count} addresses, allowed: one for all, or one each"
                raise Refused(why, node.line, f".{key}")
            for i, row in enumerate(rows):
                item, place = (node, f".{key}") if each is None else (each[i], f".{key}[{i}]")
                row[key] = below(place, keys[key], item)
                self.places[f"{name}[{i}].{key}"] = (f"$.{name}{place}", item.line)
        return rows

    def values(
        self, document: Fields, keys: Mapping[str, Codec], canonical: str, written: str
    ) -> dict[str, Any]:
        """The decoded values of those `keys` that the document has."""
        found = {}
        for key, codec in keys.items():
            if (node := document.fields.get(key)) is not None:
                self.places[canonical + key] = (f"${written}{key}", node.line)
                found[key] = below(f".{key}", codec, node)
        return found


class _Under:
    """Adds `key` to a refusal that passes."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Refused):
            error.key = self.key + error.key


def _mapping(node: Node, known: list[str], what: str) -> Fields:
    """`node` as a mapping with none but the known keys."""
    if not isinstance(node, Fields):
        raise fixturekeys.refusal(node, what)
    for key, written in node.keys.items():
        if key not in known:
            hint = fixturekeys.did_you_mean(key, known) or f", allowed: {', '.join(known)}"
            raise Refused(f"unknown key{hint}", written.line, f".{key}")
    return node


def _needs(document: Fields, *keys: str) -> None:
    for key in keys:
        if key not in document.fields:
            raise Refused(f"the key {key} is missing", document.line)


def dump(spec: NodeSpec) -> str:
    """`spec` as YAML without defaults; ``loads(dump(spec)) == spec`` for every possible node."""
    lines = [
        f"name: {NODE_KEYS['name'].encode(spec.name)}",
        f"kernel: {NODE_KEYS['kernel'].encode(spec.kernel)}",
    ]
    lines += _changed(spec, NodeSpec(name=spec.name, kernel=spec.kernel), NODE_KEYS)
    cpus = _changed(spec.cpus, Cpus(), CPU_KEYS)
    if spec.cpus.distance != Cpus().distance:
        cpus.append(f"distance: {fixturekeys.encode_distance(spec.cpus.distance)}")
    if cpus:
        lines += ["cpus:", *(f"  {line}" for line in cpus)]
    if spec.gpus:
        lines += ["gpus:", *(f"  {line}" for line in _columns(spec.gpus, GpuSpec("", ""), GPU_KEYS))]
    if spec.npus:
        lines += ["npus:", *(f"  {line}" for line in _columns(spec.npus, NpuSpec("", ""), NPU_KEYS))]
    if spec.ppus:
        lines += ["ppus:", *(f"  {line}" for line in _columns(spec.ppus, PpuSpec("", ""), PPU_KEYS))]
    if spec.cards:
        lines.append("cards:")
    for card in spec.cards:
        bare = CardSpec("", "", vendor=-1, device=-1)
        lines.append(f"  - {{{', '.join(_changed(card, bare, CARD_KEYS))}}}")
    return "\n".join(lines) + "\n"


def _changed(value: object, default: object, keys: Mapping[str, Codec]) -> list[str]:
    return [
        f"{key}: {codec.encode(getattr(value, key))}"
        for key, codec in keys.items()
        if getattr(value, key) != getattr(default, key)
    ]


def _columns(
    devices: Sequence[object], bare: GpuSpec | NpuSpec | PpuSpec, keys: Mapping[str, Codec]
) -> Iterator[str]:
    """The short form: one line a key, a single value where all devices agree."""
    for key, codec in keys.items():
        column = [getattr(device, key) for device in devices]
        alike = all(value == column[0] for value in column)
        if key == "bdf" or not alike:
            yield f"{key}: {yamlnode.flow([codec.encode(value) for value in column])}"
        elif column[0] != getattr(bare, key):
            yield f"{key}: {codec.encode(column[0])}"
