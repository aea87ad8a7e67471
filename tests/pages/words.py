"""Command lines of `kubectl` and `helm`: flags with a value, switches, the rest; others are errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Words:
    """A parsed command line."""

    plain: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    """Behind ``--``."""
    values: dict[str, list[str]] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)

    def one(self, name: str, default: str = "") -> str:
        """The last value of a flag."""
        return self.values.get(name, [default])[-1]

    def all(self, name: str) -> list[str]:
        """All of its values."""
        return self.values.get(name, [])

    def has(self, switch: str) -> bool:
        """Whether a switch was given."""
        return switch in self.switches


def parse(argv: list[str], flags: Mapping[str, str], switches: Collection[str]) -> Words:
    """Take them apart.

    Args:
        argv: behind the program's name.
        flags: flag → name its value is kept under.
        switches: flags without value.
    """
    words, rest = Words(), list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            words.after = rest
            break
        if name in flags:
            words.values.setdefault(flags[name], []).append(value if equals else rest.pop(0))
        elif name in switches:
            words.switches.add(name)
        elif word.startswith("-") and word != "-":
            raise AssertionError(f"{word}: this stand-in does not know it")
        else:
            words.plain.append(word)
    return words
