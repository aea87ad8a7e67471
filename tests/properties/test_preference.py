"""Preferred devices against brute force, on random topologies of up to 10 ids."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from devplugin.amd.devices import Catalogue, devices
from devplugin.amd.inventory import Inventory
from devplugin.amd.irregular import Table, combine, descend
from devplugin.amd.preference import pair_weight, prefer
from devplugin.amd.selection import Structure
from devplugin.answers import PreferenceQuery

from ..devplugin.amd.builders import PARTITION, cut_gpu, inventory, soft_gpu


@st.composite
def nodes(draw: st.DrawFn) -> Inventory:
    """Whole and cut GPUs on up to three NUMA nodes, any link or none between any two KFD nodes."""
    shapes = draw(st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 2)), min_size=1, max_size=5))
    uniform = draw(st.booleans())
    gpus = []
    count = 1
    for i, (ways, numa) in enumerate(shapes):
        bdf = f"0000:{i:02x}:00.0"
        if ways == 1:
            gpus.append(soft_gpu(f"g{i}", node=count, render=127 + count, bdf=bdf, numa=numa))
        else:
            gpus.append(
                cut_gpu(
                    f"g{i}",
                    compute="dpx" if ways == 2 else "tpx",
                    ways=ways,
                    bdf=bdf,
                    first_node=count,
                    first_render=127 + count,
                    first_xcp=count,
                    numa=numa,
                )
            )
        count += ways
    owner = {part.node: i for i, gpu in enumerate(gpus) for part in gpu.partitions}
    kinds = st.sampled_from([None, 2, 11, 5])
    links = {}
    by_pair: dict[tuple[int, int], int | None] = {}
    for a, b in itertools.combinations(range(1, count), 2):
        pair = (owner[a], owner[b])
        if uniform:
            kind = by_pair[pair] if pair in by_pair else by_pair.setdefault(pair, draw(kinds))
        else:
            kind = draw(kinds)
        if kind is not None:
            links[a, b] = kind
    return inventory(*gpus, links=links)


@settings(deadline=None)
@given(st.data(), nodes(), st.integers(1, 3), st.sampled_from(["besteffort", "spread"]))
def test_the_answer_keeps_the_contract_and_no_other_set_is_better(
    data: st.DataObject, node: Inventory, split: int, policy: str
) -> None:
    chosen_settings = replace(PARTITION, split_count=split, allocator_policy=policy)
    names = [name for device in devices(node, chosen_settings) for name in device.kubelet_ids]
    available = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=10, unique=True))
    must = data.draw(st.lists(st.sampled_from(available), max_size=3, unique=True))
    size = data.draw(st.integers(len(must), len(available)))

    answer = prefer(node, chosen_settings, PreferenceQuery(tuple(available), tuple(must), size))

    assert len(answer) == len(set(answer)) == size
    assert set(must) <= set(answer) <= set(available)
    catalogue = Catalogue(node, chosen_settings)
    device = {name: found[0] for name in available if (found := catalogue.slot(name))}
    weights = {
        (a, b): 0 if device[a] is device[b] else pair_weight(device[a], device[b], node)
        for a, b in itertools.permutations(available, 2)
    }

    def total(ids: tuple[str, ...]) -> int:
        return sum(weights[pair] for pair in itertools.combinations(ids, 2))

    def distinct(ids: tuple[str, ...]) -> int:
        return len({device[name].key for name in ids})

    rest = [name for name in available if name not in must]
    every = [tuple(must) + more for more in itertools.combinations(rest, size - len(must))]
    most = max(map(distinct, every))
    assert distinct(answer) == most
    allowed = [total(ids) for ids in every if distinct(ids) == most]
    assert total(answer) == (max(allowed) if policy == "spread" else min(allowed))


@given(st.data(), st.integers(3, 6), st.booleans())
def test_groups_of_any_sizes_and_weights_get_the_best_counts_and_ties_go_to_the_first(
    data: st.DataObject, count: int, largest: bool
) -> None:
    inside = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    between = [[0] * count for _ in range(count)]
    for i, j in itertools.combinations(range(count), 2):
        between[i][j] = between[j][i] = data.draw(st.integers(0, 4))
    low = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    high = [x + data.draw(st.integers(0, 3)) for x in low]
    size = data.draw(st.integers(sum(low), sum(high)))
    order = data.draw(st.permutations(range(count)))

    def total(counts: tuple[int, ...]) -> int:
        return sum(w * c * (c - 1) // 2 for w, c in zip(inside, counts, strict=True)) + sum(
            between[i][j] * counts[i] * counts[j] for i, j in itertools.combinations(range(count), 2)
        )

    ranges = [range(a, b + 1) for a, b in zip(low, high, strict=True)]
    every = [counts for counts in itertools.product(*ranges) if sum(counts) == size]
    sign = -1 if largest else 1
    expected = min(every, key=lambda counts: (sign * total(counts), [-counts[g] for g in order]))
    found = Structure(inside, between).choose(low, high, size, order, largest=largest)
    assert tuple(found) == expected


@given(st.data(), st.integers(3, 8))
def test_the_local_search_is_a_choice_that_exists_and_no_better_than_the_best(
    data: st.DataObject, count: int
) -> None:
    weights = [[0] * count for _ in range(count)]
    for i, j in itertools.combinations(range(count), 2):
        weights[i][j] = weights[j][i] = data.draw(st.integers(0, 90))
    roots = [Table(0, [0, data.draw(st.integers(-5, 5))]) for _ in range(count)]
    size = data.draw(st.integers(1, count))
    totals = {
        sum(roots[i].costs[1] for i in chosen)
        + sum(weights[i][j] for i, j in itertools.combinations(chosen, 2))
        for chosen in itertools.combinations(range(count), size)
    }
    found = descend(roots, weights, size)
    assert found in totals
    assert found >= min(totals)
    assert combine(roots, weights, size, [0] * count) == min(totals)
