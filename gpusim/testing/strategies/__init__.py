"""Hypothesis strategies for nodes, what is asked of them, and what goes wrong with them.

Every option is keyword-only and checked when the strategy is made (`hypothesis.errors.InvalidArgument`); what
a strategy shrinks to stands in its docstring. A failing node shrinks to one GPU in SPX with no faults.
Needs Hypothesis: ``pip install gpusim[sim]``.

>>> from hypothesis import given
>>> from gpusim.testing import strategies
>>> @given(strategies.nodes(max_gpus=2), strategies.histories(max_size=5))
... def test_something(node, history): ...
"""

from gpusim.testing.strategies.damage import DAMAGES, damaged_files, fault_plans
from gpusim.testing.strategies.nodes import RELEASES, nodes, products, releases
from gpusim.testing.strategies.pods import QOS, histories, pods, request_mixes, requests
from gpusim.testing.strategies.texts import BREAKAGES, annotations, broken_annotations, dmem_writes

__all__ = [
    "BREAKAGES",
    "DAMAGES",
    "QOS",
    "RELEASES",
    "annotations",
    "broken_annotations",
    "damaged_files",
    "dmem_writes",
    "fault_plans",
    "histories",
    "nodes",
    "pods",
    "products",
    "releases",
    "request_mixes",
    "requests",
]
