"""What a strategy's arguments may be: refused at once, by name, with what was found."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hypothesis.errors import InvalidArgument


def among(
    name: str, given: Iterable[str] | None, known: Collection[str], *, empty: bool = False
) -> tuple[str, ...]:
    """The words of `given` in its order without repeats; None: all that are known.

    Raises:
        InvalidArgument: a single string, an unknown word, or none at all.
    """
    if given is None:
        return tuple(known)
    if isinstance(given, str):
        raise InvalidArgument(f"{name}={given!r}: a collection of words is needed, ({given!r},) for one")
    words = tuple(dict.fromkeys(given))
    for word in words:
        if word not in known:
            raise InvalidArgument(f"{name}: {word!r} is none of {', '.join(map(str, known))}")
    if not words and not empty:
        raise InvalidArgument(f"{name}: nothing to choose from")
    return words


def words(name: str, given: Iterable[str], *, empty: bool = False) -> tuple[str, ...]:
    """Free words.

    Raises:
        InvalidArgument: a single string, something that is no string, or none at all.
    """
    if isinstance(given, str):
        raise InvalidArgument(f"{name}={given!r}: a collection of words is needed, ({given!r},) for one")
    found = tuple(dict.fromkeys(given))
    if not all(isinstance(word, str) for word in found):
        raise InvalidArgument(f"{name}: only strings are allowed, found {found!r}")
    if not found and not empty:
        raise InvalidArgument(f"{name}: nothing to choose from")
    return found


def between(
    low_name: str, low: int, high_name: str, high: int, *, least: int = 0, most: int | None = None
) -> None:
    """Two bounds.

    Raises:
        InvalidArgument: not ints, below `least`, above `most`, or the wrong way round.
    """
    for name, value in ((low_name, low), (high_name, high)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidArgument(f"{name}={value!r}: an int is needed")
        if value < least:
            raise InvalidArgument(f"{name}={value}: at least {least}")
        if most is not None and value > most:
            raise InvalidArgument(f"{name}={value}: at most {most}")
    if low > high:
        raise InvalidArgument(f"{low_name}={low} is above {high_name}={high}")


def flag(name: str, value: object, *, either: bool = False) -> None:
    """True or False; with `either` None too.

    Raises:
        InvalidArgument: anything else.
    """
    if not isinstance(value, bool) and not (either and value is None):
        raise InvalidArgument(
            f"{name}={value!r}: True{', False or None' if either else ' or False'} is needed"
        )
