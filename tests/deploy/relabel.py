"""What Prometheus makes of a scraped series' labels: target labels, honor_labels, metric_relabel_configs.

From Prometheus' documentation of scrape_config: with honor_labels a label of the series wins over the
target's; without, the series' own is renamed to exported_<name>. Then the relabel rules of action ``replace``
run in order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Labels = dict[str, str]


def relabelled(labels: Labels, rules: Sequence[Mapping[str, Any]]) -> Labels:
    """The rules of action replace, in order."""
    found = dict(labels)
    for rule in rules:
        assert rule.get("action", "replace") == "replace"
        joined = rule.get("separator", ";").join(found.get(name, "") for name in rule.get("sourceLabels", ()))
        match = re.fullmatch(rule.get("regex", "(.*)"), joined)
        if match is not None:
            value = match.expand(rule.get("replacement", "$1").replace("$", "\\"))
            if value:
                found[rule["targetLabel"]] = value
            else:
                found.pop(rule["targetLabel"], None)
    return found


def scraped(endpoint: Mapping[str, Any], series: Labels, discovered: Labels) -> Labels:
    """A series as it is stored.

    Args:
        endpoint: of a ServiceMonitor.
        series: name (``__name__``) and labels as the exporter wrote them.
        discovered: labels of the target before its relabelling, ``__meta_…`` among them.
    """
    target = relabelled(discovered, endpoint.get("relabelings", ()))
    target = {name: value for name, value in target.items() if not name.startswith("__")}
    if endpoint.get("honorLabels", False):
        stored = target | series
    else:
        stored = {(f"exported_{name}" if name in target else name): value for name, value in series.items()}
        stored |= target
    return relabelled(stored, endpoint.get("metricRelabelings", ()))
