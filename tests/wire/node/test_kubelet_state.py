"""``koord-numa/kubelet-state``: read back as written, bounded, and malformed texts spoil one topology only."""

import json
import zlib
from base64 import b64encode
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.node import (
    ContainerState,
    CpuRow,
    HeldMemory,
    KubeletCheckpoint,
    MemoryAmounts,
    NumaMemory,
)
from koord_numa.core.value_objects import replace
from koord_numa.wire import parse_topology
from koord_numa.wire.kubelet_state import MAX_JSON, MAX_PLAIN, MAX_TEXT, kubelet_state_text
from tests.tables import each_row
from tests.wire.objects import KUBELET_NRT, annotated

STATE: Final = "koord-numa/kubelet-state"
NAMES: Final = st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1, max_size=12)
UIDS: Final = st.uuids().map(str)
CPUS: Final = st.integers(0, (1 << 200) - 1)
MASKS: Final = st.integers(0, (1 << 10) - 1)
SIZES: Final = st.integers(0, 1 << 45)
RESOURCES: Final = st.sampled_from(["nvidia.com/gpu", "example.com/nic", "intel.com/sriov"])
MEMORY: Final = st.sampled_from(["memory", "hugepages-1Gi", "hugepages-2Mi"])
CONTAINERS: Final = st.builds(
    ContainerState,
    cpus=CPUS,
    memory=st.lists(st.builds(HeldMemory, numa_mask=MASKS, resource=MEMORY, size=SIZES), max_size=3).map(tuple),
    devices=st.dictionaries(RESOURCES, st.lists(NAMES, min_size=1, max_size=3).map(tuple), max_size=2),
)


@st.composite
def cpu_tables(draw: st.DrawFn) -> tuple[CpuRow, ...]:
    """CPUs of cores of one to three threads, with cores, caches and NUMA nodes wherever."""
    rows: list[CpuRow] = []
    for _ in range(draw(st.integers(0, 8))):
        first = len(rows)
        place = draw(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 20)))
        rows += [CpuRow(first + thread, first, *place) for thread in range(draw(st.integers(1, 3)))]
    return tuple(rows)


CHECKPOINTS: Final = st.builds(
    KubeletCheckpoint,
    read_at=st.integers(0, 1 << 42).map(lambda milliseconds: milliseconds / 1000),
    cpus=cpu_tables(),
    reserved_cpus=CPUS,
    cpu_policy=st.sampled_from([None, "none", "static"]),
    memory_policy=st.sampled_from([None, "None", "Static"]),
    cpu_options=st.none() | st.dictionaries(NAMES, st.booleans(), max_size=3),
    device_numa=st.dictionaries(RESOURCES, st.dictionaries(NAMES, MASKS, min_size=1, max_size=6), max_size=3),
    default_cpus=CPUS,
    pods=st.dictionaries(UIDS, st.dictionaries(NAMES, CONTAINERS, max_size=3), max_size=6),
    pod_level=st.dictionaries(UIDS, CONTAINERS, max_size=2),
    active=st.frozensets(UIDS, max_size=6),
    gone=st.frozensets(UIDS, max_size=6),
    memory=st.dictionaries(
        st.integers(0, 9),
        st.builds(
            NumaMemory,
            group=MASKS,
            amounts=st.dictionaries(MEMORY, st.builds(MemoryAmounts, allocatable=SIZES, reserved=SIZES), max_size=3),
        ),
        max_size=4,
    ),
    state_known=st.booleans(),
    too_large=st.booleans(),
)


def published(text: str) -> KubeletCheckpoint | None:
    """The checkpoint of a topology with this annotation, which must not spoil it."""
    topology = parse_topology(annotated(KUBELET_NRT, STATE, text))
    assert topology.problem == ""
    return topology.checkpoint


def many_pods(count: int) -> KubeletCheckpoint:
    """A node of 512 CPUs with so many pods of random uids."""
    rows = tuple(CpuRow(cpu, cpu % 256, cpu // 128 % 2, cpu // 32 % 8, cpu // 16 % 16) for cpu in range(512))
    uids = [f"{zlib.crc32(str(number).encode()):08x}-{number * 7919 % 65536:04x}" for number in range(count)]
    pods = {uid: {"app": ContainerState(cpus=1 << number % 512)} for number, uid in enumerate(uids)}
    return KubeletCheckpoint(read_at=1.0, cpus=rows, cpu_policy="static", pods=pods, active=frozenset(uids))


@given(checkpoint=CHECKPOINTS)
def test_a_state_is_read_back_as_written(checkpoint: KubeletCheckpoint) -> None:
    assert published(kubelet_state_text(checkpoint)) == checkpoint


def test_a_topology_without_the_annotation() -> None:
    assert parse_topology(KUBELET_NRT).checkpoint is None
    assert published("") is None


def test_a_small_state_is_plain_json() -> None:
    checkpoint = replace(many_pods(0), pods={"u": {"app": ContainerState(cpus=0b110)}}, active=frozenset("u"))
    written = json.loads(kubelet_state_text(checkpoint))
    assert written["pods"] == {"u": {"app": {"cpus": "1-2"}}}
    assert written["cpus"][0]["cores"][0] == "0,256"


@pytest.mark.parametrize("count", [250, 1000])
def test_a_large_state_is_compressed(count: int) -> None:
    text = kubelet_state_text(many_pods(count))
    assert text[0] != "{"
    assert len(text) < MAX_TEXT
    assert published(text) == many_pods(count)


def test_a_state_that_does_not_fit_keeps_the_hardware() -> None:
    checkpoint = many_pods(20_000)
    assert published(kubelet_state_text(checkpoint)) == KubeletCheckpoint(
        read_at=1.0, cpus=checkpoint.cpus, cpu_policy="static", too_large=True
    )


def test_devices_that_do_not_fit_are_left_out() -> None:
    devices = {zlib.crc32(str(number).encode()).to_bytes(4).hex() * 2: 1 for number in range(40_000)}
    checkpoint = replace(many_pods(1), device_numa={"example.com/nic": devices})
    found = published(kubelet_state_text(checkpoint))
    assert found == KubeletCheckpoint(read_at=1.0, cpus=checkpoint.cpus, cpu_policy="static", too_large=True)
    assert not found.is_exact


def packed(data: bytes) -> str:
    return b64encode(zlib.compress(data)).decode()


MALFORMED: Final = {
    "no JSON": "{",
    "no base64": "?",
    "no zlib": b64encode(b"abc").decode(),
    "a half of the compressed text": packed(b'{"readAt":1}' + b" " * 100)[:16],
    "a bomb": packed(b'{"readAt":1,"more":"' + b"x" * MAX_JSON + b'"}'),
    "too long": "{" + " " * MAX_TEXT + "}",
    "no time": "{}",
    "an infinite time": '{"readAt":1e999}',
    "a wrong type": '{"readAt":1,"active":3}',
    "a CPU list": '{"readAt":1,"defaultCPUs":"3-1"}',
    "a CPU above the limit": '{"readAt":1,"defaultCPUs":"5000"}',
    "a NUMA node above the limit": '{"readAt":1,"devices":{"a/b":{"1024":["x"]}}}',
    "a NUMA node of a CPU": '{"readAt":1,"cpus":[{"socket":0,"numa":2000,"l3":0,"cores":["0"]}]}',
    "two NUMA nodes as one": '{"readAt":1,"memory":{"0-1":{"group":"0","amounts":{}}}}',
    "a CPU twice": '{"readAt":1,"cpus":[{"socket":0,"numa":0,"l3":0,"cores":["0-1","1"]}]}',
    "a negative size": '{"readAt":1,"pods":{"u":{"c":{"memory":[["0","memory",-1]]}}}}',
    "an unknown policy": '{"readAt":1,"cpuManagerPolicy":"dynamic"}',
    "deep nesting": '{"readAt":1,"more":' + "[" * 30_000,
    "half a surrogate pair": '{"readAt":1,"\ud800":2}',
}


@each_row("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_state_is_a_problem_of_its_topology(text: str) -> None:
    topology = parse_topology(annotated(KUBELET_NRT, STATE, text))
    assert STATE in topology.problem
    assert topology.checkpoint is None


@given(text=st.text() | st.binary().map(packed) | st.text(max_size=40).map(lambda end: '{"readAt":1,' + end))
def test_no_text_breaks_the_parser(text: str) -> None:
    parse_topology(annotated(KUBELET_NRT, STATE, text))


def test_an_unknown_field_is_ignored() -> None:
    assert published('{"readAt":1,"later":[{}]}') == KubeletCheckpoint(read_at=1.0)
    assert MAX_PLAIN < MAX_TEXT


@pytest.mark.parametrize("options", [None, {}])
def test_a_static_policy_with_unknown_options_is_unpublished(options: dict[str, bool] | None) -> None:
    """Options that are not known must not count as off."""
    text = kubelet_state_text(KubeletCheckpoint(read_at=1.0, cpu_policy="static", cpu_options=options))
    attributes = [{"name": "cpuManagerPolicy", "value": "static"}]
    topology = parse_topology({**annotated(KUBELET_NRT, STATE, text), "attributes": attributes})
    assert topology.kubelet.cpu_policy == (None if options is None else "static")
