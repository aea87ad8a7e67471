"""npu-smi: its forms, what they do, and how it ends.

Decision 42 says which forms there are and what they hold. The exit status proves nothing: what it refuses
ends with `Npus.exit_status`, which may be 0, and the words are on stdout either way. A prompt nobody
answers ends with 200 (A.5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpusim.ascend import smitext
from gpusim.ascend.npu import Npu, NpuError, Npus
from gpusim.ascend.smitext import Row, pairs
from gpusim.view import Completed

UNANSWERED = 200
"""Exit status of a prompt without an answer (A.5)."""
_SWITCHES = frozenset({"-t", "-i", "-c", "-p", "-d", "-f", "-v"})
_ANSWERED = frozenset({b"y", b"Y"})


@dataclass(frozen=True, slots=True)
class _Call:
    """One command line, taken apart."""

    npus: Npus
    options: Mapping[str, str]
    stdin: bytes

    def number(self, switch: str) -> int:
        """The whole number after a switch."""
        text = self.options.get(switch)
        if text is None:
            raise NpuError(f"The parameter {switch} is missing.")
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise NpuError(f"The parameter {switch} is invalid: {text}.")
        return int(text)

    def word(self, switch: str) -> str:
        """The word after a switch."""
        if switch not in self.options:
            raise NpuError(f"The parameter {switch} is missing.")
        return self.options[switch]

    def npu(self) -> Npu:
        """The chip that -i and -c name."""
        return self.npus.at(self.number("-i"), self.number("-c"))


class _UnansweredError(Exception):
    """The program asked, and nobody said yes; what it had printed."""


def run(npus: Npus, arguments: Sequence[str], stdin: bytes = b"") -> Completed:
    """Run it outside of a container, as root.

    Args:
        npus: of the node.
        arguments: after the program's name.
        stdin: answers to its prompts.

    Returns:
        Exit status and output; errors are on stdout.
    """
    form = ""
    try:
        form, options = _parsed(arguments)
        if (failure := npus.failure(form)) is not None:
            return failure
        return Completed(0, _FORMS[form](_Call(npus, options, stdin)).encode(), b"")
    except NpuError as error:
        text = pairs(("Status", "Fail"), ("Message", error)) if form.startswith("set") else f"{error}\n"
        # It says again what it was given, which need not be text.
        return Completed(npus.exit_status, text.encode("utf-8", "surrogateescape"), b"")
    except _UnansweredError as asked:
        return Completed(UNANSWERED, str(asked).encode(), b"")


def _parsed(arguments: Sequence[str]) -> tuple[str, dict[str, str]]:
    """(form, switch → value)."""
    form, options = " ".join(arguments[:1]), {}
    rest = list(arguments[1:])
    while rest:
        switch = rest.pop(0)
        if switch in ("-m", "-l"):
            form += f" {switch}"
        elif switch in _SWITCHES and rest and switch not in options:
            options[switch] = rest.pop(0)
        else:
            raise NpuError(f"Error parameter of {switch}.")
    if "-t" in options:
        form += f" -t {options['-t']}"
    if form not in _FORMS:
        raise NpuError(f"Error parameter: npu-smi {' '.join(arguments)}")
    return form, options


# Looking


def _info(call: _Call) -> str:
    rows = [
        Row(
            *(npu.card, npu.number, npu.phy, npu.chip.label, npu.health.value, npu.bdf),
            *(npu.busy, npu.used_mib, npu.chip.total_mib),
            first=npu.number == 0,
        )
        for npu in call.npus
    ]
    return overview(call.npus, rows)


def overview(npus: Npus, rows: Sequence[Row]) -> str:
    """The overview of some chips in the layout of this node's kind."""
    chips = [npu.chip for npu in npus]
    return smitext.overview(
        npus.version, rows, hbm=chips[0].hbm, phy_column=any(chip.phy_column for chip in chips)
    )


def _cards(npus: Npus) -> dict[int, list[Npu]]:
    found: dict[int, list[Npu]] = {}
    for npu in npus:
        found.setdefault(npu.card, []).append(npu)
    return found


def _list(call: _Call) -> str:
    cards = _cards(call.npus)
    text = pairs(("Total Count", len(cards)))
    return text + "".join("\n" + pairs(("NPU ID", card), ("Chip Count", len(n))) for card, n in cards.items())


def _full_name(npu: Npu) -> str:
    """Type and name; 910C's name has the type in it."""
    return npu.chip.label if npu.chip.label.startswith("Ascend") else f"Ascend {npu.chip.label}"


def _map(call: _Call) -> str:
    """``info -m``: every card ends with its Mcu, which has no logic id."""
    phy = any(npu.chip.phy_column for npu in call.npus)
    head = ["NPU ID", "Chip ID", "Chip Logic ID", *(["Chip Phy-ID"] if phy else []), "Chip Name"]
    rows: list[Sequence[object]] = [head]
    for card, npus in _cards(call.npus).items():
        rows += [[card, npu.number, npu.logic, *([npu.phy] if phy else []), _full_name(npu)] for npu in npus]
        rows.append([card, len(npus), "-", *(["-"] if phy else []), "Mcu"])
    return smitext.columns(*rows)


def _board(call: _Call) -> str:
    npu = call.npu()
    return pairs(
        ("NPU ID", npu.card),
        ("Chip ID", npu.number),
        ("Chip Type", "Ascend"),
        ("Chip Name", npu.chip.label),
        ("VDie ID", npu.uuid.replace("-", " ")),
        ("PCIe Bus Info", npu.bdf.upper()),
    )


def _phy(call: _Call) -> str:
    npu = call.npus.phy(call.number("-p"))
    return pairs(
        ("Chip Phy-ID", npu.phy), ("NPU ID", npu.card), ("Chip ID", npu.number), ("Chip Logic ID", npu.logic)
    )


def _health(call: _Call) -> str:
    npu = call.npu()
    codes = " ".join(f"{code:08X}" for code in npu.error_codes) or "NA"
    return pairs(
        ("NPU ID", npu.card), ("Chip ID", npu.number), ("Health", npu.health.value), ("Error Code", codes)
    )


def _vnpus(call: _Call) -> str:
    return smitext.vnpus(call.npu())


def _templates(call: _Call) -> str:
    return smitext.templates(call.npu())


def _shared(call: _Call) -> str:
    npu = call.npu()
    return pairs(("NPU ID", npu.card), ("Chip ID", npu.number), ("Device-share Status", npu.share))


# Changing


def _share(call: _Call) -> str:
    npu, wanted = call.npu(), call.word("-d")
    if wanted not in ("0", "1"):
        raise NpuError(f"The parameter -d is invalid: {wanted}.")
    prompt = "Set device-share of the chip? (Y/N): "
    if call.stdin.strip() not in _ANSWERED:
        raise _UnansweredError(prompt)
    npu.share = wanted == "1"
    return f"{prompt}\n" + pairs(("Status", "OK"), ("Message", "The device-share status is set."))


def _create(call: _Call) -> str:
    npu, number = call.npu(), call.number("-v") if "-v" in call.options else None
    made = call.npus.create(npu, call.word("-f"), number)
    return pairs(("Status", "OK"), ("Message", "Create vnpu success"), ("Vnpu ID", made.number))


def _destroy(call: _Call) -> str:
    npu, number = call.npu(), call.number("-v")
    if number not in npu.vnpus:
        raise NpuError(f"The vnpu {number} does not exist.")
    call.npus.destroy(number)
    return pairs(("Status", "OK"), ("Message", f"Destroy vnpu {number} success"))


_FORMS: Mapping[str, Callable[[_Call], str]] = {
    "info": _info,
    "info -l": _list,
    "info -m": _map,
    "info -t board": _board,
    "info -t phyid-remap": _phy,
    "info -t health": _health,
    "info -t info-vnpu": _vnpus,
    "info -t template-info": _templates,
    "info -t device-share": _shared,
    "set -t device-share": _share,
    "set -t create-vnpu": _create,
    "set -t destroy-vnpu": _destroy,
}
