"""A plan of what goes wrong: which operation, the how-manyth, and what happens to it.

A plan is a value: it can be drawn, written into a trace and read back. `gpusim.testing.faulty` puts it in
front of a host; `arm` hands the rest of it to a simulated kubelet and API server. Every verb is a row of
`VERBS`, which docs/faults.md lists. Sources of what is imitated: kernel.md 2.1 (EBUSY and EPERM of a switch),
6 and 7 (EIO of a GPU that hangs, GPUs that leave), kfd.md 1 (EPERM of guarded attributes), cases K3 to K8.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpusim.errors import GpusimError

if TYPE_CHECKING:
    from gpusim.testing.clock import Clock

OPERATIONS = (
    "read",
    "write",
    "list",
    "readlink",
    "stat",
    "probe",
    "put",
    "mkdir",
    "rmdir",
    "unlink",
    "rename",
    "chmod",
    "copy",
    "run",
)
"""What a host can be asked; ``*`` is any of them."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One row: what a fault can do."""

    where: str
    """``host`` (a file operation fails), ``machine`` (a GPU changes behind an operation), ``kubelet`` or
    ``api``."""
    on: str
    """The operation struck unless the fault says otherwise."""
    needs: tuple[str, ...]
    """Fields of `Fault` without which it means nothing."""
    does: str
    """The sentence in docs/faults.md."""


VERBS: Mapping[str, Verb] = MappingProxyType(
    {
        "eio": Verb("host", "read", (), "the operation fails with EIO, as on a GPU that hangs"),
        "eperm": Verb("host", "read", (), "the operation fails with EPERM, as of a GPU in reset"),
        "ebusy": Verb("host", "write", (), "the operation fails with EBUSY, as a switch of a GPU in use"),
        "slow": Verb("host", "read", ("seconds",), "the operation takes that many virtual seconds first"),
        "truncate": Verb("host", "read", (), "only the first `size` bytes are read (default: none)"),
        "pad": Verb("host", "read", (), "NULs follow up to a multiple of `size` bytes (default: a page)"),
        "vanish": Verb(
            "host", "list", (), "after the list its last name (or `name`) is gone: ENOENT from then on"
        ),
        "unplug": Verb("machine", "list", ("gpu",), "after the operation the GPU is pulled out of the node"),
        "plug": Verb("machine", "list", ("gpu",), "after the operation the pulled GPU is put back"),
        "hang": Verb("machine", "list", ("gpu",), "after the operation the GPU stops answering"),
        "reset": Verb("machine", "list", ("gpu",), "after the operation the GPU is in reset"),
        "recover": Verb("machine", "list", ("gpu",), "after the operation the GPU answers again"),
        "options-fail": Verb("kubelet", "", (), "the next `times` GetDevicePluginOptions calls fail (K6)"),
        "version": Verb("kubelet", "", ("name",), "kubelet accepts only API version `name` (K8)"),
        "dial-slow": Verb("kubelet", "", ("seconds",), "dialling back takes so many real seconds (K7)"),
        "allocate-slow": Verb("kubelet", "", ("seconds",), "an Allocate waits so many real seconds"),
        "kubelet-restart": Verb("kubelet", "", (), "kubelet dies and starts again after `seconds` (K3)"),
        "kubelet-kill": Verb("kubelet", "", (), "kubelet dies after `seconds`, its socket stays (K4)"),
        "stream-cut": Verb(
            "kubelet", "", ("name",), "after `seconds` the stream of resource `name` ends (K5)"
        ),
        "api-error": Verb("api", "", (), "requests `on` (an RBAC verb) of resource `path` answer `code`"),
        "api-drop": Verb("api", "", (), "the connection closes without an answer, nothing was done"),
        "api-lose": Verb("api", "", (), "the request is carried out and the answer is lost"),
        "api-slow": Verb("api", "", ("seconds",), "the answer takes so many real seconds"),
    }
)
"""Every verb, by where it strikes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Raises:
        GpusimError: an unknown verb or operation, a field that it needs is missing, a value of another type
            or out of range.
    """

    verb: str
    """Key of `VERBS`."""
    path: str = "*"
    """Shell pattern of the path as it was asked for (``*`` crosses ``/``); for ``api-…`` the resource."""
    on: str = ""
    """Operation that is struck, ``*`` for any; empty: the verb's own. For ``api-…`` an RBAC verb."""
    nth: int = 1
    """The first matching operation that is struck, counted from 1."""
    times: int | None = 1
    """How many are struck; None: all from then on."""
    gpu: str = ""
    """PCI address, for the machine's verbs."""
    name: str = ""
    """The name that vanishes; a resource or API version for kubelet's verbs."""
    seconds: float = 0.0
    size: int = 0
    """Bytes."""
    code: int = 500
    """HTTP status of ``api-error``."""

    def __post_init__(self) -> None:
        row = VERBS.get(self.verb) if isinstance(self.verb, str) else None
        if row is None:
            raise GpusimError(f"fault verb {self.verb!r}: one of {', '.join(VERBS)}")
        self._of_their_types()
        missing = [field for field in row.needs if not getattr(self, field)]
        if missing:
            raise GpusimError(f"fault {self.verb}: {missing[0]} is needed")
        if row.where in ("host", "machine") and self.on not in ("", "*", *OPERATIONS):
            raise GpusimError(
                f"fault {self.verb}: no operation {self.on!r}; there are {', '.join(OPERATIONS)}"
            )
        if self.verb in ("truncate", "pad") and self.on not in ("", "read"):
            raise GpusimError(f"fault {self.verb}: only a read hands out bytes")
        if self.verb == "vanish" and self.on not in ("", "list"):
            raise GpusimError("fault vanish: a name vanishes after a list")
        if self.nth < 1 or (self.times is not None and self.times < 1) or self.size < 0:
            raise GpusimError(f"fault {self.verb}: nth and times start at 1, size is not negative")
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise GpusimError(f"fault {self.verb}: seconds are finite and not negative")
        if not 400 <= self.code <= 599:
            raise GpusimError(f"fault {self.verb}: an error has a code from 400 to 599, not {self.code}")

    def _of_their_types(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "verb" or (value is None and field.name == "times"):
                continue
            wanted = _TYPES.get(field.name, (str,))
            if not isinstance(value, wanted) or isinstance(value, bool):
                what = " or ".join(kind.__name__ for kind in wanted)
                raise GpusimError(f"fault {self.verb}: {field.name} = {value!r:.60} is no {what}")

    @property
    def where(self) -> str:
        """``host``, ``machine``, ``kubelet`` or ``api``."""
        return VERBS[self.verb].where

    @property
    def operation(self) -> str:
        """The operation that is struck."""
        return self.on or VERBS[self.verb].on

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from their defaults, for a trace."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v for k, v in found.items() if k == "verb" or v != _DEFAULTS[k]}


_TYPES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"nth": (int,), "times": (int,), "size": (int,), "code": (int,), "seconds": (int, float)}
)
"""Of the fields that are no texts; `times` may be None, too."""
_DEFAULTS = {field.name: field.default for field in fields(Fault)}


@dataclass(frozen=True, slots=True)
class Plan:
    """Faults in the order they are looked at: of several that are due, all strike.

    ``Plan()`` lets nothing go wrong.

    Raises:
        GpusimError: it is not made of faults, as with a comma forgotten: ``Plan((Fault("eio")))``.
    """

    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        given: Any = self.faults
        if not isinstance(given, (tuple, list)) or not all(isinstance(fault, Fault) for fault in given):
            raise GpusimError(f"a plan is made of a tuple of faults, Plan((Fault(…),)), not of {given!r:.80}")
        object.__setattr__(self, "faults", tuple(given))

    def on(self, *where: str) -> tuple[Fault, ...]:
        """The faults of some places: ``host``, ``machine``, ``kubelet``, ``api``."""
        return tuple(fault for fault in self.faults if fault.where in where)

    def to_json(self) -> list[dict[str, Any]]:
        """As JSON, for a trace."""
        return [fault.to_json() for fault in self.faults]

    @classmethod
    def from_json(cls, value: Any) -> Plan:
        """The plan of `to_json`.

        Raises:
            GpusimError: not a list of faults; an unknown field, a wrong type, or what `Fault` refuses.
        """
        if not isinstance(value, list):
            raise GpusimError("a fault plan is a list")
        return cls(tuple(_fault(entry) for entry in value))


def _fault(value: Any) -> Fault:
    if not isinstance(value, Mapping) or "verb" not in value:
        raise GpusimError("a fault is a JSON object with a verb")
    for key in value:
        if key not in _DEFAULTS:
            raise GpusimError(f"fault: unknown field {key!r}; known: {', '.join(_DEFAULTS)}")
    return Fault(**value)


_HOST_SIZES = {"truncate": (0, 1, 7), "pad": (16, 4096)}


def seeded(
    seed: int,
    *,
    faults: int = 4,
    gpus: Sequence[str] = (),
    paths: Sequence[str] = ("*",),
    verbs: Sequence[str] | None = None,
    within: int = 200,
) -> Plan:
    """A plan made by a seed: the same arguments give the same plan everywhere, whatever PYTHONHASHSEED.

    Args:
        seed: any int.
        faults: how many.
        gpus: addresses that the machine's verbs choose from; none: those verbs are left out.
        paths: patterns that the host's verbs choose from.
        verbs: what may happen; None: every verb of host and machine.
        within: each fault strikes one of the first so many matching operations.

    Raises:
        GpusimError: an unknown verb, nothing to choose from, numbers below what makes sense.
    """
    chosen = (
        [v for v, row in VERBS.items() if row.where in ("host", "machine")] if verbs is None else list(verbs)
    )
    unknown = [verb for verb in chosen if verb not in VERBS]
    if unknown:
        raise GpusimError(f"fault verb {unknown[0]!r}: one of {', '.join(VERBS)}")
    chosen = [verb for verb in chosen if gpus or VERBS[verb].where != "machine"]
    if faults < 0 or within < 1 or not paths or (faults and not chosen):
        raise GpusimError("a seeded plan needs faults >= 0, within >= 1, a path and a verb that can strike")
    dice = random.Random(seed)
    return Plan(tuple(_roll(dice, chosen, gpus, paths, within) for _ in range(faults)))


def _roll(
    dice: random.Random, verbs: Sequence[str], gpus: Sequence[str], paths: Sequence[str], within: int
) -> Fault:
    verb = dice.choice(verbs)
    row = VERBS[verb]
    return Fault(
        verb,
        path="*" if row.where in ("kubelet", "api") else dice.choice(paths),
        nth=dice.randint(1, within),
        times=dice.choice((1, 1, 2, None)) if row.where == "host" else 1,
        gpu=dice.choice(gpus) if row.where == "machine" else "",
        name={"version": "v1", "stream-cut": "amd.com/gpu"}.get(verb, ""),
        seconds=float(dice.choice((1, 5, 30))) if "seconds" in row.needs else 0.0,
        size=dice.choice(_HOST_SIZES.get(verb, (0,))),
    )


def arm(plan: Plan, *, kubelet: Any = None, api: Any = None, clock: Clock | None = None) -> None:
    """Give a simulated kubelet and API server their part of a plan.

    Args:
        plan: faults of host and machine are passed over: they are `Faulty`'s.
        kubelet: a `gpusim.cluster.kubelet.Kubelet`; None: its faults are passed over.
        api: a `gpusim.cluster.apiserver.ApiServer`, or its store with ``faults``; None: passed over.
        clock: when kubelet dies and restarts; without one a fault with `seconds` is refused, others act now.

    Raises:
        GpusimError: a fault of kubelet that needs a clock.
    """
    for fault in plan.on("kubelet") if kubelet is not None else ():
        _arm_kubelet(fault, kubelet, clock)
    for fault in plan.on("api") if api is not None else ():
        from gpusim.cluster.apifaults import parse

        body: dict[str, Any] = {"nth": fault.nth, "times": fault.times, "code": fault.code}
        action = fault.verb.removeprefix("api-")
        body |= {"action": "none" if action == "slow" else action, "delay": fault.seconds}
        body |= {"verb": fault.on or None, "resource": None if fault.path == "*" else fault.path}
        api.faults.add(parse(body))


def _arm_kubelet(fault: Fault, kubelet: Any, clock: Clock | None) -> None:
    settings = {
        "options-fail": ("options_failures", fault.times or 1 << 30),
        "version": ("accepted_version", fault.name),
        "dial-slow": ("dial_delay", fault.seconds),
        "allocate-slow": ("allocate_delay", fault.seconds),
    }
    if fault.verb in settings:
        name, value = settings[fault.verb]
        setattr(kubelet.faults, name, value)
        return
    act = {
        "kubelet-restart": kubelet.restart,
        "kubelet-kill": kubelet.kill,
        "stream-cut": lambda: kubelet.cancel_stream(fault.name),
    }[fault.verb]
    if not fault.seconds:
        act()
    elif clock is None:
        raise GpusimError(f"fault {fault.verb}: seconds need a clock")
    else:
        clock.after(fault.seconds, act)
