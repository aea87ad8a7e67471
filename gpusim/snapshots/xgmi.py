"""Places on the xGMI mesh, read back from the SDMA masks of the links between whole GPUs.

In a hive of eight whole GPUs a link's mask is one bit, by the physical numbers of both ends (kfd.md 1,
recommended_sdma_engine_id_mask): the numbers of all follow from that of one.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpusim.amd.kfd_links import ENGINES
from gpusim.snapshots.board import Board
from gpusim.snapshots.reading import Kfd

_XGMI, _ONE_HOP = 11, 15
_MASK = "recommended_sdma_engine_id_mask"


def physical_numbers(kfd: Kfd, boards: Sequence[Board]) -> list[int | None]:
    """xgmi_physical of each GPU; None where the links do not tell."""
    engines: dict[tuple[int, int], int] = {}
    owner = {node.index: at for at, board in enumerate(boards) for node in board.nodes if board.parts == 1}
    for index, at in owner.items():
        node = next(node for node in boards[at].nodes if node.index == index)
        for link in kfd.links(node):
            other, mask = owner.get(link.get("node_to", -1)), link.get(_MASK, 0)
            hop = link.get("type") == _XGMI and link.get("weight") == _ONE_HOP
            if other is not None and hop and mask and not mask & (mask - 1) and mask > 1:
                engines[at, other] = mask.bit_length() - 1
    members = sorted({at for pair in engines for at in pair})
    if len(members) != len(ENGINES):
        return [None] * len(boards)
    found = next((n for start in range(len(ENGINES)) if (n := _numbered(engines, members, start))), {})
    return [found.get(at) for at in range(len(boards))]


def _numbered(
    engines: dict[tuple[int, int], int], members: Sequence[int], start: int
) -> dict[int, int] | None:
    """The numbers if the first member's is `start`; None when the links contradict it."""
    numbers = {members[0]: start}
    for other in members[1:]:
        engine = engines.get((members[0], other), 0)
        if not engine or engine not in ENGINES[start]:
            return None
        numbers[other] = ENGINES[start].index(engine)
    fits = all(ENGINES[numbers[a]][numbers[b]] == engine for (a, b), engine in engines.items())
    return numbers if fits else None
