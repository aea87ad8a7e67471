"""Flags, environment and files become settings; A.1's words where there are none; decisions 34, 43, 44."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from devplugin.ascend.flags import KLOG, choices, resolve
from devplugin.ascend.settings import Settings
from devplugin.ascend.vendor import Ascend
from devplugin.launch import main
from devplugin.settings import SettingsError

from .nodes import CONFIG, DEVICES, given

DEVICE = CONFIG.read_text()
SOFT = DEVICE.replace("hamiVnpuCore: false", "hamiVnpuCore: true\n  vnpuDeviceSplitCount: 10")
FLAGS = "--config_file /device-config.yaml --node_config_file=/node-config.yaml "


def settled(
    words: str = "", *, device: str = DEVICE, node: str = "nodes: []", env: dict[str, str] | None = None
) -> Settings:
    files = {"/device-config.yaml": device, "/node-config.yaml": node}
    settings, warnings = resolve(given(FLAGS + words, {"NODE_NAME": "node-a", **(env or {})}, files))
    assert warnings == ()
    return settings


def refused(words: str, **more: str) -> str:
    with pytest.raises(SettingsError) as caught:
        resolve(
            given(words, {"NODE_NAME": "node-a", **more}, {"/device-config.yaml": DEVICE, "/bad": "vnpus: 3"})
        )
    return str(caught.value)


def test_the_charts_arguments_are_taken_with_the_guides_defaults() -> None:
    assert settled("--v=4") == Settings(node_name="node-a", chips=DEVICES.chips, verbosity=4)


def test_every_flag_of_the_table_arrives() -> None:
    settings = settled(
        "--node_name=other -check_idle_vnpu_interval 5 --report_time_offset=-3 --hw_loglevel=-1 "
        "--enable_periodic_idle_vnpu_cleanup -monitor_bind_address= -pulse 2 -vmodule=a=1 --alsologtostderr",
        env={"HOOK_PATH": "/opt/hook//", "HAMI_VNPU_ASSETS_PATH": "/assets"},
    )
    assert settings == Settings(
        node_name="other",
        chips=DEVICES.chips,
        hook_path="/opt/hook",
        assets_path="/assets",
        time_offset=-3,
        idle_interval=5.0,
        periodic=True,
        monitor_address="",
    )
    assert settings.containers == "/opt/hook/containers"


def test_without_a_device_configuration_the_start_ends_with_the_guides_words() -> None:
    assert refused("") == "config file not set, use --config_file to set config file path"
    assert refused("-config_file /none") == "failed to load config from '/none': ENOENT"
    assert refused("-config_file /bad") == (
        "failed to load config from '/bad': $.vnpus: expected `object | array`, got `int`"
    )


def test_without_a_node_name_only_a_dry_run_goes_on() -> None:
    text = "node name not set, use --node_name or env NODE_NAME to set node name"
    assert refused("-config_file /device-config.yaml", NODE_NAME="") == text
    files = {"/device-config.yaml": DEVICE}
    settings, _ = resolve(given("-config_file /device-config.yaml -dry_run", {}, files))
    assert settings.node_name == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "node config file not set (--node_config_file): no node is an exception"),
        (
            "-node_config_file /gone",
            "failed to load node config from '/gone': ENOENT; no node is an exception",
        ),
        (
            "-node_config_file /bad",
            (
                "failed to load node config from '/bad': $.nodes: expected `array | null`, got `int`; "
                "no node is an exception"
            ),
        ),
    ],
)
def test_a_node_configuration_that_cannot_be_read_is_a_warning_only(words: str, text: str) -> None:
    files = {"/device-config.yaml": SOFT, "/bad": "nodes: 3"}
    settings, warnings = resolve(
        given(f"-config_file /device-config.yaml {words}", {"NODE_NAME": "n"}, files)
    )
    assert warnings == (text,)
    assert settings.soft


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-check_idle_vnpu_interval=0", "-check_idle_vnpu_interval=0: must be above 0, in seconds"),
        ("-check_idle_vnpu_interval -60", "-check_idle_vnpu_interval=-60: must be above 0, in seconds"),
        ("-hw_loglevel=4", "-hw_loglevel=4: must be -1 to 3"),
        ("-hw_loglevel=-2", "-hw_loglevel=-2: must be -1 to 3"),
        ("-report_time_offset=2147483648", "-report_time_offset=2147483648: more than 68 years"),
        ("-pulse=-1", "-pulse=-1: must not be negative; 0 is off"),
        ("-v=-1", "-v=-1: must not be negative"),
        (
            "-monitor_bind_address 9395",
            "-monitor_bind_address='9395': expected HOST:PORT, as :9394, 127.0.0.1:9394, [::1]:9394",
        ),
    ],
)
def test_what_can_never_be_served_is_refused_by_name_and_value(words: str, text: str) -> None:
    assert refused(f"-config_file /device-config.yaml {words}") == text


@pytest.mark.parametrize("name", ["HOOK_PATH", "HAMI_VNPU_ASSETS_PATH"])
@pytest.mark.parametrize("path", ["usr/local", "/", "//", "/a/../b", "/a/.", "/a\nb"])
def test_a_directory_of_the_environment_is_a_plain_path_below_the_root(name: str, path: str) -> None:
    text = refused("-config_file /device-config.yaml", **{name: path})
    assert text.startswith(f"{name}=")
    assert text.isprintable()


@pytest.mark.parametrize(
    ("device", "node", "soft", "count"),
    [
        (DEVICE, "nodes: []", False, 0),
        (SOFT, "nodes: []", True, 10),
        (SOFT, "nodes: [{name: node-a, vDeviceCount: 8}]", True, 8),
        (SOFT, "nodes: [{name: node-a, hami-vnpu-core: false}]", False, 0),
        (DEVICE, "nodes: [{name: node-a, hami-vnpu-core: true}]", True, 0),
        (DEVICE, "nodes: [{name: node-a, vDeviceCount: 8}]", False, 8),
        (SOFT, "nodes: [{name: node-a, vDeviceCount: 0}]", True, 10),
        (SOFT, "nodes: [{name: node-b, hami-vnpu-core: false, vDeviceCount: 3}]", True, 10),
    ],
)
def test_an_entry_of_the_node_inherits_what_it_does_not_set(
    device: str, node: str, soft: bool, count: int
) -> None:
    settings = settled(device=device, node=node)
    assert (settings.soft, settings.count) == (soft, count)


def test_cards_the_node_keeps_back_arrive() -> None:
    settings = settled(node="nodes: [{name: node-a, filterDevices: {index: [0, 3], uuid: [U]}}]")
    assert settings.filtered_cards == frozenset({0, 3})
    assert settings.filtered_uuids == frozenset({"U"})


def test_every_setting_says_where_it_comes_from() -> None:
    files = {
        "/device-config.yaml": SOFT,
        "/node-config.yaml": "nodes: [{name: node-a, vDeviceCount: 8, filterDevices: {index: [3, 0]}}]",
    }
    asked = given(FLAGS, {"NODE_NAME": "node-a", "HOOK_PATH": "/opt/hook"}, files)
    settings, _ = resolve(asked)
    assert {name: (one.value, one.source) for name, one in choices(asked, settings).items()} == {
        "node_name": ("node-a", "environment NODE_NAME"),
        "mode": ("hami-core", "file /device-config.yaml"),
        "shares": (8, "file /node-config.yaml"),
        "filtered": ([0, 3], "file /node-config.yaml"),
        "hook_path": ("/opt/hook", "environment HOOK_PATH"),
        "assets_path": ("/usr/local/hami-vnpu-core-assets", "default"),
    }
    flagged = given(FLAGS + "-node_name node-a", {"NODE_NAME": "node-b"}, files)
    assert choices(flagged, resolve(flagged)[0])["node_name"].source == "flag"


def test_a_setting_names_the_file_that_decides_it() -> None:
    def sources(device: str, node: str) -> tuple[str, str, str]:
        files = {"/device-config.yaml": device, "/node-config.yaml": node}
        asked = given(FLAGS, {"NODE_NAME": "node-a"}, files)
        found = choices(asked, resolve(asked)[0])
        return found["mode"].source, found["shares"].source, found["filtered"].source

    device, node = "file /device-config.yaml", "file /node-config.yaml"
    assert sources(SOFT, "nodes: []") == (device, device, "default")
    assert sources(DEVICE, "nodes: []") == (device, "default", "default")
    assert sources(DEVICE, "nodes: [{name: node-a, hami-vnpu-core: true}]") == (node, "default", "default")


def test_the_largest_values_are_taken() -> None:
    settings = settled("-check_idle_vnpu_interval 2147483647 -hw_loglevel 3 -report_time_offset=-2147483647")
    assert (settings.idle_interval, settings.time_offset) == (2147483647.0, -2147483647)


def test_the_version_is_printed_without_any_configuration() -> None:
    out = io.StringIO()
    assert main(Ascend(), ["--version"], env={}, out=out) == 0
    assert re.fullmatch(r"version: \d+\.\d+\.\d+.*\n", out.getvalue())


def test_flags_of_the_go_plugins_logging_change_nothing() -> None:
    words = {bool: "", int: "=7", str: "=x"}
    flagged = " ".join(f"--{name}{words[type(default)]}" for name, _, default in KLOG)
    assert "--skip_headers --skip_log_headers --vmodule=x" in flagged
    assert settled(flagged) == settled()


@each(device=st.binary() | st.text().map(str.encode), node=st.binary() | st.text().map(str.encode))
def test_no_pair_of_files_does_more_than_be_refused(device: bytes, node: bytes) -> None:
    files = {"/device-config.yaml": device, "/node-config.yaml": node}
    try:
        resolve(given(FLAGS, {"NODE_NAME": "node-a"}, files))
    except SettingsError as error:
        assert str(error).isprintable()
    settings, warnings = resolve(given(FLAGS, {"NODE_NAME": "n"}, {**files, "/device-config.yaml": DEVICE}))
    assert settings.chips == DEVICES.chips
    assert all(line.isprintable() for line in warnings)


def test_cleaning_up_needs_no_configuration_which_may_be_gone_by_then() -> None:
    settings, warnings = resolve(given("-cleanup -node_name n1"))
    assert (settings.node_name, settings.chips, warnings) == ("n1", (), ())
