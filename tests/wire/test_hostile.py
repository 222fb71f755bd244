"""Parsing any object gives a value or one ``WireError``, quickly and with a short message."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord_numa.wire import WireError, parse_node, parse_pod, parse_rebind, parse_topology
from koord_numa.wire.devices import parse_devices
from koord_numa.wire.volumes import parse_claim, parse_storage_class, parse_volume
from koord_numa.wire.workloads import parse_budget, parse_namespace
from tests.tables import each_row
from tests.wire.objects import KOORDINATOR_NRT, KUBELET_NRT, NODE, POD, REBIND, annotated, changed

Parse = Callable[[Mapping[str, Any]], Any]

LONGEST_MESSAGE = 700


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


HOSTILE: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "negative": -1,
    "above 4096": 4097,
    "huge integer": 10**5000,
    "nan": math.nan,
    "infinite": math.inf,
    "empty text": "",
    "word": "Strict",
    "megabytes": "x" * 2_000_000,  # more than the API server stores of an object
    "half a character": "\ud800",
    "list": [1, "2", None],
    "empty list": [],
    "object": {"a": {"b": 1}},
    "empty object": {},
    "deep list": nested(5000),
    "list of lists": [[], [[]]],
    "list of nulls": [None, None],
}

HOSTILE_TEXTS: dict[str, str] = {
    "not JSON": "{",
    "null": "null",
    "list": "[]",
    "number": "1",
    "text": '"x"',
    "deep": "[" * 100_000 + "]" * 100_000,
    "deep objects": '{"detail":' * 5000 + "1" + "}" * 5000,
    "megabytes": '{"cpuset":"' + "1," * 1_000_000 + '1"}',
    "long list": json.dumps({"cpuset": ",".join(["0"] * 200_000), "detail": [{}] * 20_000}),
    "nan": '{"cpu":NaN,"detail":NaN,"cpuset":NaN}',
    "infinite": '{"cpu":Infinity,"cpuset":-Infinity,"detail":[{"id":Infinity}]}',
    "key twice": '{"cpuset":"0-1","cpuset":"2-3","detail":[{"id":0,"id":1}],"detail":[],"cpu":1,"cpu":-1}',
    "huge": '{"cpu":1e400,"cpuset":1e400,"node":' + "9" * 5000 + "}",
    "wrong types": '{"cpuset":5,"detail":{},"resources":[],"reservedCPUs":[],"options":[],"numaNodeResources":{}}',
    "nulls": '{"cpuset":null,"detail":[null],"resources":null,"numaNodeResources":[null],"cpuSharedPools":null}',
    "negative ids": '{"cpuset":"-3","detail":[{"id":-1}],"numaNodeResources":[{"node":-1}]}',
    "large ids": '{"cpuset":"4097","detail":[{"id":4097}],"numaNodeResources":[{"node":64}]}',
    "twice": '{"detail":[{"id":0},{"id":0}]}',
    "bad quantity": '{"cpu":-1,"resources":{"cpu":"-1"},"numaNodeResources":[{"node":0,"resources":{"cpu":"four"}}]}',
    "bad word": '{"requiredCPUBindPolicy":"Half","numaTopologyPolicy":"Strict","policy":"dynamic","applyPolicy":"x"}',
    "bad entries": '[{"cpuset":"x","managedByKubelet":"perhaps"},5,null]',
}

ANNOTATIONS = [
    f"scheduling.koordinator.sh/{name}"
    for name in (
        "resource-spec",
        "resource-status",
        "device-allocated",
        "device-allocate-hint",
        "device-joint-allocate",
        "gpu-partition-spec",
        "gpu-partitions",
    )
]
DEVICES: dict[str, Any] = {
    "metadata": {
        "name": "worker-2",
        "labels": {"node.koordinator.sh/gpu-model": "H100"},
        "annotations": {"scheduling.koordinator.sh/gpu-partitions": '{"1":[{"minors":[0]}]}'},
    },
    "spec": {
        "devices": [
            {
                "type": "rdma",
                "id": "nic",
                "minor": 0,
                "health": True,
                "labels": {"a": "b"},
                "resources": {"koordinator.sh/rdma": "100"},
                "topology": {"socketID": 0, "nodeID": 0, "pcieID": "pci0000:00"},
                "vfGroups": [{"labels": {"a": "b"}, "vfs": [{"minor": 1, "busID": "0000:00:00.1"}]}],
            }
        ]
    },
}

SUBJECTS: dict[str, tuple[Parse, dict[str, Any]]] = {
    "pod": (parse_pod, changed(POD, "spec nodeName", "worker-2")),
    "node": (parse_node, NODE),
    "koordinator": (parse_topology, KOORDINATOR_NRT),
    "kubelet": (parse_topology, KUBELET_NRT),
    "devices": (parse_devices, DEVICES),
    "rebind": (parse_rebind, REBIND),
    "volume": (
        parse_volume,
        {"metadata": {"name": "v"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": []}}}},
    ),
    "claim": (parse_claim, {"metadata": {"name": "c"}, "spec": {"volumeName": "v"}}),
    "class": (parse_storage_class, {"metadata": {"name": "s"}, "volumeBindingMode": "Immediate"}),
    "budget": (
        parse_budget,
        {"metadata": {"name": "b"}, "spec": {"selector": {}}, "status": {"disruptionsAllowed": 1}},
    ),
    "namespace": (parse_namespace, {"metadata": {"name": "p", "labels": {"team": "a"}}}),
}


def paths(value: Any, prefix: tuple[str, ...] = ()) -> Iterator[str]:
    """Every place in an object."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        here = (*prefix, str(key))
        yield " ".join(here)
        yield from paths(item, here)


def answers(parse: Parse, obj: Any) -> None:
    """Reading either works, with a short problem, or raises the one error, as short."""
    try:
        problem = parse(obj).problem
    except WireError as error:
        problem = str(error)
    assert len(problem) < LONGEST_MESSAGE
    problem.encode()


@each_row("value", HOSTILE.values(), ids=HOSTILE.keys())
@each_row(("parse", "obj"), SUBJECTS.values(), ids=SUBJECTS.keys())
def test_any_value_anywhere(parse: Parse, obj: dict[str, Any], value: Any) -> None:
    for path in paths(obj):
        answers(parse, changed(obj, path, value))


@each_row("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS.keys())
@each_row(("parse", "obj"), [*SUBJECTS.values()][:5], ids=[*SUBJECTS][:5])
def test_any_text_in_any_annotation(parse: Parse, obj: dict[str, Any], text: str) -> None:
    known = {**NODE["metadata"]["annotations"], **KOORDINATOR_NRT["metadata"]["annotations"]}
    for name in (*known, *ANNOTATIONS):
        answers(parse, annotated(obj, name, text))


@each_row("value", HOSTILE.values(), ids=HOSTILE.keys())
@each_row("parse", [parse for parse, _ in SUBJECTS.values()], ids=SUBJECTS.keys())
def test_no_object_at_all(parse: Parse, value: Any) -> None:
    with pytest.raises(WireError):
        parse(value)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*HOSTILE_TEXTS.values()][:5])
    | st.sampled_from(["4", "8Gi", "0-3", "Exists", "In", "node-0", "Node", "FullPCPUs"])
)
keys = st.sampled_from(sorted({step for _, obj in SUBJECTS.values() for path in paths(obj) for step in path.split()}))
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    subject=st.sampled_from([*SUBJECTS.values()]),
    parts=st.dictionaries(st.sampled_from(["metadata", "spec", "status", "zones", "attributes"]), values, max_size=3),
)
def test_any_json(subject: tuple[Parse, dict[str, Any]], parts: dict[str, Any]) -> None:
    parse, obj = subject
    answers(parse, {**obj, **parts})
    answers(parse, parts)


@given(subject=st.sampled_from([*SUBJECTS.values()]), data=st.data())
def test_any_value_at_two_places(subject: tuple[Parse, dict[str, Any]], data: st.DataObject) -> None:
    parse, obj = subject
    for _ in range(2):
        path = data.draw(st.sampled_from([*paths(obj)] or ["metadata"]))
        obj = changed(obj, path, data.draw(values))
    answers(parse, obj)
