"""How many devices to take of each group, so that the sum of pair weights is exactly minimal or maximal.

Pure integers: no device, no id. A *group* holds interchangeable members (partitions of one GPU, slots of
one GPU): one weight inside, one towards each other group. What matters is only how many are taken of each,
which turns the subset search that explodes in the public plugin (performance.md: 62 of 64 in 1.1 s, 600 MB)
into a small one over counts:

* Groups that look alike to all others (the GPUs of one socket) merge into one *module*, and modules merge
  again; a module is a table "total taken → best sum inside". Merging is a min-plus convolution, because the
  weight between two modules is uniform: ``m·a·b``; equal groups even have a closed form (`_pile`). Real
  nodes merge down to a single module. Exact.
* What does not merge (irregular links) is enumerated over the counts of the modules left, except that
  groups whose members belong together are taken wholly or not at all but for one. Exact, up to `LIMIT`
  combinations: that covers 16 GPUs with any weights whatever.
* Beyond that (dozens of devices without any symmetry) a local search gives a good answer in bounded
  time; only there it is not proven to be the best.

Ties go to the lexicographically greatest counts in the caller's order of groups. The counts are written
into the low bits of every cost, so one integer minimum decides both, and the answer is read from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add

LIMIT = 1 << 17
"""Most combinations that are enumerated (about 20 ms)."""

_NEVER = 1 << (1 << 14)
"""More than any cost: impossible."""


@dataclass(frozen=True, slots=True)
class _Merge:
    """Modules that look alike from outside become one; `weight` is between any two of them."""

    members: tuple[int, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class _Table:
    """One module: `costs[i]` is the best cost of taking ``low + i`` members of it."""

    low: int
    costs: list[int]

    @property
    def high(self) -> int:
        return self.low + len(self.costs) - 1


class Structure:
    """The weights of a set of groups, with what can be known of them before any request.

    Args:
        inside: weight of a pair within each group.
        between: symmetric matrix, weight of a pair across two groups; the diagonal is not looked at.
    """

    def __init__(self, inside: Sequence[int], between: Sequence[Sequence[int]]) -> None:
        self.inside = tuple(inside)
        self.merges: list[_Merge] = []
        """Module ``len(inside) + i`` is the result of ``merges[i]``."""
        modules = list(range(len(inside)))
        rows: Sequence[Sequence[int]] = between
        while len(classes := _alike(rows)) < len(modules):
            merged = []
            for cls in classes:
                if len(cls) == 1:
                    merged.append(modules[cls[0]])
                    continue
                merged.append(len(inside) + len(self.merges))
                self.merges.append(_Merge(tuple(modules[i] for i in cls), rows[cls[0]][cls[1]]))
            rows = [[rows[a[0]][b[0]] for b in classes] for a in classes]
            modules = merged
        self.roots = tuple(modules)
        """Modules that nothing merges any further."""
        self.weights = rows
        """Between the roots."""

    def choose(
        self, low: Sequence[int], high: Sequence[int], size: int, order: Sequence[int], *, largest: bool
    ) -> list[int]:
        """Counts for each group, between `low` and `high`, with sum `size` and extreme total weight.

        Args:
            low: least members to take of each group.
            high: most members to take of each group.
            size: members to take in all; between the sums of `low` and `high`.
            order: all group numbers, the one whose count a tie should make large first.
            largest: maximise the total weight instead of minimising it.
        """
        variable = [group for group in order if high[group] > low[group]]
        bits = max((high[group] - low[group] for group in variable), default=1).bit_length()
        shifts = {group: bits * position for position, group in enumerate(reversed(variable))}
        scale = 2 << bits * len(variable)  # twice what the counts need: half of it must be whole
        unit = -scale if largest else scale
        spare = (sum(low), sum(high), size)
        tables = [
            _clip(
                _Table(
                    low[g],
                    [
                        unit * weight * (c * (c - 1) // 2) - ((c - low[g]) << shifts.get(g, 0))
                        for c in range(low[g], high[g] + 1)
                    ],
                ),
                low[g],
                high[g],
                spare,
            )
            for g, weight in enumerate(self.inside)
        ]
        bounds = list(zip(low, high, strict=True))
        rank = {group: position for position, group in enumerate(order)}
        for merge in self.merges:
            members = tuple(sorted(merge.members, key=lambda member: rank.get(member, member)))
            table, bound = _fold(
                _Merge(members, merge.weight), tables, bounds, spare, unit=unit, inside=self.inside
            )
            tables.append(table)
            bounds.append(bound)
        roots = [tables[root] for root in self.roots]
        if len(roots) == 1:
            best = roots[0].costs[size - roots[0].low]
        else:
            inside = [self.inside[r] if r < len(self.inside) else None for r in self.roots]
            best = _combine(
                roots,
                [[unit * w for w in row] for row in self.weights],
                size,
                [None if weight is None else unit * weight for weight in inside],
            )
        code = -best % scale
        mask = (1 << bits) - 1
        return [
            count + (code >> shifts[group] & mask if group in shifts else 0)
            for group, count in enumerate(low)
        ]


def _alike(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Classes of modules that could be swapped: equal weights to all third ones.

    Being swappable is an equivalence, so comparing with one member of each class is enough, and all
    pairs within a class have one weight.
    """
    classes: list[list[int]] = []
    for i, row in enumerate(rows):
        for cls in classes:
            j = cls[0]
            other = rows[j]
            if all(row[x] == other[x] or x in (i, j) for x in range(len(rows))):
                cls.append(i)
                break
        else:
            classes.append([i])
    return classes


def _clip(table: _Table, low: int, high: int, spare: tuple[int, int, int]) -> _Table:
    """Without the counts that no total of `size` can use, given what all the others can take."""
    lows, highs, size = spare
    first = max(table.low, size - (highs - high))
    last = min(table.high, size - (lows - low))
    if first == table.low and last == table.high:
        return table
    return _Table(first, table.costs[first - table.low : last + 1 - table.low])


def _fold(
    merge: _Merge,
    tables: Sequence[_Table],
    bounds: Sequence[tuple[int, int]],
    spare: tuple[int, int, int],
    *,
    unit: int,
    inside: Sequence[int],
) -> tuple[_Table, tuple[int, int]]:
    """The table of merged modules, `merge.members` in tie order.

    With ``m·a·b = m/2·((a+b)² - a² - b²)`` the weight across becomes a matter of each table alone, and
    what remains is a plain min-plus convolution.
    """
    half = unit * merge.weight // 2
    piles: dict[object, list[int]] = {}
    for member in merge.members:
        table = tables[member]
        leaf = member < len(inside)
        piles.setdefault((inside[member], table.low, table.high) if leaf else member, []).append(member)
    low = high = 0
    total: _Table | None = None
    for members in piles.values():
        bent = [
            _Table(table.low, [x - half * c * c for c, x in enumerate(table.costs, table.low)])
            for table in (tables[member] for member in members)
        ]
        pile, least, most = bent[0], *(sum(bounds[member][end] for member in members) for end in (0, 1))
        if len(bent) > 1:
            pile = _pile(bent, evenly=unit * (inside[members[0]] - merge.weight) > 0)
            pile = _clip(pile, least, most, spare)
        low, high = low + least, high + most
        total = pile if total is None else _convolve(total, pile, low, high, spare)
    assert total is not None
    return _Table(total.low, [x + half * c * c for c, x in enumerate(total.costs, total.low)]), (low, high)


def _pile(bent: Sequence[_Table], *, evenly: bool) -> _Table:
    """The convolution of groups of one kind and size, given in tie order.

    Where taking more of a group costs ever more, the cheapest steps of all come first (the merge of
    convex tables); where it costs ever less, groups are filled one after the other.
    """
    steps = [b - a for table in bent for a, b in pairwise(table.costs)]
    if evenly:
        steps.sort()
    return _Table(
        sum(table.low for table in bent),
        list(accumulate(steps, initial=sum(table.costs[0] for table in bent))),
    )


def _convolve(a: _Table, b: _Table, low: int, high: int, spare: tuple[int, int, int]) -> _Table:
    """Best cost of each total of two modules, for the totals in use."""
    if len(a.costs) > len(b.costs):
        a, b = b, a
    lows, highs, size = spare
    base = a.low + b.low
    first = max(base, size - (highs - high))
    last = min(a.high + b.high, size - (lows - low))
    if len(a.costs) == 1:
        shift = a.costs[0]
        return _Table(first, [x + shift for x in b.costs[first - base : last + 1 - base]])
    return _Table(first, _pairwise(a.costs, b.costs, range(first - base, last + 1 - base)))


def _pairwise(a: Sequence[int], b: Sequence[int], totals: range) -> list[int]:
    """Least sum of one of each, for each total of their positions."""
    backwards = b[::-1]
    costs = []
    for total in totals:
        # Pairs (i, total - i): i runs up through a while the reversed b runs along.
        start = max(0, total - len(b) + 1)
        stop = min(len(a), total + 1)
        begin = len(b) - 1 - total + start
        costs.append(min(map(add, a[start:stop], backwards[begin : begin + stop - start])))
    return costs


def _combine(
    roots: Sequence[_Table], weights: Sequence[Sequence[int]], size: int, inside: Sequence[int | None]
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
        return _descend(roots, weights, size)
    return min(_enumerate(roots, weights, size, domains, p) for p in last)


def _plan(
    roots: Sequence[_Table], weights: Sequence[Sequence[int]], inside: Sequence[int | None]
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
    roots: Sequence[_Table],
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


def _descend(roots: Sequence[_Table], weights: Sequence[Sequence[int]], size: int) -> int:
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
