"""Flags as Go's flag package takes them, and one error for what is refused.

Charts and manifests were written for Go daemons: one dash or two, the value behind `=` or as the next word,
booleans bare or behind `=`. Every daemon here takes just those forms. A flag that is none, or whose value
does not parse, prints the usage and exits 2; what is understood and refused is told in one line with name
and value, exit 1 (decision 34, amd.md 1.1, libraries.md on argparse).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO][0-7]+|0[0-7]*|[1-9][0-9]*)")
_OCTAL = re.compile(r"([+-]?)0([0-7]+)")
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]{1,4})?|inf|infinity|nan)", re.I)

SEVERITIES = ("INFO", "WARNING", "ERROR", "FATAL")


class SettingsError(Exception):
    """A choice that is understood and refused. The text is one line: name, value, what to do."""

    exit_code = 1


def go_bool(text: str) -> bool:
    """What Go's strconv.ParseBool accepts, and nothing else."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"invalid boolean value {shown(text)}: use true or false")


def go_int(text: str) -> int:
    """A 64-bit integer as strconv.ParseInt reads it with base 0: 16, 0x10, 0o20, 020, 0b10000.

    Neither blanks nor `1_0`: Go would take an underscore between digits, but nobody means one in a chart.
    """
    if len(text) > 100 or _INTEGER.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"invalid integer value {shown(text)}")
    number = int(_OCTAL.sub(r"\g<1>0o\2", text) if _OCTAL.fullmatch(text) else text, 0)
    if not -(1 << 63) <= number < 1 << 63:
        raise argparse.ArgumentTypeError(f"integer value out of range: {shown(text)}")
    return number


def go_float(text: str) -> float:
    """A decimal number, also `inf` and `nan`, which the owner of the flag then refuses by name."""
    if _NUMBER.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"invalid number {shown(text)}")
    return float(text)


def severity(text: str) -> str:
    """A glog severity by name or by number 0..3."""
    name = SEVERITIES[int(text)] if text in {"0", "1", "2", "3"} else text.upper()
    if name not in SEVERITIES:
        raise argparse.ArgumentTypeError(f"invalid severity {shown(text)}: one of {', '.join(SEVERITIES)}")
    return name


def shown(text: str, limit: int = 60) -> str:
    """A foreign text as one printable, bounded, quoted word (decision 25)."""
    return ascii(text if len(text) <= limit else text[:limit] + "…")


class GoParser(argparse.ArgumentParser):
    """An `ArgumentParser` whose command line follows Go's flag package.

    Flags are declared with `add_flag`. One and two dashes mean the same; a value follows `=` or, except
    for booleans, as the next word; a bare boolean is true; `--` ends the flags. There are no positional
    words, no abbreviations and no glued values (`-v4`). The result's `explicit` names the flags given.
    """

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        """Make a parser that knows only `-help`."""
        super().__init__(
            prog=prog,
            usage=f"{prog} [-flag value | -flag=value]…",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.add_argument("-help", "-h", action="help", help="print this and exit")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse Go's forms; what `parse_args` calls. Never leaves anything over."""
        import sys  # the command line itself; tests hand in their own words

        words = self._canonical(sys.argv[1:] if args is None else args)
        found, rest = super().parse_known_args(words, namespace)
        found.explicit = frozenset(word[1:].partition("=")[0] for word in words)
        return found, rest

    def _canonical(self, words: Sequence[str]) -> list[str]:
        """Every flag as one word, `-name=value`: the only form argparse then sees."""
        known = self._option_string_actions
        out: list[str] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "--":  # ends the flags; what follows would be words, and there are none
                if rest:
                    self.error(f"unexpected argument {shown(rest[0])}")
                break
            body = word[2:] if word.startswith("--") else word[1:]
            if not word.startswith("-") or not body or body[0] in "-=":
                self.error(f"unexpected argument {shown(word)} (a boolean takes its value after '=')")
            name, equals, value = body.partition("=")
            action = known.get(f"-{name}")
            if action is None:
                self.error(f"flag provided but not defined: {shown('-' + name)}")
            if action.nargs == 0:  # -help
                out.append(f"-{name}")
            elif equals:
                out.append(f"-{name}={value}")
            elif action.type is go_bool:
                out.append(f"-{name}=true")
            elif rest:
                out.append(f"-{name}={rest.pop(0)}")
            else:
                self.error(f"flag needs an argument: -{name}")
        return out

    def error(self, message: str) -> NoReturn:
        """Usage and the reason on stderr, exit 2, as Go's flag package does."""
        self.exit(2, f"{self.prog}: {message}\n{self.format_usage()}run {self.prog} -help for all flags\n")


def bind_address(text: str, flag: str = "metrics_bind_address") -> tuple[str, int]:
    """Host and port, as Go writes them: ``:9394``, ``[::1]:9394``, ``host:0``.

    Args:
        text: of the command line.
        flag: whose value it is.

    Raises:
        SettingsError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if bracketed else host
    number = int(port) if port.isascii() and port.isdecimal() and len(port) < 6 else 1 << 16
    if not colon or number >= 1 << 16 or (":" in plain) != bracketed or set(plain) & set("[]/ "):
        raise SettingsError(
            f"-{flag}={shown(text)}: expected HOST:PORT, as :9394, 127.0.0.1:9394, [::1]:9394"
        )
    return plain, number


def add_flag(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    name: str,
    kind: Any,
    default: Any,
    text: str,
) -> None:
    """Declare one flag: its name without dashes, the parser of its value, default and meaning.

    The help line gets the default appended, so that `-help` is a complete table.
    """
    plain = str(default).lower() if isinstance(default, bool) else "none" if default is None else str(default)
    parser.add_argument(
        f"-{name}",
        dest=name,
        type=kind,
        default=default,
        metavar={go_bool: "bool", go_int: "int", go_float: "float"}.get(kind, "text"),
        help=f"{text} (default {plain or 'empty'})".replace("%", "%%"),
    )


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that every vendor's plugin has: where the node is, kubelet, logging.

    Values: `root`, `simulate`, `dry_run`, `kubelet_dir`, `metrics_bind_address`, `expect`, `update`, `junit`,
    `v`, `logtostderr`, `stderrthreshold`.
    """
    node = add_node_flags(parser)
    add_flag(node, "dry_run", go_bool, False, "print registration and offers as one JSON object, and exit")
    add_flag(node, "check", go_bool, False, "look whether the plugin could serve here, print it, and exit")
    add_flag(
        node,
        "cleanup",
        go_bool,
        False,
        "remove this plugin's annotations and capacity from the node object, and exit: after an uninstall",
    )
    add_flag(node, "json", go_bool, False, "with -check and -cleanup: print one JSON object")
    add_flag(node, "kubelet_dir", str, "/var/lib/kubelet/device-plugins", "directory of kubelet.sock")
    add_flag(
        node,
        "metrics_bind_address",
        str,
        "",
        "serve /healthz and metrics of the plugin itself there: :9395, 127.0.0.1:9395; empty: nowhere",
    )
    golden = parser.add_argument_group("comparing a dry run with a golden result")
    add_flag(golden, "expect", str, None, "compare with this file; exit 1 and a diff when they differ")
    add_flag(golden, "update", go_bool, False, "write the file of -expect anew where it differs")
    add_flag(golden, "junit", str, None, "also write the comparison as a JUnit report to this file")
    add_log_flags(parser)


def add_node_flags(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Which node a daemon works on: `root`, `simulate`."""
    node = parser.add_argument_group("the node to work on")
    add_flag(node, "root", str, "/", "read and write every path under this directory, or in a packed capture")
    add_flag(node, "simulate", str, "", "work on a simulated node: a fixture, or unix:SOCKET of a served one")
    return node


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    """What every daemon logs, and where: `v`, `logtostderr`, `stderrthreshold`."""
    log = parser.add_argument_group("logging")
    add_flag(log, "v", go_int, 0, "verbosity: 4 adds topology parsing, 5 annotation decoding")
    add_flag(log, "logtostderr", go_bool, True, "write all log lines to standard error; there are no files")
    add_flag(log, "stderrthreshold", severity, "ERROR", "lowest severity written with -logtostderr=false")
