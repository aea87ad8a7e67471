"""The node configuration: first exact name, and what is not said is inherited (A.2, decision 43)."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devplugin.ascend.nodeconfig import NodeConfig, parse
from devplugin.configfile import MOST_SHARES, ConfigError

FILE = b"""
nodes:
- name: node-a
  vDeviceCount: 8
  filterDevices: {index: [0, 3], uuid: ["7866F664-80406578"]}
- name: node-b
  hami-vnpu-core: true
- name: node-b
  hami-vnpu-core: false
- name: node-c
  vDeviceCount: -2
  hami-vnpu-core: null
  filterDevices: null
  later: whatever
"""


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("node-a", NodeConfig(None, 8, frozenset({0, 3}), frozenset({"7866F664-80406578"}))),
        ("node-b", NodeConfig(soft=True)),
        ("node-c", NodeConfig()),
        ("node", NodeConfig()),
        ("NODE-A", NodeConfig()),
        ("", NodeConfig()),
    ],
)
def test_the_first_entry_of_exactly_that_name_counts(name: str, config: NodeConfig) -> None:
    assert parse(FILE, name) == config


@pytest.mark.parametrize("data", [b"", b"nodes: []", b"nodes:", b"other: 1"])
def test_a_file_that_names_no_node_changes_none(data: bytes) -> None:
    assert parse(data, "node-a") == NodeConfig()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"nodes: [{vDeviceCount: 8}]", "$.nodes[0]: object missing required field `name`"),
        (
            b"nodes: [{name: n, vDeviceCount: many}]",
            "$.nodes[0].vDeviceCount: expected `int | null`, got `str`",
        ),
        (b"nodes: [{name: n, hami-vnpu-core: 'true'}]", "$.nodes[0].hami-vnpu-core: expected `bool | null`"),
        (
            b"nodes: [{name: n, filterDevices: {index: [a]}}]",
            "$.nodes[0].filterDevices.index[0]: expected `int`",
        ),
        (b"nodes: [{name: n}, {name: n, name: m}]", "no YAML: line 1: the key 'name' stands twice"),
        (b"nodes: 1", "$.nodes: expected `array | null`, got `int`"),
    ],
)
def test_a_mistake_anywhere_in_it_is_said_with_its_place(data: bytes, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(data, "another")
    assert str(caught.value).startswith(text)


def test_more_shares_than_kubelet_takes_are_refused() -> None:
    text = f"nodes: [{{name: n, vDeviceCount: {MOST_SHARES + 1}}}]".encode()
    with pytest.raises(ConfigError, match=rf"vDeviceCount: expected `int` <= {MOST_SHARES}"):
        parse(text, "n")


inner = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
value = inner | st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
row = st.dictionaries(st.sampled_from(["name", "vDeviceCount", "hami-vnpu-core", "filterDevices"]), value)


@given(st.lists(row | value).map(lambda rows: yaml.safe_dump({"nodes": rows}).encode()) | st.binary())
def test_any_file_is_a_configuration_or_refused_in_one_line(data: bytes) -> None:
    try:
        config = parse(data, "")
    except ConfigError as error:
        assert str(error).isprintable(), str(error)
    else:
        assert 0 <= config.count <= MOST_SHARES
