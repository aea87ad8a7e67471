"""Names and quantities of resources: what counts as an extended resource, and how many ``8Gi`` are.

Used by the API server (validation of pods and nodes) and by the kubelet (registration check, requests).
Rules: k8s.io/kubernetes ``pkg/apis/core/v1/helper`` and apimachinery's ``IsQualifiedName`` and ``Quantity``.
"""

from __future__ import annotations

import re
from fractions import Fraction

from gpusim.errors import GpusimError

_NAME = re.compile(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$", re.ASCII)
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", re.ASCII)
_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", re.ASCII)
_QUANTITY = re.compile(
    r"^([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d{1,3})|(m|n|u|[kMGTPE]|[KMGTPE]i)?)$", re.ASCII
)
"""An exponent of more digits is beyond every amount there can be, and as a number beyond every memory."""
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class QuantityError(GpusimError, ValueError):
    """A text that is no Kubernetes quantity."""


def is_subdomain(name: str) -> bool:
    """RFC 1123 subdomain, at most 253 characters: the names of pods, nodes and events."""
    return len(name) <= 253 and bool(_SUBDOMAIN.match(name)) and "\n" not in name


def is_dns_label(name: str) -> bool:
    """RFC 1123 label, at most 63 characters: the names of containers and namespaces."""
    return len(name) <= 63 and bool(_LABEL.match(name)) and "\n" not in name


def is_label_value(value: str) -> bool:
    """Empty, or at most 63 characters of the name alphabet."""
    return not value or (len(value) <= 63 and bool(_NAME.match(value)) and "\n" not in value)


def is_qualified(name: str) -> bool:
    """``name`` or ``prefix/name``: the keys of labels and annotations."""
    prefix, slash, last = name.rpartition("/")
    if slash and not is_subdomain(prefix):
        return False
    return 0 < len(last) <= 63 and bool(_NAME.match(last)) and "\n" not in last


def is_extended(resource: str) -> bool:
    """Whether a device plugin may register this name (kubelet.md 2, Register (3))."""
    if "/" not in resource or "kubernetes.io/" in resource or resource.startswith("requests."):
        return False
    return is_qualified(f"requests.{resource}")


def exact(quantity: str | int) -> Fraction:
    """The value of a Kubernetes quantity.

    Raises:
        QuantityError: it is none.
    """
    match = _QUANTITY.match(str(quantity)) if not isinstance(quantity, bool) else None
    if match is None or "\n" in str(quantity):
        raise QuantityError(f"{quantity!r} is no quantity")
    try:
        number, exponent, suffix = Fraction(match[1]), match[2], match[3]
    except ValueError:  # more digits than Python reads, and than there are bytes anywhere
        raise QuantityError(f"{str(quantity)[:60]!r}… is no quantity: too many digits") from None
    if exponent:
        return number * Fraction(10) ** int(exponent[1:])
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    return number * Fraction(10) ** _DECIMAL.get(suffix or "", 0)


def whole(quantity: str | int) -> int:
    """The value rounded up, as Go's ``Quantity.Value()``."""
    return -(-exact(quantity) // 1)
