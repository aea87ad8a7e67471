"""Compares what `-dry_run` says of a recorded node with a golden result: for CI that replays captures.

A golden file is the report itself (`-dry_run -expect FILE -update` writes it), so it can be read and reviewed
like any other file. Two reports are equal when they are the same JSON values; a difference is shown as a
unified diff whose hunks are headed by the place in the report, with the device's id.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from xml.sax.saxutils import escape, quoteattr

from devplugin.host import Kind, Stat
from devplugin.settings import SettingsError, shown

CONTEXT = 3
LONGEST = 400
"""Lines of a diff that are shown."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Files(Protocol):
    """Where golden files and JUnit reports lie: the real file system."""

    def read(self, path: str) -> bytes:
        """The whole content; OSError."""
        ...

    def stat(self, path: str, *, follow: bool = True) -> Stat:
        """Kind and mode; OSError."""
        ...

    def put(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write at once and whole; OSError."""
        ...


@dataclass(frozen=True, slots=True)
class Golden:
    """What the flags ask for."""

    expect: str
    """The golden file."""
    update: bool = False
    """Write it where it differs."""
    junit: str = ""
    """Also write a JUnit report there; empty: none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a comparison ended."""

    equal: bool
    message: str
    """One line."""
    diff: str = ""
    error: bool = False
    """There was nothing to compare: the node could not be read."""


def golden(*, expect: str | None, update: bool, junit: str | None, dry_run: bool) -> Golden | None:
    """What the flags ask for; None when there is nothing to compare.

    Args:
        expect: None when the flag is not there.
        update: write the golden file.
        junit: None when the flag is not there.
        dry_run: whether it is one.

    Raises:
        SettingsError: a file has no name (``-expect "$UNSET"`` must not pass for a comparison), or one of
            the flags is there without the one it belongs to.
    """
    for flag, path in (("expect", expect), ("junit", junit)):
        if path == "":
            raise SettingsError(f"-{flag}='': is empty; name a file")
    if expect is None:
        if update:
            raise SettingsError("-update=true: only with -expect FILE, which names the file to write")
        if junit:
            raise SettingsError(
                f"-junit={shown(junit)}: only with -expect FILE, which names what to compare with"
            )
        return None
    if not dry_run:
        raise SettingsError(f"-expect={shown(expect)}: only with -dry_run, whose result is compared")
    return Golden(expect, update, junit or "")


def replay(report: Mapping[str, Any], asked: Golden, files: Files, *, suite: str) -> Verdict:
    """Compare a report with its golden file, and write what was asked for.

    Args:
        report: of JSON's types.
        asked: the flags.
        files: where they are read and written.
        suite: name of the JUnit suite: the program.

    Raises:
        SettingsError: a file cannot be read or written.
    """
    verdict = _updated(report, asked, files) if asked.update else _compared(report, asked, files)
    _told(verdict, asked, files, suite)
    return verdict


def failed(why: str, asked: Golden, files: Files, *, suite: str) -> None:
    """Say in the JUnit report that there was nothing to compare, lest CI reads the one of an earlier run.

    Args:
        why: one line.
        asked: the flags.
        files: where the report is written.
        suite: name of the JUnit suite.

    Raises:
        SettingsError: the report cannot be written.
    """
    _told(Verdict(False, why, error=True), asked, files, suite)


def _told(verdict: Verdict, asked: Golden, files: Files, suite: str) -> None:
    if asked.junit:
        _put(files, "junit", asked.junit, junit(verdict, suite, asked.expect).encode())


def _comparable(report: Mapping[str, Any], wanted: Any) -> Mapping[str, Any]:
    """The report, without its settings where the golden file says nothing of them.

    Who wrote a result by hand, or before there were settings, is interested in the devices.
    """
    if isinstance(wanted, dict) and "settings" not in wanted:
        return {key: value for key, value in report.items() if key != "settings"}
    return report


def _compared(report: Mapping[str, Any], asked: Golden, files: Files) -> Verdict:
    before = _golden(asked, files)
    if before is None:
        return Verdict(False, f"{asked.expect}: does not exist; write it with -update, and read it")
    try:
        value = json.loads(before)
        report = _comparable(report, value)
        if _sorted(value) == _sorted(report):
            return Verdict(True, f"{asked.expect}: as expected")
        difference = diff(value, report, asked.expect)
    except RecursionError:  # what a person wrote or a merge left is never so deep
        return Verdict(False, f"{asked.expect}: is nested too deeply; write it anew with -update")
    except ValueError as error:
        return Verdict(False, f"{asked.expect}: is no JSON ({error}); write it anew with -update")
    changed = sum(line[:1] in "+-" for line in difference.splitlines()[2:])
    return Verdict(False, f"{asked.expect}: {changed} lines differ", difference)


def _sorted(value: Any) -> str:
    """What two equal JSON values share; Python's own ``==`` takes ``true`` for 1."""
    return json.dumps(value, sort_keys=True)


def _updated(report: Mapping[str, Any], asked: Golden, files: Files) -> Verdict:
    text = (json.dumps(report, indent=2) + "\n").encode()
    _refuse_irregular(files, "expect", asked.expect)  # before it is read: a pipe would never answer
    before = _golden(asked, files)
    if before == text:
        return Verdict(True, f"{asked.expect}: as expected, not touched")
    mode = 0o644 if before is None else files.stat(asked.expect).mode
    _put(files, "expect", asked.expect, text, mode)
    return Verdict(True, f"{asked.expect}: {'written' if before is None else 'updated'}")


def _golden(asked: Golden, files: Files) -> bytes | None:
    try:
        return files.read(asked.expect)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"-expect={shown(asked.expect, 200)}: {error.strerror}") from error


def _put(files: Files, flag: str, path: str, data: bytes, mode: int = 0o644) -> None:
    _refuse_irregular(files, flag, path)
    try:
        files.put(path, data, mode)
    except OSError as error:
        raise SettingsError(f"-{flag}={shown(path, 200)}: {error.strerror}") from error


def _refuse_irregular(files: Files, flag: str, path: str) -> None:
    """Refuse what putting, which renames, would destroy: a device, a pipe, a link.

    A link is not followed: ``/dev/stdout`` is one, and what it leads to is no file of ours.

    Raises:
        SettingsError: something is there that is no regular file.
    """
    try:
        kind = files.stat(path, follow=False).kind
    except OSError:
        return  # nothing is there, or putting says what is wrong
    if kind is Kind.DIRECTORY:
        raise SettingsError(f"-{flag}={shown(path, 200)}: Is a directory")
    if kind is not Kind.FILE:
        raise SettingsError(f"-{flag}={shown(path, 200)}: is no regular file, and is not replaced")


# ------------------------------------------------------------------ what is different


def diff(expected: Any, found: Any, name: str) -> str:
    """A unified diff of two JSON values, each hunk headed by the place of its first change.

    Args:
        expected: what the golden file says.
        found: what this run says.
        name: of the golden file.

    Returns:
        At most `LONGEST` lines, each with its newline.
    """
    left, right = list(_lines(expected)), list(_lines(found))
    matcher = difflib.SequenceMatcher(None, [text for _, text in left], [text for _, text in right])
    out = [f"--- {name}", "+++ this run"]
    for group in matcher.get_grouped_opcodes(CONTEXT):
        out.append(f"@@ {_place(group, left, right)} @@")
        for tag, left_from, left_to, right_from, right_to in group:
            if tag == "equal":
                out += [f"  {text}" for _, text in left[left_from:left_to]]
                continue
            out += [f"- {text}" for _, text in left[left_from:left_to]]
            out += [f"+ {text}" for _, text in right[right_from:right_to]]
    if len(out) > LONGEST:
        out[LONGEST:] = [f"… and {len(out) - LONGEST} more lines"]
    return "".join(f"{line}\n" for line in out)


_Line = tuple[str, str]
"""Place in the value, and text."""


def _place(group: list[tuple[str, int, int, int, int]], left: list[_Line], right: list[_Line]) -> str:
    for tag, left_from, left_to, right_from, _ in group:
        if tag != "equal":
            return left[left_from][0] if left_from < left_to else right[right_from][0]
    return ""


def _lines(value: Any, place: str = "", indent: int = 0, head: str = "", tail: str = "") -> Iterator[_Line]:
    """The lines that ``json.dumps(value, indent=2)`` has, each with its place."""
    pad = " " * indent
    if isinstance(value, dict) and value:
        yield place, f"{pad}{head}{{"
        for number, (key, inner) in enumerate(value.items(), 1):
            comma = "," if number < len(value) else ""
            where = f"{place}.{key}" if place else key
            yield from _lines(inner, where, indent + 2, f"{json.dumps(key)}: ", comma)
        yield place, f"{pad}}}{tail}"
    elif isinstance(value, list) and value:
        yield place, f"{pad}{head}["
        for number, inner in enumerate(value, 1):
            comma = "," if number < len(value) else ""
            yield from _lines(inner, f"{place}[{_label(number - 1, inner)}]", indent + 2, "", comma)
        yield place, f"{pad}]{tail}"
    else:
        yield place, f"{pad}{head}{json.dumps(value)}{tail}"


def _label(number: int, inner: Any) -> str:
    name = (inner.get("id") or inner.get("device")) if isinstance(inner, dict) else None
    return f"{number} {name}" if isinstance(name, str) else str(number)


def junit(verdict: Verdict, suite: str, case: str) -> str:
    """A JUnit report of one comparison, as CI systems read it."""
    tag = "" if verdict.equal else "error" if verdict.error else "failure"
    counts = f'tests="1" failures="{int(tag == "failure")}" errors="{int(tag == "error")}"'
    body = ""
    if tag:
        text = escape(_printable(verdict.diff or verdict.message))
        body = f"\n      <{tag} message={_attribute(verdict.message)}>{text}</{tag}>\n    "
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<testsuites {counts}>\n"
        f'  <testsuite name={_attribute(suite)} {counts} skipped="0">\n'
        f"    <testcase classname={_attribute(suite)} name={_attribute(case)}>{body}</testcase>\n"
        "  </testsuite>\n</testsuites>\n"
    )


def _attribute(text: str) -> str:
    return quoteattr(_printable(text))


def _printable(text: str) -> str:
    """Without what XML 1.0 cannot hold, escaped or not."""
    return _NOT_XML.sub("\ufffd", text)
