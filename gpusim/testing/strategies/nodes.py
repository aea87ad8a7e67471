"""Nodes: which product, how many GPUs, in what modes, under which kernel and driver.

Everything shrinks to ``node('MI355X', each=[{}])``: one GPU of the first product, first release, SPX, NPS1,
nothing odd. The ways there are short: GPUs are a list whose elements say only what is special, so a GPU goes
by dropping an element and a peculiarity by dropping a key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from gpusim.amd.partition import MODES, legal
from gpusim.amd.products import PRODUCTS
from gpusim.errors import GpusimError
from gpusim.kernel import behaviour
from gpusim.spec import CardSpec, NodeSpec
from gpusim.testing.build import node
from gpusim.testing.strategies.arguments import among, between, flag

RELEASES = (
    ("6.14", "dkms-6.14.14"),
    ("6.17", "in-tree"),
    ("7.2", "in-tree"),
    ("6.12", "in-tree"),
    ("6.8.0-79-generic", "in-tree"),
    ("6.8.0-136-generic", "dkms-6.14.14"),
    ("5.15", "in-tree"),
)
"""Kernel and driver of a node, the simplest first."""
_ANY_NPS = (1, 2, 4)
_DRAWS = 60
"""Divisible by every number of modes there is: 1 to 5 under one memory mode, up to 12 with all."""
_OTHERS = (
    CardSpec("i915", "0000:00:02.0", 0x8086, 0x56A0),
    CardSpec("nvidia", "0000:3b:00.0", 0x10DE, 0x2330),
)


def products(
    *, partitionable: bool | None = None, sriov: bool | None = None, apu: bool | None = None
) -> st.SearchStrategy[str]:
    """Names of the product table, MI355X first where it is among them.

    Args:
        partitionable: only such with compute partitions, or only such without.
        sriov: only virtual functions, or none.
        apu: only APUs, or none.

    Raises:
        InvalidArgument: no product is all of that.
    """
    return st.sampled_from(_products(partitionable=partitionable, sriov=sriov, apu=apu))


def _products(
    *, partitionable: bool | None = None, sriov: bool | None = None, apu: bool | None = None
) -> tuple[str, ...]:
    for name, value in (("partitionable", partitionable), ("sriov", sriov), ("apu", apu)):
        flag(name, value, either=True)
    found = [
        product.name
        for product in PRODUCTS.values()
        if partitionable in (None, product.partitionable)
        and sriov in (None, product.vf)
        and apu in (None, product.apu)
    ]
    if not found:
        raise InvalidArgument("no product is all of that")
    return tuple(sorted(found, key=lambda name: name != "MI355X"))


def releases(*, pairs: Iterable[tuple[str, str]] | None = None) -> st.SearchStrategy[tuple[str, str]]:
    """Pairs of kernel and driver, as `NodeSpec` takes them.

    Args:
        pairs: those to choose from, the simplest first; None: `RELEASES`.

    Raises:
        InvalidArgument: none, or a release that nothing is known of.
    """
    return st.sampled_from(_releases(pairs))


def _releases(given: Iterable[tuple[str, str]] | None) -> tuple[tuple[str, str], ...]:
    if given is None:
        return RELEASES
    pairs = tuple(given)
    if not pairs:
        raise InvalidArgument("releases: nothing to choose from")
    for kernel, driver in pairs:
        try:
            behaviour(kernel, driver)
        except GpusimError as error:
            raise InvalidArgument(str(error)) from error
    return pairs


def nodes(
    *,
    products: Iterable[str] | None = None,
    min_gpus: int = 1,
    max_gpus: int = 8,
    modes: Iterable[str] | None = None,
    releases: Iterable[tuple[str, str]] | None = None,
    sriov: bool | None = None,
    mixed: bool = True,
    numa: bool = True,
    bmc: bool | None = None,
    odd: bool = True,
) -> st.SearchStrategy[NodeSpec]:
    """Nodes that can exist: `Machine` takes every one.

    Args:
        products: names to choose from, the simplest first; None: all that `sriov` admits.
        min_gpus: at least so many GPUs.
        max_gpus: at most so many, up to 72.
        modes: compute modes to choose from where silicon, kernel and memory mode allow them; SPX is always
            allowed. None: all.
        releases: pairs of kernel and driver; None: `RELEASES`.
        sriov: only virtual functions (True), or none.
        mixed: GPUs may differ in mode and memory mode, and rarely in product.
        numa: a GPU's NUMA node may be another one, unknown (-1), or have no file (None).
        bmc: a baseboard display takes card0 (True), or there is none; None: either.
        odd: what goes wrong on real nodes: GPUs without driver or with vfio-pci, without unique_id,
            partitions that KFD hides, the 64-minor limit, displays of other vendors.

    Shrinks to one GPU of the first product under the first release, SPX, nothing odd.

    Raises:
        InvalidArgument: an unknown word, a bound out of range, or nothing to choose from.
    """
    between("min_gpus", min_gpus, "max_gpus", max_gpus, most=72)
    chosen = _products(sriov=sriov) if products is None else among("products", products, PRODUCTS)
    if sriov is not None and products is not None:
        flag("sriov", sriov)
        chosen = tuple(name for name in chosen if PRODUCTS[name].vf == sriov)
        if not chosen:
            raise InvalidArgument(f"products: none of them is{'' if sriov else ' not'} a virtual function")
    wanted = among("modes", modes, MODES)
    for name, value in (("mixed", mixed), ("numa", numa), ("odd", odd)):
        flag(name, value)
    flag("bmc", bmc, either=True)
    return _nodes(
        products=chosen,
        sizes=(min_gpus, max_gpus),
        modes=wanted,
        releases=_releases(releases),
        mixed=mixed,
        numa=numa,
        bmc=bmc,
        odd=odd,
    )


@st.composite
def _nodes(
    draw: st.DrawFn,
    *,
    products: tuple[str, ...],
    sizes: tuple[int, int],
    modes: tuple[str, ...],
    releases: tuple[tuple[str, str], ...],
    mixed: bool,
    numa: bool,
    bmc: bool | None,
    odd: bool,
) -> NodeSpec:
    product = draw(st.sampled_from(products))
    kernel, driver = draw(st.sampled_from(releases))
    fields: dict[str, Any] = {}
    if (kernel, driver) != RELEASES[0]:
        fields |= {"kernel": kernel, "driver": driver}
    several = mixed and len(products) > 1 and draw(_rarely())
    common: dict[str, Any] = {} if mixed else draw(_modes(product, (kernel, driver), modes))
    pool = products if several else (product,)
    special: dict[str, Any] = {"usual": product, "release": (kernel, driver), "modes": modes if mixed else ()}
    each = st.sampled_from(pool).flatmap(lambda mine: _gpu(product=mine, numa=numa, odd=odd, **special))
    gpus = draw(st.lists(each, min_size=sizes[0], max_size=sizes[1]))
    if common:
        fields["gpu"] = common
    if bmc or (bmc is None and draw(st.booleans())):
        fields["bmc"] = True
    if odd and draw(_rarely()):
        fields |= draw(_oddities(tuple(mine.get("product", product) for mine in gpus)))
    return draw(
        st.builds(node, st.just(product), each=st.just(gpus), **{k: st.just(v) for k, v in fields.items()})
    )


def _rarely() -> st.SearchStrategy[bool]:
    """A lucky branch behind a boolean: off when it shrinks, and off mostly."""
    return st.integers(0, 7).map(lambda n: n == 7)


def _modes(
    product: str, release: tuple[str, str], modes: Collection[str]
) -> st.SearchStrategy[dict[str, Any]]:
    """Compute and memory mode as fields of a GPU; what is a default is left out."""
    row, rules = PRODUCTS[product], behaviour(*release)
    pairs = [
        (mode, nps)
        for nps in (_ANY_NPS if row.vf else row.nps_modes or (1,))
        for mode in MODES
        if (mode in modes or mode == "SPX") and legal(row, mode, nps, rules)
    ]
    pairs.sort(key=lambda pair: (pair[1], MODES.index(pair[0])))

    def fields(pair: tuple[str, int]) -> dict[str, Any]:
        mode, nps = pair
        return ({} if mode == "SPX" else {"mode": mode}) | ({} if nps == 1 else {"nps": nps})

    # One draw whatever the product: else a product with a single mode would count as the simpler one.
    return st.integers(0, _DRAWS - 1).map(lambda n: fields(pairs[n % len(pairs)]))


@st.composite
def _gpu(
    draw: st.DrawFn,
    *,
    product: str,
    usual: str,
    release: tuple[str, str],
    modes: tuple[str, ...],
    numa: bool,
    odd: bool,
) -> dict[str, Any]:
    """What is special about one GPU."""
    mine: dict[str, Any] = {} if product == usual else {"product": product}
    if modes:
        mine |= draw(_modes(product, release, modes))
    if numa and draw(_rarely()):
        mine["numa"] = draw(st.sampled_from((0, 7, -1, None)))
    if odd and draw(_rarely()):
        mine |= draw(
            st.sampled_from(({"bound": None}, {"bound": "vfio-pci"}, {"unique_id": 0}, {"hive_id": 0}))
        )
    return mine


def _oddities(products: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """What is special about the node as a whole."""
    known: list[dict[str, Any]] = [
        {"minors_per_type": 64},
        {"cards": (_OTHERS[0],)},
        {"cards": _OTHERS},
        {"cgroup_driver": "cgroupfs"},
        {"p2p": False},
    ]
    if any(PRODUCTS[name].partitionable for name in products):
        known += [{"kfd_partitions": "hidden"}, {"kfd_partitions": "truncated"}]
    return st.sampled_from(known)
