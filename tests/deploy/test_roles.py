"""ClusterRoles grant what the programs' one client can ask for, and nothing else without a reason."""

from __future__ import annotations

import re

import pytest

from devplugin import rights

from .engine import AMD, ASCEND, PPU, ROOT, needs_helm, texts
from .roles import Grant, Role, roles

PLUGIN, MONITOR, LABELLER = (
    {(right.resource, right.verb) for right in table}
    for table in (rights.PLUGIN, rights.MONITOR, rights.LABELLER)
)
CAPACITY: set[Grant] = {("nodes/status", "patch")}
"""AMD's alone: the others publish none (decisions 43 and 52)."""
EVERYBODY: set[Grant] = {("selfsubjectaccessreviews", "create")}
"""What Kubernetes itself lets every account do (its ClusterRole system:basic-user)."""


def of(name: str, over: dict[str, object] | None = None) -> dict[str, Role]:
    return roles(
        "\n---\n".join(text for path, text in texts(name, over).items() if path.endswith("rbac.yaml"))
    )


def test_the_client_has_no_request_that_a_plugin_is_not_granted() -> None:
    source = (ROOT / "devplugin" / "kube.py").read_text()
    asked = {
        (resource, verb) for verb, resource in re.findall(r'_Call\(\s*"[A-Z]+", "(\w+)", "([\w/]+)"', source)
    }
    assert asked - EVERYBODY == PLUGIN
    assert PLUGIN >= CAPACITY


@needs_helm
def test_the_amd_plugin_is_granted_what_it_asks_for() -> None:
    (role,) = of(AMD).values()
    assert role.needed == PLUGIN
    assert role.extras == {}


@needs_helm
def test_the_amd_monitor_shares_the_account_and_the_vendors_one_may_watch() -> None:
    (role,) = of(AMD, {"monitor": {"enabled": True}}).values()
    assert role.needed >= MONITOR
    assert set(role.extras) == {("pods", "watch")}
    assert "monitor" in role.extras[("pods", "watch")]


@needs_helm
def test_the_amd_roles_go_with_the_account() -> None:
    named = {"dp": {"serviceAccount": {"create": False, "name": "mine"}}}
    assert "kind: ServiceAccount\nmetadata" not in "\n".join(texts(AMD, named).values())
    assert of(AMD, named)["amd-gpu-device-plugin"].needed == PLUGIN
    assert of(AMD, {"dp": {"serviceAccount": {"create": False}}}) == {}


@needs_helm
def test_the_ascend_role_has_every_verb_of_the_vendors_chart_and_says_which_are_extra() -> None:
    (role,) = of(ASCEND).values()
    vendors = {("pods", verb) for verb in ("get", "list", "update", "watch", "patch")}
    vendors |= {("nodes", verb) for verb in ("get", "update", "patch")}
    assert role.granted == vendors | (PLUGIN - CAPACITY)
    assert role.needed == PLUGIN - CAPACITY
    assert set(role.extras) == vendors - PLUGIN
    assert all("vendor" in why for why in role.extras.values())


@needs_helm
def test_the_ppu_plugin_and_its_monitor_have_an_account_and_a_role_each() -> None:
    found = of(PPU)
    assert {name: role.needed for name, role in found.items()} == {
        "ppu-vgpu-device-plugin": PLUGIN - CAPACITY,
        "ppu-vgpu-device-plugin-monitor": MONITOR,
    }
    assert all(role.extras == {} for role in found.values())


def test_the_labeller_patches_its_node_and_the_upstream_one_may_update_it() -> None:
    (role,) = roles((ROOT / "deploy" / "k8s-ds-amdgpu-labeller.yaml").read_text()).values()
    assert role.needed == LABELLER
    assert set(role.extras) == {("nodes", verb) for verb in ("list", "update", "watch")}


@needs_helm
@pytest.mark.parametrize("name", [AMD, ASCEND, PPU])
def test_every_role_that_allocates_may_patch_pods(name: str) -> None:
    """Without it every Allocate fails at its last step (ascend_ppu_hami.md G 21)."""
    assert any(("pods", "patch") in role.needed for role in of(name).values())


def test_a_rule_that_nobody_marked_is_needed_and_a_marked_one_is_not() -> None:
    text = (
        "kind: ClusterRole\nmetadata:\n  name: a\nrules:\n"
        '  # Why.\n  - apiGroups: [""]\n    resources: [nodes]\n    verbs: [get]\n'
        '  # extra: because.\n  - apiGroups: [""]\n    resources: [pods]\n    verbs: [watch]\n'
    )
    role = roles(text)["a"]
    assert (role.needed, role.extras) == ({("nodes", "get")}, {("pods", "watch"): "because."})
