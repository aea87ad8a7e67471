"""What is asked of a node: extended resources of containers, pods in a QoS class, partition histories.

Pods are the JSON objects that `gpusim.cluster.pods` makes, so a simulated kubelet and API server take them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from gpusim.amd.partition import MODES
from gpusim.cluster.pods import Object, container, pod
from gpusim.testing.history import STEPS, Step
from gpusim.testing.strategies.arguments import among, between, flag, words

QOS = ("BestEffort", "Burstable", "Guaranteed")
"""Kubernetes' classes, the plainest first."""
_WRONG_MODES = ("SPXX", "cpx", "", "ALL", "\x00", "spx\nspx")


def requests(
    *,
    resources: Iterable[str] = ("amd.com/gpu",),
    memory: str | None = "amd.com/gpumem",
    cores: str | None = "amd.com/gpucores",
    max_count: int = 8,
    max_mib: int = 294_896,
    max_cores: int = 100,
) -> st.SearchStrategy[dict[str, int]]:
    """Limits of one container: a count of one resource, perhaps with memory (MiB) and cores (percent).

    Args:
        resources: names to choose from, such as ``amd.com/cpx_nps1``.
        memory: name of the memory resource; None: never asked for.
        cores: name of the core resource; None: never asked for.
        max_count: at most so many devices.
        max_mib: at most so many MiB each.
        max_cores: at most so many cores each.

    Shrinks to one device of the first resource and nothing else.

    Raises:
        InvalidArgument: nothing to choose from, a bound below 1.
    """
    names = words("resources", resources)
    for name, bound in (("max_count", max_count), ("max_mib", max_mib), ("max_cores", max_cores)):
        between("1", 1, name, bound, least=1)
    counts = st.tuples(st.sampled_from(names), st.integers(1, max_count)).map(lambda pair: dict((pair,)))
    optional: dict[str, st.SearchStrategy[int]] = {}
    if memory is not None:
        optional[memory] = st.integers(1, max_mib)
    if cores is not None:
        optional[cores] = st.integers(1, max_cores)
    return st.tuples(counts, st.fixed_dictionaries({}, optional=optional)).map(lambda pair: pair[0] | pair[1])


def request_mixes(
    *, requests: st.SearchStrategy[dict[str, int]] | None = None, min_size: int = 0, max_size: int = 8
) -> st.SearchStrategy[list[dict[str, int]]]:
    """Limits of several containers that arrive one after the other, with gaps: ``{}`` asks for nothing.

    Args:
        requests: of one container; None: `requests` as it is.
        min_size: at least so many.
        max_size: at most so many.

    Shrinks to few, small requests.

    Raises:
        InvalidArgument: a bound out of range.
    """
    between("min_size", min_size, "max_size", max_size)
    one = _requests() if requests is None else requests
    return st.lists(st.one_of(one, st.just({})), min_size=min_size, max_size=max_size)


_requests = requests


def pods(
    *,
    requests: st.SearchStrategy[dict[str, int]] | None = None,
    qos: Iterable[str] | None = None,
    namespaces: Iterable[str] = ("default",),
    max_containers: int = 2,
    init_containers: bool = True,
    node: str | None = None,
) -> st.SearchStrategy[Object]:
    """Pod objects as JSON, in one of the QoS classes.

    Args:
        requests: limits of one container; None: `requests` as it is, or none at all.
        qos: classes to choose from; None: all three.
        namespaces: to choose from.
        max_containers: at most so many containers, at least 1.
        init_containers: one or two of them may come first, some of them side-cars.
        node: ``spec.nodeName``.

    Shrinks to one container without requests, BestEffort, in the first namespace.

    Raises:
        InvalidArgument: an unknown class, nothing to choose from, a bound out of range.
    """
    classes = among("qos", qos, QOS)
    spaces = words("namespaces", namespaces)
    between("1", 1, "max_containers", max_containers, least=1)
    flag("init_containers", init_containers)
    nothing: st.SearchStrategy[dict[str, int]] = st.just({})
    limits = st.one_of(nothing, _requests() if requests is None else requests)
    return _pods(
        limits=limits,
        classes=classes,
        namespaces=spaces,
        max_containers=max_containers,
        init_containers=init_containers,
        node=node,
    )


@st.composite
def _pods(
    draw: st.DrawFn,
    *,
    limits: st.SearchStrategy[dict[str, int]],
    classes: Sequence[str],
    namespaces: Sequence[str],
    max_containers: int,
    init_containers: bool,
    node: str | None,
) -> Object:
    number = draw(st.integers(0, 2**32 - 1))
    qos = draw(st.sampled_from(classes))
    asked = draw(st.lists(limits, min_size=1, max_size=max_containers))
    before: list[tuple[dict[str, int], bool]] = []
    if init_containers:
        before = draw(st.lists(st.tuples(limits, st.booleans()), max_size=2))
    mains = [container(f"c{place}", mine) for place, mine in enumerate(asked)]
    inits = [container(f"i{place}", mine, restartable=car) for place, (mine, car) in enumerate(before)]
    _class(qos, [*inits, *mains])
    return pod(
        f"pod-{number}",
        mains,
        namespace=draw(st.sampled_from(namespaces)),
        init_containers=inits,
        node=node,
        uid=f"{number:08x}-0000-4000-8000-000000000000",
    )


def _class(qos: str, containers: Sequence[Object]) -> None:
    """CPU and memory that make a pod of this class."""
    if qos == "BestEffort":
        return
    for one in containers if qos == "Guaranteed" else containers[-1:]:
        resources: dict[str, Any] = one.setdefault("resources", {})
        if qos == "Guaranteed":
            resources["limits"] = {**resources.get("limits", {}), "cpu": "1", "memory": "1Gi"}
        resources["requests"] = {**resources.get("limits", {}), "cpu": "1"}


def histories(
    *,
    steps: Iterable[str] | None = None,
    modes: Iterable[str] | None = None,
    wrong_modes: bool = True,
    max_gpus: int = 8,
    min_size: int = 0,
    max_size: int = 20,
) -> st.SearchStrategy[list[Step]]:
    """Partition histories: switches, hot-plug, processes that hold KFD, resets and hangs.

    Args:
        steps: words of `gpusim.testing.history.STEPS` to choose from, the simplest first; None: all.
        modes: what switches ask for; None: all compute modes.
        wrong_modes: some switches ask for what is no mode, or is one in other letters.
        max_gpus: steps name GPUs 0 to this less one; a smaller node takes them modulo.
        min_size: at least so many steps.
        max_size: at most so many.

    Shrinks to few steps on GPU 0, switches to SPX.

    Raises:
        InvalidArgument: an unknown word, nothing to choose from, a bound out of range.
    """
    chosen = among("steps", steps, STEPS)
    wanted = among("modes", modes, MODES)
    flag("wrong_modes", wrong_modes)
    between("1", 1, "max_gpus", max_gpus, least=1)
    between("min_size", min_size, "max_size", max_size)
    texts = (*wanted, *(_WRONG_MODES if wrong_modes else ()))
    # Switches are half of all steps, where they are asked for; every step takes three draws, whatever it is,
    # so that none is simpler than a switch because it is shorter.
    weights = ("switch",) * (len(chosen) - 1) if "switch" in chosen else ()
    step = st.tuples(
        st.sampled_from((*weights, *chosen)), st.integers(0, max_gpus - 1), st.sampled_from(texts)
    )
    made = step.map(lambda drawn: Step(drawn[0], drawn[1], drawn[2] if drawn[0] == "switch" else ""))
    return st.lists(made, min_size=min_size, max_size=max_size)
