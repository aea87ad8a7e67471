"""What can happen to a node, as data; and how to tell the shortest story of what went wrong.

A history is a tuple of happenings, each with the seconds that pass before it. They name pods, never objects,
so any of them can be left out and the rest still means something: that is what shrinking needs. Every
happening is a sentence, and a counter-example is these sentences in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

_SIDES = {"before": "on its way to", "after": "just after"}


@dataclass(frozen=True, slots=True)
class Wish:
    """What one container asks for: `count` devices, of each a share; 100 % of both is the whole device."""

    count: int = 1
    memory: int = 100
    """Per cent of a device's memory."""
    cores: int = 100
    """Per cent of a device's compute units."""

    @property
    def whole(self) -> bool:
        """Whether nothing is shared."""
        return self.memory == self.cores == 100

    def __str__(self) -> str:
        if not self.count:
            return "no device"
        devices = "a device" if self.count == 1 else f"{self.count} devices"
        return devices if self.whole else f"{self.cores} % of the CUs of {devices}"


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happens, `after` seconds later than the one before."""

    after: float


@dataclass(frozen=True, slots=True)
class PodComes(Happening):
    """Somebody creates a pod."""

    pod: str
    wishes: tuple[Wish, ...]

    def __str__(self) -> str:
        asked = ", then ".join(map(str, self.wishes))
        return f"Pod {self.pod} is created; its containers ask for {asked}."


@dataclass(frozen=True, slots=True)
class PodEnds(Happening):
    """A running pod ends by itself."""

    pod: str
    phase: str = "Succeeded"

    def __str__(self) -> str:
        return f"Pod {self.pod} ends as {self.phase}."


@dataclass(frozen=True, slots=True)
class PodGoes(Happening):
    """Somebody deletes a pod, in whatever state it is."""

    pod: str

    def __str__(self) -> str:
        return f"Pod {self.pod} is deleted."


@dataclass(frozen=True, slots=True)
class DaemonDies(Happening):
    """SIGKILL at one of the daemon's next calls to the API server, or at once; it is started again soon."""

    calls: int | None
    """How many calls later; None: now."""
    side: str = "before"
    away: float = 1.0

    def __str__(self) -> str:
        when = (
            "at once" if self.calls is None else f"{_SIDES[self.side]} its API call {self.calls + 1} from now"
        )
        return f"The daemon is killed {when} and started again {self.away:.1f} s later."


@dataclass(frozen=True, slots=True)
class ServerFails(Happening):
    """The API server answers nobody for some time."""

    seconds: float

    def __str__(self) -> str:
        return f"The API server is away for {self.seconds:.1f} s."


@dataclass(frozen=True, slots=True)
class AnswersSpoil(Happening):
    """The daemon's next calls are answered badly."""

    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return f"The daemon's next API calls meet: {', '.join(self.kinds)}."


@dataclass(frozen=True, slots=True)
class KubeletRestarts(Happening):
    """Kubelet forgets every answer it had not written down."""

    asking: bool = False
    """Not now, but when it asks for devices the next time, before the answer."""

    def __str__(self) -> str:
        return f"Kubelet is restarted{' the next time it waits for devices' if self.asking else ''}."


@dataclass(frozen=True, slots=True)
class GpuSwitches(Happening):
    """Another tool writes a compute partition."""

    gpu: int
    mode: str
    idle_only: bool = False

    def __str__(self) -> str:
        unless = " if nobody uses it" if self.idle_only else ""
        return f"GPU {self.gpu} is switched to {self.mode}{unless}."


History = tuple[Happening, ...]


@dataclass
class Tally:
    """What a history came to."""

    pods: int = 0
    ran: int = 0
    failed: int = 0
    refused: int = 0
    daemons: int = 0
    switches: int = 0
    in_use: int = 0
    """Switches of a GPU that a pod held."""
    kubelets: int = 0
    outages: int = 0
    troubles: int = 0
    asked_twice: int = 0

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Tally(*(mine + theirs for mine, theirs in both))


def write(
    seed: str, *, pods: int, gpus: int, several: int, modes: Sequence[str], hard: bool, busy: float
) -> History:
    """A random history with `pods` pods in it.

    Args:
        seed: of everything.
        pods: how many come.
        gpus: how many there are.
        several: how many devices a container asks for at most.
        modes: compute partitions that GPUs are switched to; none: no switches.
        hard: whether partitions are offered, of which nobody gets a share.
        busy: other happenings for each pod.
    """
    chance = random.Random(f"history {seed}")
    told: list[Happening] = []
    came: list[str] = []
    for number in range(pods):
        # two pods share a name now and then, as those of a StatefulSet do
        name = f"web-{number}" if chance.random() < 0.85 or not came else chance.choice(came)
        told.append(PodComes(round(chance.expovariate(0.7), 3), name, _wishes(chance, several, hard)))
        came.append(name)
        while chance.random() < busy / (1 + busy):
            told.append(_other(chance, came, gpus, modes))
    return tuple(told)


def _wishes(chance: random.Random, most: int, hard: bool) -> tuple[Wish, ...]:
    """What fits on an empty node, whichever way the scheduler packs it."""
    wishes = []
    containers = chance.choice((1, 1, 1, 2, 2, 3))
    for _ in range(containers):
        several = min(most, 2 if containers > 2 else most, chance.choice((1, 1, 1, 2, 3)))
        kind = chance.choice(("none", "whole", "whole", "part", "part", "part", "thin"))
        if kind == "none":
            wishes.append(Wish(0))
        elif hard or kind == "whole":
            wishes.append(Wish(several))
        else:
            share = 8 if kind == "thin" else 60 if most > 1 else 45
            wishes.append(Wish(several, chance.randint(1, share), chance.randint(1, share)))
    asking = [wish for wish in wishes if wish.count]
    if not asking or (most == 1 and len(asking) > 1 and any(wish.whole for wish in asking)):
        return (Wish(),)
    return tuple(wishes if most > 1 else wishes[:2] if any(w.count for w in wishes[:2]) else asking)


def _other(chance: random.Random, came: Sequence[str], gpus: int, modes: Sequence[str]) -> Happening:
    after = round(chance.expovariate(1.0), 3)
    pod = chance.choice(came[-6:])
    kind = chance.choices(
        ("ends", "goes", "dies", "fails", "spoils", "kubelet", "switch"),
        (5, 5, 2, 0.7, 2, 0.8, 2 if modes else 0),
    )[0]
    if kind == "ends":
        return PodEnds(after, pod, chance.choice(("Succeeded", "Failed")))
    if kind == "goes":
        return PodGoes(after, pod)
    if kind == "dies":
        calls = None if chance.random() < 0.2 else chance.randrange(12)
        return DaemonDies(
            after, calls, chance.choice(("before", "after")), round(chance.uniform(0.1, 2.0), 1)
        )
    if kind == "fails":
        return ServerFails(after, round(chance.uniform(0.5, 12.0), 1))
    if kind == "spoils":
        kinds = ("500", "409", "lost", "silence", "silence unheard")
        return AnswersSpoil(after, tuple(chance.choices(kinds, k=chance.randint(1, 4))))
    if kind == "kubelet":
        return KubeletRestarts(after, chance.random() < 0.6)
    return GpuSwitches(after, chance.randrange(gpus), chance.choice(list(modes)), chance.random() < 0.5)


# -- telling ---------------------------------------------------------------------------------------------


def story(history: History, why: str) -> str:
    """The history in sentences, each after the time it happens, and how it ended."""
    lines, now = [], 0.0
    for number, happening in enumerate(history, 1):
        now += happening.after
        lines.append(f"{number:3}. {now:7.2f} s  {happening}")
    return "\n".join([*lines, f"     In the end: {why}"])


def shrink(
    history: History, fails: Callable[[History], str | None], tries: int = 200
) -> tuple[History, str | None]:
    """Leave out happenings, containers and waiting as long as it still fails.

    Args:
        history: that fails.
        fails: lives a history; why it failed, or None.
        tries: how often it may be asked.

    Returns:
        The shortest found, and why it fails; None: the history did not fail.
    """
    why = fails(history)
    if why is None:
        return history, None
    asked = 0

    def better(other: History) -> bool:
        nonlocal history, why, asked
        if asked >= tries:
            return False
        asked += 1
        found = fails(other)
        if found is None:
            return False
        history, why = other, found
        return True

    size = max(1, len(history) // 2)
    while True:
        at, shorter = 0, False
        while at < len(history):
            if better(_without(history, at, at + size)):
                shorter = True
            else:
                at += size
        if size > 1:
            size //= 2
        elif not shorter or asked >= tries:
            break
    for at in range(len(history)):
        while any(better((*history[:at], one, *history[at + 1 :])) for one in _simpler(history[at])):
            pass
    return history, why


def _without(history: History, first: int, last: int) -> History:
    """What is left still happens when it did: the waiting of what is left out stays."""
    waited = sum(one.after for one in history[first:last])
    rest = history[last:]
    if rest:
        rest = (replace(rest[0], after=round(rest[0].after + waited, 3)), *rest[1:])
    return (*history[:first], *rest)


def _simpler(one: Happening) -> list[Happening]:
    found: list[Happening] = []
    if isinstance(one, PodComes):
        found += [replace(one, wishes=(wish,)) for wish in one.wishes if len(one.wishes) > 1 and wish.count]
    if isinstance(one, AnswersSpoil) and len(one.kinds) > 1:
        found += [replace(one, kinds=(kind,)) for kind in one.kinds]
    if one.after > 1.0:
        found.append(replace(one, after=1.0))
    return found
