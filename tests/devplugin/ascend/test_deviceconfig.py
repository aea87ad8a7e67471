"""The device configuration: both layouts, modes and templates; A.2, A.3, F.1 P34 and P35, G 5 to 7."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devplugin.ascend.deviceconfig import DeviceConfig, config_of, parse
from devplugin.configfile import MOST_SHARES, ConfigError
from gpusim.ascend.chips import CHIPS
from gpusim.cluster.scheduler_ascend import shipped

from .nodes import CONFIG, DEVICES, WORDS

B4 = {
    "chipName": "910B4",
    "commonWord": "Ascend910B4",
    "resourceName": "huawei.com/Ascend910B4",
    "resourceMemoryName": "huawei.com/Ascend910B4-memory",
    "memoryAllocatable": 32768,
    "memoryCapacity": 32768,
    "aiCore": 20,
    "aiCPU": 7,
    "templates": [
        {"name": "vir10_3c_16g", "memory": 16384, "aiCore": 10, "aiCPU": 3},
        {"name": "vir05_1c_8g", "memory": 8192, "aiCore": 5, "aiCPU": 1},
    ],
}


def written(**more: Any) -> bytes:
    return yaml.safe_dump({"vnpus": {"configs": [B4], **more}}).encode()


def entry(**more: Any) -> bytes:
    return yaml.safe_dump({"vnpus": {"configs": [{**B4, **more}]}}).encode()


def refused(data: bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(data)
    text = str(caught.value)
    assert text.isprintable()
    return text


def test_the_example_describes_the_chips_that_the_machine_has() -> None:
    assert tuple(chip.word for chip in DEVICES.chips) == WORDS
    for config, chip in zip(DEVICES.chips, CHIPS.values(), strict=False):
        known = CHIPS[{"Ascend910": "910C"}.get(config.chip, config.chip)]
        assert (config.allocatable_mib, config.ai_cores) == (known.memory_mib, known.ai_cores), chip
        assert [(t.name, t.memory_mib, t.ai_cores) for t in config.templates] == [
            (t.name, t.memory_mib, t.ai_cores) for t in known.templates
        ]


def test_the_example_is_read_as_the_scheduler_reads_its_own() -> None:
    for one in shipped()["vnpus"]["configs"]:
        config = config_of(one["chipName"], DEVICES.chips)
        assert config is not None
        assert config.word == one["commonWord"]
        assert config.resource == one["resourceName"]
        assert config.allocatable_mib == one["memoryAllocatable"]
    assert "910B4-1" in CONFIG.read_text()


def test_templates_are_sorted_by_memory_whatever_their_order_in_the_file() -> None:
    (chip,) = parse(written()).chips
    assert [template.name for template in chip.templates] == ["vir05_1c_8g", "vir10_3c_16g"]


def test_g7_templates_have_the_names_and_sizes_of_the_file_and_no_others() -> None:
    chip = config_of("910B4-1", DEVICES.chips)
    assert chip is not None
    assert [(t.name, t.memory_mib) for t in chip.templates] == [
        ("vir05_1c_16g", 16384),
        ("vir10_3c_32g", 32768),
    ]


def test_the_first_entry_of_exactly_that_chip_counts() -> None:
    twice = parse(yaml.safe_dump({"vnpus": {"configs": [B4, {**B4, "aiCore": 1}]}}).encode())
    found = config_of("910B4", twice.chips)
    assert found is not None
    assert found.ai_cores == 20
    assert config_of("910B4-1", twice.chips) is None  # no name is a part of another
    assert config_of("910b4", twice.chips) is None


def test_p35_both_layouts_say_the_same() -> None:
    old = yaml.safe_dump({"vnpus": [B4], "hamiVnpuCore": True}).encode()
    assert parse(old) == parse(written(hamiVnpuCore=True))
    assert parse(yaml.safe_dump({"vnpus": [B4]}).encode()) == parse(written())
    # beside the new layout the old key says nothing
    assert parse(yaml.safe_dump({"vnpus": {"configs": [B4]}, "hamiVnpuCore": True}).encode()) == parse(
        written()
    )


@pytest.mark.parametrize("value", [None, True, {"a": 1}])
def test_p35_the_former_enpu_key_is_refused_with_its_successor(value: object) -> None:
    assert refused(written(enpu=value)) == "vnpus.enpu has been removed; use vnpus.hamiVnpuMode: enpu"


@pytest.mark.parametrize(
    ("more", "soft"),
    [
        ({}, False),
        ({"hamiVnpuCore": True}, True),
        ({"hamiVnpuCore": None}, False),
        ({"hamiVnpuMode": "hami-core"}, True),
        ({"hamiVnpuMode": " hamiCore "}, True),
        ({"hamiVnpuMode": "HAMI-CORE", "hamiVnpuCore": False}, True),
        ({"hamiVnpuMode": "Template", "hamiVnpuCore": True}, False),
        ({"hamiVnpuMode": "", "hamiVnpuCore": True}, True),
    ],
)
def test_the_mode_word_overrules_the_switch(more: dict[str, Any], soft: bool) -> None:
    assert parse(written(**more)).soft is soft


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("enpu", "enpu is not built; use template or hami-core"),
        ("ENPU ", "enpu is not built; use template or hami-core"),
        ("hami core", "'hami core': use template or hami-core"),
        ("soft", "'soft': use template or hami-core"),
    ],
)
def test_a_mode_that_is_not_built_is_refused(word: str, why: str) -> None:
    assert refused(written(hamiVnpuMode=word)) == f"$.vnpus.hamiVnpuMode: {why}"


def test_what_an_entry_may_leave_out_is_0_or_follows_from_the_rest() -> None:
    named = {"chipName": "X", "commonWord": "X", "resourceName": "huawei.com/X", "aiCore": 0}
    data = {**named, "memoryAllocatable": 8, "templates": [{"name": "t", "memory": 8}]}
    (chip,) = parse(yaml.safe_dump({"vnpus": [data]}).encode()).chips
    assert (chip.capacity_mib, chip.ai_cores, chip.ai_cpus) == (8, 0, 0)
    assert [(t.memory_mib, t.ai_cores, t.ai_cpus) for t in chip.templates] == [(8, 0, 0)]
    assert parse(entry(memoryCapacity=40000)).chips[0].capacity_mib == 40000


def test_an_error_in_the_old_layout_has_its_own_place() -> None:
    assert (
        refused(yaml.safe_dump({"vnpus": [{**B4, "chipName": ""}]}).encode()) == "$.vnpus[0].chipName: empty"
    )


def test_as_many_shares_as_kubelet_takes_are_accepted() -> None:
    chip = parse(entry(templates=[{"name": "tiny", "memory": 8}])).chips[0]
    assert chip.allocatable_mib // chip.templates[0].memory_mib == MOST_SHARES
    assert parse(written(vnpuDeviceSplitCount=MOST_SHARES)).split == MOST_SHARES


@pytest.mark.parametrize(
    ("scaling", "cores"),
    [
        (None, 100),
        (1, 100),
        (2.5, 250),
        (0.125, 13),
        (0.005, 1),
        (0.004, 100),
        (0, 100),
        (-3, 100),
        (float("nan"), 100),
        (float("inf"), 100),
        (1e300, 100),
        (21474837, 100),
    ],
)
def test_core_scaling_that_no_number_of_cores_comes_of_counts_as_not_said(
    scaling: float | None, cores: int
) -> None:
    assert parse(written(deviceCoreScaling=scaling)).soft_cores == cores


def test_the_split_count_counts_only_above_0() -> None:
    assert [parse(written(vnpuDeviceSplitCount=n)).split for n in (None, -5, 0, 1, 10)] == [0, 0, 0, 1, 10]
    assert f"at most {MOST_SHARES}" in refused(written(vnpuDeviceSplitCount=MOST_SHARES + 1))


def test_keys_that_only_the_scheduler_reads_are_passed_over() -> None:
    more = {"memoryFactor": 1, "runtimeClassName": "ascend", "overwriteEnv": True, "superPod": True, "x": [1]}
    assert parse(entry(**more)) == parse(written())


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            {"templates": [{"name": "a", "memory": 0}]},
            "$.vnpus.configs[0].templates[0].memory: 0: must be above 0",
        ),
        ({"templates": [{"name": "a", "memory": 32769}]}, "templates[0].memory: 32769: more than memoryAll"),
        ({"templates": [{"name": "a b", "memory": 1}]}, "templates[0].name: 'a b' is no name of a template"),
        ({"templates": [{"name": "a", "memory": 1}]}, "32768 shares of a card: at most 4096"),
        ({"templates": [{"name": "a", "memory": 8192}] * 2}, "$.vnpus.configs[0].templates: two of one name"),
        ({"templates": [{"memory": 8192}]}, "$.vnpus.configs[0].templates[0]: object missing required field"),
        ({"memoryAllocatable": 0}, "$.vnpus.configs[0].memoryAllocatable: expected `int` >= 1"),
        ({"memoryAllocatable": "32768"}, "$.vnpus.configs[0].memoryAllocatable: expected `int`, got `str`"),
        (
            {"memoryAllocatable": 1 << 31},
            "$.vnpus.configs[0].memoryAllocatable: expected `int` <= 2147483647",
        ),
        ({"memoryAllocatable": 1 << 80}, "$.vnpus.configs[0].memoryAllocatable: "),
        ({"aiCore": -1}, "$.vnpus.configs[0].aiCore: expected `int` >= 0"),
        ({"aiCore": True}, "$.vnpus.configs[0].aiCore: expected `int`, got `bool`"),
        ({"chipName": ""}, "$.vnpus.configs[0].chipName: empty"),
        ({"commonWord": "Ascend 910"}, "$.vnpus.configs[0].commonWord: 'Ascend 910' is no part"),
        ({"commonWord": "A" * 44}, "is no part of an annotation's name"),
        ({"resourceName": "Ascend910B4"}, "is no name of a resource"),
        ({"resourceName": "huawei.com/a\nb"}, "is no name of a resource"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_place(more: dict[str, Any], text: str) -> None:
    assert text in refused(entry(**more))


def test_a_common_word_is_as_long_as_an_annotation_allows() -> None:
    assert len(f"{'A' * 43}-devices-to-allocate") == 63  # of the API conventions
    assert parse(entry(commonWord="A" * 43)).chips[0].word == "A" * 43


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "$: object missing required field `vnpus`"),
        (b"vnpus: 3", "$.vnpus: expected `object | array`, got `int`"),
        (b"vnpus: {configs: 3}", "$.vnpus.configs: expected `array | null`, got `int`"),
        (b"vnpus: []\nvnpus: []", "no YAML: line 2: the key 'vnpus' stands twice"),
        (b"- {\n", "no YAML: line 2: "),
        (b"a: 2020-13-45", "no YAML: month must be in 1..12"),
        (b"\x00", "no YAML: "),
        (b"\xff\xff\xff", "no YAML: "),
        (b"&a [*a]", "$: expected `object`, got `array`"),
        (b"vnpus: &a [*a]", "$.vnpus[0]: expected `object`, got `array`"),
        (b"[" * 100000, "no YAML: "),
        (b"vnpus: !!python/object:os.system x", "no YAML: "),
        (b" " * ((1 << 20) + 1), "1048577 bytes, at most 1048576 are read"),
    ],
)
def test_what_is_no_device_configuration_is_refused_in_one_line(data: bytes, text: str) -> None:
    assert refused(data).startswith(text)


def test_a_chip_without_templates_is_none_of_them_wrong() -> None:
    assert parse(entry(templates=None)).chips[0].templates == ()
    assert parse(b"vnpus: {configs: null}") == DeviceConfig(())


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from([*B4, "name", "memory"])
files = st.fixed_dictionaries(
    {},
    optional={
        "vnpus": st.lists(st.dictionaries(keys, values))
        | st.fixed_dictionaries(
            {},
            optional={
                "configs": st.lists(st.builds(lambda more: {**B4, **more}, st.dictionaries(keys, values)))
                | values,
                "hamiVnpuMode": values,
                "hamiVnpuCore": values,
                "deviceCoreScaling": values,
                "vnpuDeviceSplitCount": values,
            },
        ),
        "hamiVnpuCore": values,
    },
)


@given(files.map(lambda file: yaml.safe_dump(file).encode()) | st.binary() | st.text().map(str.encode))
def test_any_file_is_a_configuration_or_refused_in_one_line(data: bytes) -> None:
    try:
        config = parse(data)
    except ConfigError as error:
        assert str(error).isprintable(), str(error)
    else:
        for chip in config.chips:
            assert chip.allocatable_mib > 0
            assert all(0 < t.memory_mib <= chip.allocatable_mib for t in chip.templates)
            assert [t.memory_mib for t in chip.templates] == sorted(t.memory_mib for t in chip.templates)
