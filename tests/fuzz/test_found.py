"""Inputs that once broke a parser: what each does now, for ever."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from devplugin import kubejson
from devplugin.amd import sensors
from devplugin.amd.labelfacts import read_label_facts
from gpusim.cluster.apiclient import ApiClient
from gpusim.cluster.apihttp import decode_json
from gpusim.cluster.apistatus import UnreachableError
from gpusim.fixture import BadFixture, loads
from gpusim.testing.limits import seconds

from . import sound
from .plugin import Exchanged
from .table import BY_NAME

DEEP = b"[" * 5000 + b"]" * 5000
LONG = b"9" * 4301
"""One digit more than int() takes."""

HEAD = {"gpusim": "trace", "version": 1, "node": "name: n\nkernel: 6.14\n"}

REFUSED = {
    "pods nested deeper than the stack": ("pods", b'{"items": [], "extra": %b}' % DEEP),
    "a pod whose unknown field is nested": (
        "pods",
        b'{"items": [{"metadata": {"name": "a"}, "x": %b}]}' % DEEP,
    ),
    "a register annotation nested deeper than the stack": ("scheduler-registration", DEEP),
    "cuPerWGP is infinite": (
        "scheduler-registration",
        b'[{"id": "a", "custominfo": {"cuPerWGP": Infinity}}]',
    ),
    "NetworkID is larger than a float": (
        "scheduler-registration",
        b'[{"id": "a", "custominfo": {"NetworkID": 1%b}}]' % (b"0" * 400),
    ),
    "an exponent larger than the memory": ("kubelet-quantity", b"1e922337203685372036854775807"),
    "a request nested deeper than the stack": ("patch", DEEP),
    "a frame's header nested deeper than the stack": ("frame-header", DEEP),
    "a checkpoint nested deeper than the stack": ("checkpoint", DEEP),
    "a checkpoint with a list for an object": (
        "checkpoint",
        b'{"holdings": [], "registered": [], "running": {}}',
    ),
    "half a surrogate pair in a trace's node": (
        "trace",
        json.dumps({"gpusim": "trace", "version": 1, "node": "name: \udcff"}).encode(),
    ),
    "a number that YAML itself cannot make": ("scheduler-config", b"vnpus: 0b_"),
    "a date in month 13": ("scheduler-config", b"vnpus: 2001-13-45"),
    "a call in a trace that is called a list": (
        "trace",
        json.dumps(HEAD).encode() + b'\n{"do": ["read"]}\n',
    ),
    "a command's status is infinite": (
        "pack-body",
        b'{"tree": {}, "commands": [[["a"], Infinity, "", ""]]}',
    ),
}

TAKEN = {
    "more sharers than int() reads": ("scheduler-annotation", b"id,type,1,2,0" + LONG + b":;"),
    "npu-smi is given what is no text": ("npu-smi", b"info\x80-i"),
    "ppu-smi is given what is no text": ("ppu-smi", b"-x\x80"),
    "an index of a list that int() does not read": (
        "patch",
        b'[{"op": "remove", "path": "/spec/containers/%b"}]' % LONG,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_broke_a_parser_once_is_refused_as_documented(case: str) -> None:
    name, data = REFUSED[case]
    with pytest.raises(BY_NAME[name].refuses):
        BY_NAME[name].parse(data)


@pytest.mark.parametrize("case", TAKEN)
def test_what_broke_a_parser_once_is_read(case: str) -> None:
    name, data = TAKEN[case]
    BY_NAME[name].parse(data)


def test_a_label_selector_of_ten_times_as_many_commas_takes_ten_times_as_long() -> None:
    def commas(count: int) -> float:
        return seconds(lambda: BY_NAME["label-selector"].parse(b"," * count + b"a in (b,c)"))

    assert commas(30_000) < 40 * commas(3_000)


def test_a_pod_nested_deeper_than_the_stack_is_an_answer_that_cannot_be_read_like_any_other() -> None:
    for read in (kubejson.read_pod, kubejson.read_pods, kubejson.read_node, kubejson.read_labels):
        with pytest.raises(kubejson.msgspec.DecodeError, match="nested too deeply"):
            read(b'{"metadata": {"name": "a"}, "x": %b}' % DEEP)
    assert kubejson.read_message(DEEP).startswith("[[[")


@pytest.mark.parametrize("text", [b"9" * 400, LONG, b"1_000", b"+5", b"", b"0x10"])
def test_a_sensor_that_shows_no_number_of_64_bits_shows_none(text: bytes) -> None:
    problems: list[str] = []
    node = Exchanged(sound.machine(), "/sys/x/temp1_input", text + b"\n")
    assert sensors.read_number(node, "/sys/x/temp1_input", problems.append) is None  # type: ignore[arg-type]
    assert problems == [f"/sys/x/temp1_input: no number: {text[:40]!a}"]
    empty = Exchanged(sound.machine(), "/sys/x/power1_average", text)
    assert sensors.power_watts(empty, ["/sys/x"]) is None  # type: ignore[arg-type]


def test_a_size_that_no_memory_has_costs_no_label() -> None:
    path = f"/sys/bus/pci/drivers/amdgpu/{sound.BDF}/mem_info_vram_total"
    node = Exchanged(sound.machine(), path, LONG)
    assert read_label_facts(node).agents == read_label_facts(sound.machine()).agents  # type: ignore[arg-type]


def test_half_a_surrogate_pair_in_a_fixture_is_refused_by_either_yaml_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import yaml

    for loader in (None, yaml.SafeLoader):
        if loader is not None:
            monkeypatch.setattr("gpusim.yamlnode._LOADER", loader)
        with pytest.raises(BadFixture, match="not YAML"):
            loads("name: a\udc80\n")


def test_an_admin_request_nested_deeper_than_the_stack_is_no_json() -> None:
    assert decode_json(DEEP) is None
    assert decode_json(b"[1]") == [1]


def test_an_answer_nested_deeper_than_the_stack_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(DEEP), DEEP))

        thread = threading.Thread(target=answer)
        thread.start()
        client = ApiClient(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(UnreachableError, match="no JSON"):
            client.get("nodes", "a")
        client.close()
        thread.join()
