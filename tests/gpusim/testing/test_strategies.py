"""What the strategies draw can exist, is what it says, and shrinks to what it promises."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument, NoSuchExample

from devplugin.hami import CodecError, decode
from gpusim.amd.products import PRODUCTS
from gpusim.cluster.apivalidate import qos as qos_of
from gpusim.dmem import Css
from gpusim.fixture import dump, loads
from gpusim.machine import Machine
from gpusim.spec import NodeSpec
from gpusim.testing import strategies
from gpusim.testing.faults import Plan
from gpusim.testing.faulty import Faulty
from gpusim.testing.history import Step, play
from gpusim.testing.machines import node

QUIET = settings(database=None, max_examples=500, deadline=None, phases=[Phase.generate, Phase.shrink])
REGION = "drm/0000:75:00.0/vram"


@given(strategies.nodes())
def test_every_node_can_exist_and_is_a_fixture(spec: NodeSpec) -> None:
    Machine(spec)
    assert loads(dump(spec)) == spec


@given(st.data(), st.integers(0, 3), st.integers(0, 3))
def test_the_number_of_gpus_keeps_its_bounds(data: st.DataObject, low: int, more: int) -> None:
    spec = data.draw(strategies.nodes(min_gpus=low, max_gpus=low + more))
    assert low <= len(spec.gpus) <= low + more


@given(
    strategies.nodes(
        sriov=True, modes=["CPX"], releases=[("6.12", "in-tree")], bmc=True, numa=False, odd=False
    )
)
def test_options_narrow_what_is_drawn(spec: NodeSpec) -> None:
    assert spec.bmc and (spec.kernel, spec.driver) == ("6.12", "in-tree") and not spec.cards
    for gpu in spec.gpus:
        assert PRODUCTS[gpu.product].vf and gpu.mode in ("SPX", "CPX")
        assert gpu.bound == "amdgpu" and gpu.numa not in (-1, None)


@given(strategies.nodes(mixed=False))
def test_gpus_that_may_not_differ_share_product_and_modes(spec: NodeSpec) -> None:
    assert len({(gpu.product, gpu.mode, gpu.nps) for gpu in spec.gpus}) <= 1


def test_every_product_and_mode_is_drawn() -> None:
    for product in PRODUCTS:
        found = find(strategies.nodes(products=[product]), lambda spec: len(spec.gpus) == 2, settings=QUIET)
        assert found.gpus[0].product == product
    for mode in ("DPX", "TPX", "QPX", "CPX"):
        spec = find(strategies.nodes(), lambda s, m=mode: any(g.mode == m for g in s.gpus), settings=QUIET)
        assert len(spec.gpus) == 1


# ---- shrinking


@pytest.mark.parametrize(
    "options",
    [{}, {"odd": False}, {"max_gpus": 2, "numa": False}, {"mixed": False}, {"products": ["MI355X", "MI210"]}],
)
def test_a_node_shrinks_to_one_gpu_in_spx_and_nothing_odd(options: dict[str, Any]) -> None:
    assert find(strategies.nodes(**options), lambda spec: True, settings=QUIET) == node(each=[{}])


def test_a_failing_mode_keeps_only_that_mode() -> None:
    found = find(strategies.nodes(), lambda spec: any(gpu.mode == "QPX" for gpu in spec.gpus), settings=QUIET)
    assert found == node(each=[{"mode": "QPX"}])


def test_a_failing_pair_keeps_only_the_pair() -> None:
    found = find(strategies.nodes(), lambda spec: len(spec.gpus) > 1, settings=QUIET)
    assert found == node(each=[{}, {}])


def test_an_odd_gpu_keeps_only_its_oddity() -> None:
    found = find(strategies.nodes(), lambda spec: any(g.bound is None for g in spec.gpus), settings=QUIET)
    assert found == node(each=[{"bound": None}])


def test_a_bmc_keeps_only_the_bmc() -> None:
    assert find(strategies.nodes(), lambda spec: spec.bmc, settings=QUIET) == node(each=[{}], bmc=True)


@pytest.mark.parametrize(
    ("strategy", "simplest"),
    [
        (strategies.fault_plans(gpus=["0000:75:00.0"]), Plan()),
        (strategies.histories(), []),
        (strategies.histories(min_size=1), [Step("switch", 0, "SPX")]),
        (strategies.request_mixes(), []),
        (strategies.requests(), {"amd.com/gpu": 1}),
        (strategies.annotations(), ""),
        (strategies.damaged_files(b"a 1\nb 2\n"), b""),
        (strategies.products(), "MI355X"),
        (strategies.releases(), ("6.14", "dkms-6.14.14")),
    ],
)
def test_everything_shrinks_to_what_its_docstring_says(
    strategy: st.SearchStrategy[Any], simplest: Any
) -> None:
    assert find(strategy, lambda value: True, settings=QUIET) == simplest


def test_a_pod_shrinks_to_one_container_without_requests() -> None:
    pod = find(strategies.pods(), lambda value: True, settings=QUIET)
    assert [container["name"] for container in pod["spec"]["containers"]] == ["c0"]
    assert "initContainers" not in pod["spec"] and "resources" not in pod["spec"]["containers"][0]


def test_a_fault_that_matters_stays_alone() -> None:
    plan = find(strategies.fault_plans(), lambda p: any(f.verb == "ebusy" for f in p.faults), settings=QUIET)
    (fault,) = plan.faults
    assert (fault.verb, fault.nth, fault.times, fault.path) == ("ebusy", 1, 1, "*")


# ---- what is drawn is what it says


@given(strategies.nodes(max_gpus=3), strategies.histories())
def test_every_history_can_be_played_on_every_node(spec: NodeSpec, steps: list[Step]) -> None:
    answers = play(Machine(spec), steps)
    assert len(answers) == len(steps)
    assert set(answers) <= {"", "refused", *errno.errorcode.values()}


@given(st.data(), st.sampled_from(strategies.QOS))
def test_a_pod_has_the_class_that_was_asked_for(data: st.DataObject, qos: str) -> None:
    pod = data.draw(strategies.pods(qos=[qos], max_containers=3))
    assert qos_of(pod["spec"]) == qos


@given(strategies.annotations(ids=["a", "b"]))
def test_a_valid_annotation_is_understood_whole(text: str) -> None:
    slots = decode(text)
    assert len(slots) == text.count(";")
    assert sum(map(len, slots)) == text.count(":")


@given(strategies.broken_annotations())
def test_no_reader_understands_a_broken_annotation(text: str) -> None:
    with pytest.raises(CodecError):
        decode(text)


def taken(text: bytes, kernel: str) -> bool:
    dmem = Machine(node(each=[{}], kernel=kernel, driver="in-tree")).cgroups.dmem
    assert dmem is not None and dmem.find(REGION) is not None
    try:
        dmem.write(Css(dmem.root), "max", text)
    except OSError as error:
        assert error.errno == errno.EINVAL
        return False
    return True


@given(strategies.dmem_writes(valid=True))
def test_a_kernel_takes_every_valid_dmem_write(text: bytes) -> None:
    assert taken(text, "7.2")


@given(strategies.dmem_writes(valid=False))
def test_a_kernel_refuses_every_invalid_dmem_write(text: bytes) -> None:
    assert not taken(text, "7.2")


@given(st.data(), st.booleans())
def test_older_kernels_take_and_refuse_several_lines(data: st.DataObject, valid: bool) -> None:
    assert taken(data.draw(strategies.dmem_writes(valid=valid, many=True)), "6.17") == valid


@given(strategies.fault_plans(gpus=["0000:75:00.0"], within=3))
def test_every_plan_can_be_written_and_put_in_front_of_a_machine(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan
    Faulty(Machine(node(each=[{}])), plan)


@given(strategies.damaged_files(st.binary(max_size=40), max_damages=3))
def test_damaged_files_are_bytes(content: bytes) -> None:
    assert isinstance(content, bytes)


@pytest.mark.parametrize("kind", strategies.DAMAGES)
def test_each_kind_of_damage_changes_a_properties_file(kind: str) -> None:
    sound = b"simd_count 1024\nlocation_id 29952\n"
    found = find(
        strategies.damaged_files(sound, kinds=[kind]), lambda content: content != sound, settings=QUIET
    )
    assert found != sound


# ---- arguments


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: strategies.nodes(products=["MI999"]), "MI999"),
        (lambda: strategies.nodes(products="MI355X"), "collection"),
        (lambda: strategies.nodes(products=[]), "nothing to choose"),
        (lambda: strategies.nodes(products=["MI355X"], sriov=True), "virtual function"),
        (lambda: strategies.nodes(min_gpus=3, max_gpus=2), "min_gpus=3"),
        (lambda: strategies.nodes(max_gpus=73), "at most 72"),
        (lambda: strategies.nodes(max_gpus=True), "an int"),
        (lambda: strategies.nodes(modes=["spx"]), "spx"),
        (lambda: strategies.nodes(bmc="yes"), "bmc"),
        (lambda: strategies.nodes(releases=[("6.2", "in-tree")]), "6.2"),
        (lambda: strategies.products(partitionable=True, apu=False, sriov=3), "sriov"),
        (lambda: strategies.products(apu=True, sriov=True), "all of that"),
        (lambda: strategies.requests(max_count=0), "max_count"),
        (lambda: strategies.pods(qos=["best"]), "best"),
        (lambda: strategies.histories(steps=["jump"]), "jump"),
        (lambda: strategies.annotations(max_mib=2**31), "at most"),
        (lambda: strategies.broken_annotations(breakages=["x"]), "'x'"),
        (lambda: strategies.dmem_writes(regions=[]), "nothing"),
        (lambda: strategies.damaged_files("text"), "bytes"),  # type: ignore[arg-type]
        (lambda: strategies.fault_plans(verbs=["unplug"]), "gpus"),
        (lambda: strategies.fault_plans(verbs=["explode"]), "explode"),
    ],
)
def test_a_wrong_argument_is_refused_at_once_by_name(make: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        make()


def test_a_node_with_no_gpu_is_drawn_only_where_it_is_asked_for() -> None:
    assert find(strategies.nodes(min_gpus=0), lambda spec: True, settings=QUIET) == node(each=[])
    with pytest.raises(NoSuchExample):
        find(strategies.nodes(), lambda spec: not spec.gpus, settings=settings(QUIET, max_examples=100))
