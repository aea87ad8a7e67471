"""Which source wins, and what is refused: amd.md 1.1, 13 and 14.8; decisions 32 and 34; B71's split."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from devplugin.amd.flags import add_flags, resolve
from devplugin.amd.settings import Settings
from devplugin.settings import GoParser, SettingsError, add_common_flags
from devplugin.vendor import SettingsInput


def given(
    words: str = "", env: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> tuple[Settings, tuple[str, ...]]:
    parser = GoParser("amd-device-plugin", "")
    add_common_flags(parser)
    add_flags(parser)
    return resolve(SettingsInput(parser.parse_args(words.split()), env or {}, annotations))


def test_defaults_are_the_guides() -> None:
    assert given() == (Settings(), ())


def test_every_flag_of_step_one_arrives() -> None:
    settings, warnings = given(
        "-split_count 4 -allocator_policy=spread -resource_naming_strategy mixed -dmem_backend=false -v=5",
        {"NODE_NAME": "n1", "HOST_HOOK_PATH": "/opt/hook/", "OPERATING_MODE": "partition"},
    )
    assert warnings == ()
    assert settings == Settings(
        node_name="n1",
        mode="partition",
        split_count=4,
        allocator_policy="spread",
        naming="mixed",
        dmem_backend=False,
        hook_path="/opt/hook",
        verbosity=5,
    )


MODE = "hami.io/amd-operating-mode"


@pytest.mark.parametrize(
    ("env", "annotation", "mode", "warned"),
    [
        (None, None, "cu", 0),
        ("partition", None, "partition", 0),
        ("", "", "cu", 0),
        ("cu", "partition", "partition", 0),
        ("partition", "cu", "cu", 0),
        ("Partition", None, "cu", 1),
        ("rocm", None, "cu", 1),
        (None, "Partition", "cu", 1),
        ("partition", "Partition", "partition", 1),
        ("rocm", " cu", "cu", 2),
    ],
)
def test_mode_comes_from_the_strongest_valid_source(
    env: str | None, annotation: str | None, mode: str, warned: int
) -> None:
    settings, warnings = given(
        env={"OPERATING_MODE": env} if env is not None else {},
        annotations={MODE: annotation} if annotation is not None else {},
    )
    assert settings.mode == mode
    assert len(warnings) == warned


def test_a_refused_mode_is_named_and_a_foreign_text_is_made_harmless() -> None:
    _, (told,) = given(annotations={MODE: "par\ntition\x1b[31m"})
    assert told == f"annotation {MODE}='par\\ntition\\x1b[31m': neither cu nor partition, ignored"


def test_without_the_node_object_the_environment_decides() -> None:
    assert given(env={"OPERATING_MODE": "partition"}, annotations=None)[0].mode == "partition"


@pytest.mark.parametrize("policy", ["besteffort", "binpack", "spread"])
def test_policies(policy: str) -> None:
    assert given(f"-allocator_policy={policy}")[0].allocator_policy == policy
    assert given("-allocator_policy=")[0].allocator_policy == "besteffort"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("-split_count=-1", "-split_count=-1: must not be negative"),
        ("-split_count=4097", "-split_count=4097: must not be above 4096: kubelet takes no longer list"),
        ("-split_count=2147483647", "-split_count=2147483647: must not be above 4096"),
        ("-allocator_policy=random", "-allocator_policy='random': use one of"),
        ("-allocator_policy=Spread", "-allocator_policy='Spread': use one of"),
        ("-resource_naming_strategy=both", "-resource_naming_strategy='both': use one of"),
        ("-resource_naming_strategy=", "-resource_naming_strategy='': use one of"),
        ("-device_memory_scaling=0", "-device_memory_scaling=0.0: must be a finite number above 0"),
        ("-device_memory_scaling=-1", "-device_memory_scaling=-1.0: must be"),
        ("-device_memory_scaling=nan", "-device_memory_scaling=nan: must be"),
        ("-device_memory_scaling=inf", "-device_memory_scaling=inf: must be"),
        ("-hip_log_level=5", "-hip_log_level=5: must be 0 to 4"),
        ("-hip_log_level=-1", "-hip_log_level=-1: must be 0 to 4"),
        ("-cdi_spec_dir=cdi", "-cdi_spec_dir='cdi': must be an absolute path"),
        ("-cdi_spec_dir=/run/../etc", "-cdi_spec_dir='/run/../etc': must be an absolute path"),
        ("-cdi_spec_dir=//", "-cdi_spec_dir='//': name a directory below it"),
        ("-musl_fail_closed -ctr_path=ctr", "-ctr_path='ctr': must be an absolute path"),
        ("-musl_fail_closed -containerd_socket=", "-containerd_socket='': must be an absolute path"),
        ("-pulse=-1", "-pulse=-1: must not be negative"),
        ("-v=-1", "-v=-1: must not be negative"),
    ],
)
def test_what_can_never_be_served_is_one_line_naming_flag_and_value(words: str, line: str) -> None:
    with pytest.raises(SettingsError) as refused:
        given(words)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_a_hook_path_is_absolute_because_containers_mount_it() -> None:
    with pytest.raises(SettingsError, match=r"^HOST_HOOK_PATH='usr/local': must be an absolute path$"):
        given(env={"HOST_HOOK_PATH": "usr/local"})


def test_what_only_serves_the_image_check_does_not_matter_without_it() -> None:
    assert given("-ctr_path=ctr -containerd_socket=sock")[0] == Settings()


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", ()),
        ("0000:06:00.0", ("0000:06:00.0",)),
        ("card1", ("card1",)),
        ("0000:0A:00.0,card1", ("0000:0a:00.0", "card1")),
        (" card1 , 0000:06:00:0  card1\t,,", ("card1", "0000:06:00.0")),
    ],
)
def test_excluded_gpus_are_separated_by_commas_or_blanks(text: str, entries: tuple[str, ...]) -> None:
    parser = GoParser("amd-device-plugin", "")
    add_common_flags(parser)
    add_flags(parser)
    args = parser.parse_args(["-exclude_gpus", text])
    assert resolve(SettingsInput(args, {}, None))[0].exclude == entries


def test_every_flag_of_the_guide_arrives() -> None:
    settings, warnings = given(
        "-exclude_gpus=card1 -device_memory_scaling=1.5 -report_node_capacity -cdi_spec_dir=/var/run/cdi/ "
        "-musl_fail_closed -ctr_path=/opt/ctr -containerd_socket=/run/k3s/c.sock -hip_log_level=4"
    )
    assert warnings == ()
    assert settings == Settings(
        exclude=("card1",),
        memory_scaling=1.5,
        report_capacity=True,
        cdi_dir="/var/run/cdi",
        musl_fail_closed=True,
        hip_log_level=4,
    )


def test_the_pulse_and_the_exporters_socket_arrive() -> None:
    settings, _ = given("-pulse=10", env={"AMD_METRICS_EXPORTER_SOCKET": "/run/x.sock"})
    assert (settings.pulse, settings.exporter_socket) == (10, "/run/x.sock")


@pytest.mark.parametrize(
    "words",
    [
        "-exclude_gpus= -device_memory_scaling=1 -report_node_capacity=false -cdi_spec_dir=",
        "-musl_fail_closed=false",
        "-hip_log_level=0 -pulse=0 -install_hook= -ctr_path=/x/ctr -containerd_socket=/x/sock",
    ],
)
def test_their_defaults_are_accepted_as_the_chart_writes_them(words: str) -> None:
    assert given(words)[0] == Settings()


COMPUTE = "hami.io/amd-compute-partition"


@pytest.mark.parametrize(
    ("env", "annotation", "partition", "warned"),
    [
        (None, None, "", 0),
        ("", "", "", 0),
        ("qpx", None, "qpx", 0),
        ("tpx", None, "tpx", 0),
        ("qpx", "spx", "spx", 0),
        (None, "cpx", "cpx", 0),
        ("qpx", "QPX", "qpx", 1),
        ("QPX", "8", "", 2),
    ],
)
def test_a_compute_partition_comes_from_the_strongest_valid_source(
    env: str | None, annotation: str | None, partition: str, warned: int
) -> None:
    settings, warnings = given(
        env={"COMPUTE_PARTITION": env} if env is not None else {},
        annotations={COMPUTE: annotation} if annotation is not None else {},
    )
    assert settings.compute_partition == partition
    assert len(warnings) == warned
    assert all("neither spx, dpx, tpx, qpx nor cpx, ignored" in line for line in warnings)


FLAGS = """
    split_count allocator_policy dmem_backend exclude_gpus device_memory_scaling report_node_capacity
    cdi_spec_dir musl_fail_closed ctr_path containerd_socket resource_naming_strategy hip_log_level v pulse
    root simulate kubelet_dir dry_run logtostderr stderrthreshold
"""


def test_help_lists_every_flag_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        given("-help")
    text = capsys.readouterr().out
    for flag in FLAGS.split():
        assert f"\n  -{flag} " in text
