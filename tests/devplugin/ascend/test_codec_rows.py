"""F.2's rows of the pod annotations, C1 to C6 and C15, as the Ascend plugin reads and writes them.

Upstream's decoder adds an empty slot behind the last ``;`` and so grows a text each time it is written again
(A.7); ours does not (decision 16), which is all that differs here.
"""

from __future__ import annotations

import pytest

from devplugin.ascend.runtimeinfo import vocabulary
from devplugin.hami import CodecError, ContainerDevice, Node, Pod, claim, decode, encode, slots_left

ONE = ContainerDevice("UUID1", "Type1", 1000, 30)
TWO = ContainerDevice("UUID2", "Type1", 2000, 40)
WORDS = vocabulary("Ascend910B4")


def test_c1_one_device() -> None:
    assert encode([[ONE]]) == "UUID1,Type1,1000,30:;"
    assert decode("UUID1,Type1,1000,30:;") == ((ONE,),)
    assert encode(decode("UUID1,Type1,1000,30:;;")) == "UUID1,Type1,1000,30:;;"  # never longer


def test_c2_two_containers_of_one_device() -> None:
    text = "UUID1,Type1,1000,30:;UUID2,Type1,2000,40:;"
    assert encode([[ONE], [TWO]]) == text
    assert decode(text) == ((ONE,), (TWO,))


def test_c3_one_container_of_two_devices() -> None:
    text = "UUID1,Type1,1000,30:UUID2,Type1,2000,40:;"
    assert encode([[ONE, TWO]]) == text
    assert decode(text) == ((ONE, TWO),)


def test_c4_no_containers() -> None:
    assert encode([]) == ""
    assert decode("") == ()
    assert not slots_left({WORDS.to_allocate: ""})


def test_c5_no_annotations() -> None:
    assert not slots_left({})
    pod = Pod("default", "p", "u", "n", "Pending")
    assert claim(Node("n", "node-uid"), (pod,), WORDS, ("UUID1-0",)).pod is None


def test_c6_a_device_of_three_fields_is_an_error() -> None:
    with pytest.raises(CodecError, match="uuid,type,100"):
        decode("uuid,type,100:;")


@pytest.mark.parametrize(("text", "slots"), [("u,t,1,2,3:;", 3), ("u,t,1,2,x:;", 1)])
def test_c15_the_fifth_field_counts_slots_and_nonsense_there_is_passed_over(text: str, slots: int) -> None:
    ((device,),) = decode(text)
    assert device == ContainerDevice("u", "t", 1, 2, slots)
