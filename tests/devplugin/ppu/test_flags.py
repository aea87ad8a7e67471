"""Flags, environment and the alibaba block become settings: C.2, decisions 34, 53 and 55, B69 and G 19."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given as each
from hypothesis import strategies as st

from devplugin import explain
from devplugin.configfile import MOST_SHARES, ConfigError
from devplugin.ppu.deviceconfig import DeviceConfig, parse
from devplugin.ppu.flags import add_flags, choices, resolve
from devplugin.ppu.settings import Settings
from devplugin.settings import GoParser, SettingsError, add_common_flags

from .nodes import given

CHART = """
alibaba:
  resourceCountName: "alibaba.com/ppu"
  resourceMemoryName: "alibaba.com/ppu-memory"
  resourceMemoryPercentageName: "alibaba.com/ppu-memory-percentage"
  resourceCoreName: "alibaba.com/gpu-core"
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  deviceSplitCount: 2
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
  memoryFactor: 1
  gpuCorePolicy: "default"
  overwriteEnv: false
  runtimeClassName: ""
"""
FILE = "--config-file=/config/device-config.yaml "
NUMBERS = (
    ("device-split-count", "deviceSplitCount", "split"),
    ("device-memory-scaling", "deviceMemoryScaling", "memory_scaling"),
    ("device-core-scaling", "deviceCoreScaling", "core_scaling"),
)


def settled(words: str = "", file: str = CHART) -> tuple[Settings, tuple[str, ...]]:
    return resolve(given(FILE + words, {"NODE_NAME": "n"}, {"/config/device-config.yaml": file}))


def block(**more: object) -> str:
    return yaml.safe_dump({"alibaba": more})


def refused(words: str = "", file: str = CHART) -> str:
    with pytest.raises(SettingsError) as caught:
        settled(words, file)
    return str(caught.value)


def test_the_charts_command_line_and_configuration_are_taken() -> None:
    words = "--node-name=a --device-split-count=2 --device-memory-scaling=1 --device-core-scaling=1"
    assert settled(words) == (Settings(node_name="a"), ())


def test_without_a_configuration_the_guides_defaults_hold() -> None:
    assert resolve(given("", {"NODE_NAME": "n"})) == (Settings("n", "alibaba.com/ppu", 2, 1.0, 1.0), ())


@pytest.mark.parametrize("word", ['"2"', "'2'", '"2', '2"'])
@pytest.mark.parametrize("flag", [one[0] for one in NUMBERS])
def test_b69_a_quoted_number_ends_with_2_and_names_flag_quotes_and_chart(
    flag: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        given([f"--{flag}={word}"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"-{flag}: {word!r} stands in quotes" in said
    assert "its quotes came from the chart" in said


def test_g19_the_charts_first_version_is_refused_and_the_bare_number_is_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        given(['--device-split-count="2"', '--device-memory-scaling="1"'])
    assert "quotes came from the chart" in capsys.readouterr().err
    assert resolve(given(["--device-split-count=2", "--device-memory-scaling=1"]))[0].split == 2


@pytest.mark.parametrize("text", ["'2'", '"2"', "'\"2\"'", "!!str 2"])
@pytest.mark.parametrize("key", [one[1] for one in NUMBERS])
def test_a_quoted_number_in_the_file_is_refused_with_its_place_and_the_chart(key: str, text: str) -> None:
    said = refused(file=f"alibaba:\n  {key}: {text}\n")
    assert said.startswith("failed to load config from '/config/device-config.yaml': $.alibaba." + key)
    assert "its quotes came from the chart, which must render it bare" in said


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (block(deviceSplitCount="two"), "$.alibaba.deviceSplitCount: 'two' is text: must be a number"),
        (block(deviceSplitCount=0), "$.alibaba.deviceSplitCount: 0: must be 1 to 4096"),
        (block(deviceSplitCount=-1), "$.alibaba.deviceSplitCount: -1: must be 1 to 4096"),
        (block(deviceSplitCount=4097), "$.alibaba.deviceSplitCount: 4097: must be 1 to 4096"),
        (block(deviceSplitCount=2.5), "$.alibaba.deviceSplitCount: 2.5: must be a whole number"),
        (block(deviceSplitCount=math.inf), "$.alibaba.deviceSplitCount: inf: must be a whole number"),
        (block(deviceSplitCount=math.nan), "$.alibaba.deviceSplitCount: nan: must be a whole number"),
        (block(deviceSplitCount=True), "$.alibaba.deviceSplitCount: 'True': must be a number"),
        (block(deviceMemoryScaling=0), "$.alibaba.deviceMemoryScaling: 0: must be a number above 0"),
        (block(deviceMemoryScaling=math.nan), "$.alibaba.deviceMemoryScaling: nan: must be a number"),
        (block(deviceCoreScaling=0.001), "$.alibaba.deviceCoreScaling: 0.001: 100 times that is no int32"),
        (block(deviceCoreScaling=1e9), "$.alibaba.deviceCoreScaling: 1e+09: 100 times that is no int32"),
        (block(deviceMemoryScaling=[1]), "$.alibaba.deviceMemoryScaling: '[1]': must be a number"),
        (block(deviceMemoryScaling=10**400), "$.alibaba.deviceMemoryScaling: larger than any number"),
        (block(resourceCountName="ppu"), "$.alibaba.resourceCountName: 'ppu' is no name of a resource"),
        ("alibaba: 3", "$.alibaba: expected `object`, got `int`"),
        ("vnpus: []", "bject missing required field `alibaba`"),
        ("", "bject missing required field `alibaba`"),
        ("alibaba: {deviceSplitCount: 2, deviceSplitCount: 3}", "'deviceSplitCount' stands twice"),
        ("alibaba: [", "no YAML: line "),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_line_with_its_place(file: str, why: str) -> None:
    said = refused(file=file)
    assert why in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--device-split-count=0", "-device-split-count=0: must be 1 to 4096"),
        ("--device-split-count=-1", "-device-split-count=-1: must be 1 to 4096"),
        ("--device-memory-scaling=0", "-device-memory-scaling=0: must be a number above 0"),
        ("--device-memory-scaling=-1", "-device-memory-scaling=-1: must be a number above 0"),
        ("--device-memory-scaling=nan", "-device-memory-scaling=nan: must be a number above 0"),
        ("--device-memory-scaling=inf", "-device-memory-scaling=inf: must be a number above 0"),
        ("--device-core-scaling=0.004", "-device-core-scaling=0.004: 100 times that is no int32"),
        ("--pulse=-1", "-pulse=-1: must not be negative"),
        ("-v=-1", "-v=-1: must not be negative"),
    ],
)
def test_what_is_understood_and_refused_names_flag_and_value(words: str, why: str) -> None:
    assert why in refused(words)


@pytest.mark.parametrize(("flag", "key", "field"), NUMBERS)
def test_an_explicit_flag_counts_before_the_file_and_a_difference_is_warned_about(
    flag: str, key: str, field: str
) -> None:
    settings, warnings = settled(f"--{flag}=3", block(**{key: 5}))
    assert getattr(settings, field) == 3
    (line,) = warnings
    assert line.startswith(f"-{flag}=3 overrules {key} 5 of '/config/device-config.yaml'")
    # the same in both, a flag without a file's word, a file's word without a flag: nothing to say
    assert settled(f"--{flag}=5", block(**{key: 5}))[1] == ()
    assert settled(f"--{flag}=5", block())[1] == ()
    alone, warnings = settled("", block(**{key: 5}))
    assert (getattr(alone, field), warnings) == (5, ())


def test_an_explicit_default_overrules_the_file_too() -> None:
    settings, warnings = settled("--device-split-count=2", block(deviceSplitCount=4))
    assert settings.split == 2
    assert len(warnings) == 1


def test_the_resource_is_the_files() -> None:
    settings, _ = settled(file=block(resourceCountName="example.com/accelerator"))
    assert settings.resource == "example.com/accelerator"


def test_a_file_that_is_not_there_ends_the_start() -> None:
    with pytest.raises(SettingsError, match="failed to load config from '/none': ENOENT"):
        resolve(given("--config-file=/none", {"NODE_NAME": "n"}))


def chosen(words: str, file: str) -> dict[str, tuple[object, str]]:
    parser = GoParser("ppu-device-plugin", "")
    add_common_flags(parser)
    add_flags(parser)
    told = given(FILE + words, {"NODE_NAME": "n"}, {"/config/device-config.yaml": file})
    settings, _ = resolve(told)
    found = explain.choices(parser, told.args, choices(told, settings))
    return {name: (one.value, one.source) for name, one in found.items()}


def test_a_dry_run_says_where_every_number_comes_from() -> None:
    path = "file /config/device-config.yaml"
    found = chosen("--device-split-count=3", block(deviceMemoryScaling=1.5))
    assert found["device-split-count"] == (3, "flag")
    assert found["device-memory-scaling"] == (1.5, path)
    assert found["device-core-scaling"] == (1.0, "default")
    assert found["resource"] == ("alibaba.com/ppu", "default")
    assert found["node-name"] == ("n", "environment NODE_NAME")
    assert chosen("--node-name=b", block(resourceCountName="a.b/c"))["resource"] == ("a.b/c", path)
    assert chosen("--node-name=b", block())["node-name"] == ("b", "flag")


@each(
    st.integers(1, MOST_SHARES),
    st.floats(0.005, 1000, allow_nan=False),
    st.floats(0.01, 1000, allow_nan=False),
)
def test_what_a_bare_configuration_says_is_read_as_it_stands(split: int, memory: float, core: float) -> None:
    text = block(deviceSplitCount=split, deviceMemoryScaling=memory, deviceCoreScaling=core)
    assert parse(text.encode()) == DeviceConfig(None, split, memory, core)


@each(st.text(max_size=40))
def test_a_number_in_quotes_is_never_taken_whatever_is_in_them(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(block(deviceSplitCount=text).encode())
