"""The best counts of device groups that have no symmetry left: by enumeration, else by a local search.

The part of `selection` for irregular links, where modules do not merge any further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LIMIT = 1 << 17
"""Most combinations that are enumerated (about 20 ms)."""

_NEVER = 1 << (1 << 14)
"""More than any cost: impossible."""


@dataclass(frozen=True, slots=True)
class Table:
    """One module: `costs[i]` is the best cost of taking ``low + i`` members of it."""

    low: int
    costs: list[int]

    @property
    def high(self) -> int:
        """Most members it can give."""
        return self.low + len(self.costs) - 1


def combine(
    roots: Sequence[Table], weights: Sequence[Sequence[int]], size: int, inside: Sequence[int | None]
) -> int:
    """Best cost over several modules that do not merge."""
    last, domains = _plan(roots, weights, inside)
    work = 0
    for p in last:
        combinations = 1
        for i, domain in enumerate(domains):
            combinations *= 1 if i == p else len(domain)
        work += combinations
    if work > LIMIT:
        return descend(roots, weights, size)
    return min(_enumerate(roots, weights, size, domains, p) for p in last)


def _plan(
    roots: Sequence[Table], weights: Sequence[Sequence[int]], inside: Sequence[int | None]
) -> tuple[list[int], list[Sequence[int]]]:
    """Which module's count follows from the others', one run for each, and what the others may take.

    Two groups whose members weigh at most as much among themselves as across (on average) are, in a
    cheapest choice, not both taken in part: moving members from one to the other changes the cost along a
    concave curve, whose least value is at an end. So of such groups all but one are at an end.
    """
    count = len(roots)
    ends: list[int] = []
    for i in range(count):
        own = inside[i]
        if own is not None and all(own + (inside[j] or 0) <= 2 * weights[i][j] for j in ends):
            ends.append(i)
    domains: list[Sequence[int]] = [
        tuple({table.low, table.high}) if i in ends else range(table.low, table.high + 1)
        for i, table in enumerate(roots)
    ]
    partial = [i for i in ends if len(roots[i].costs) > 2]
    if partial:
        # With no group in part, the run of any of them finds it: its ends are within its range.
        return partial, domains
    return [max(range(count), key=lambda i: len(roots[i].costs))], domains


def _enumerate(
    roots: Sequence[Table],
    weights: Sequence[Sequence[int]],
    size: int,
    domains: Sequence[Sequence[int]],
    last: int,
) -> int:
    """Best cost over all combinations of the domains; the count of module `last` follows from the sum.

    Grows all combinations at once, module by module, in flat lists: cost so far, sum so far, and for
    each module to come the weight of one of its members towards what was taken.
    """
    order = [i for i in range(len(roots)) if i != last]
    costs, sums = [0], [0]
    pulls = {i: [0] for i in range(len(roots))}
    for position, i in enumerate(order):
        table, pull = roots[i], pulls.pop(i)
        costs = [
            cost + table.costs[c - table.low] + c * p
            for c in domains[i]
            for cost, p in zip(costs, pull, strict=True)
        ]
        sums = [s + c for c in domains[i] for s in sums]
        for j in (*order[position + 1 :], last):
            pulls[j] = [p + weights[i][j] * c for c in domains[i] for p in pulls[j]]
    table = roots[last]
    candidates = [
        cost + table.costs[size - s - table.low] + (size - s) * p
        for cost, s, p in zip(costs, sums, pulls[last], strict=True)
        if table.low <= size - s <= table.high
    ]
    return min(candidates, default=_NEVER)


def descend(roots: Sequence[Table], weights: Sequence[Sequence[int]], size: int) -> int:
    """A good cost in bounded time: fill greedily, then move members between two modules while it pays."""
    counts = [table.low for table in roots]

    def pull(i: int) -> int:
        return sum(w * c for j, (w, c) in enumerate(zip(weights[i], counts, strict=True)) if j != i)

    def step(i: int) -> int:
        offset = counts[i] - roots[i].low
        return roots[i].costs[offset + 1] - roots[i].costs[offset] + pull(i)

    for _ in range(size - sum(counts)):
        counts[min((i for i, t in enumerate(roots) if counts[i] < t.high), key=step)] += 1
    for _ in range(20):
        moved = False
        for i, source in enumerate(roots):
            for j, target in enumerate(roots):
                most = min(counts[i] - source.low, target.high - counts[j])
                if i == j or most <= 0:
                    continue
                across = weights[i][j]
                slope = pull(j) - pull(i) + across * (counts[j] - counts[i])
                gain, moves = min(
                    (
                        source.costs[counts[i] - t - source.low]
                        - source.costs[counts[i] - source.low]
                        + target.costs[counts[j] + t - target.low]
                        - target.costs[counts[j] - target.low]
                        + slope * t
                        + across * ((counts[i] - t) * (counts[j] + t) - counts[i] * counts[j]),
                        t,
                    )
                    for t in range(1, most + 1)
                )
                if gain < 0:
                    counts[i] -= moves
                    counts[j] += moves
                    moved = True
        if not moved:
            break
    cost = sum(table.costs[c - table.low] for table, c in zip(roots, counts, strict=True))
    return cost + sum(weights[i][j] * counts[i] * counts[j] for i in range(len(roots)) for j in range(i))
