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
  combinations: that covers any choice of 16 single devices, whatever the weights.
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

from devplugin.amd.irregular import Table, combine


@dataclass(frozen=True, slots=True)
class _Merge:
    """Modules that look alike from outside become one; `weight` is between any two of them."""

    members: tuple[int, ...]
    weight: int


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
                Table(
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
            best = combine(
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


def _clip(table: Table, low: int, high: int, spare: tuple[int, int, int]) -> Table:
    """Without the counts that no total of `size` can use, given what all the others can take."""
    lows, highs, size = spare
    first = max(table.low, size - (highs - high))
    last = min(table.high, size - (lows - low))
    if first == table.low and last == table.high:
        return table
    return Table(first, table.costs[first - table.low : last + 1 - table.low])


def _fold(
    merge: _Merge,
    tables: Sequence[Table],
    bounds: Sequence[tuple[int, int]],
    spare: tuple[int, int, int],
    *,
    unit: int,
    inside: Sequence[int],
) -> tuple[Table, tuple[int, int]]:
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
    total: Table | None = None
    for members in piles.values():
        bent = [
            Table(table.low, [x - half * c * c for c, x in enumerate(table.costs, table.low)])
            for table in (tables[member] for member in members)
        ]
        pile, least, most = bent[0], *(sum(bounds[member][end] for member in members) for end in (0, 1))
        if len(bent) > 1:
            pile = _pile(bent, evenly=unit * (inside[members[0]] - merge.weight) > 0)
            pile = _clip(pile, least, most, spare)
        low, high = low + least, high + most
        total = pile if total is None else _convolve(total, pile, low, high, spare)
    assert total is not None
    return Table(total.low, [x + half * c * c for c, x in enumerate(total.costs, total.low)]), (low, high)


def _pile(bent: Sequence[Table], *, evenly: bool) -> Table:
    """The convolution of groups of one kind and size, given in tie order.

    Where taking more of a group costs ever more, the cheapest steps of all come first (the merge of
    convex tables); where it costs ever less, groups are filled one after the other.
    """
    steps = [b - a for table in bent for a, b in pairwise(table.costs)]
    if evenly:
        steps.sort()
    return Table(
        sum(table.low for table in bent),
        list(accumulate(steps, initial=sum(table.costs[0] for table in bent))),
    )


def _convolve(a: Table, b: Table, low: int, high: int, spare: tuple[int, int, int]) -> Table:
    """Best cost of each total of two modules, for the totals in use."""
    if len(a.costs) > len(b.costs):
        a, b = b, a
    lows, highs, size = spare
    base = a.low + b.low
    first = max(base, size - (highs - high))
    last = min(a.high + b.high, size - (lows - low))
    if len(a.costs) == 1:
        shift = a.costs[0]
        return Table(first, [x + shift for x in b.costs[first - base : last + 1 - base]])
    return Table(first, _pairwise(a.costs, b.costs, range(first - base, last + 1 - base)))


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
