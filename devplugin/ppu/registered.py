"""The register annotation read back: which index each card of the node has.

The monitor is a program of its own and knows the node's cards from what the plugin wrote there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class RegistrationError(Exception):
    """It cannot be read; one line says why."""


class _Entry(msgspec.Struct):
    id: str
    index: int = 0


_decoder = msgspec.json.Decoder(list[_Entry])


def indices(text: str) -> Mapping[str, int]:
    """UUID → index.

    Raises:
        RegistrationError: no list of cards, or one card twice.
    """
    try:
        entries = _decoder.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RegistrationError(f"no list of cards: {str(error)!a}") from error
    found = {entry.id: entry.index for entry in entries}
    if len(found) < len(entries):
        raise RegistrationError("a card stands twice")
    return found
