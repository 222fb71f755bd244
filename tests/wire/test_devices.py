"""Device objects and the annotations about devices: read tolerantly and within bounds, written as Koordinator writes them."""

import json
from typing import Any

import pytest

from koord_numa.core.objects.constraints import LabelSelector, Operator, Requirement
from koord_numa.core.objects.devices import (
    AllocateStrategy,
    DeviceExclusive,
    DeviceGrant,
    DeviceHint,
    DeviceSpec,
    DeviceTopology,
    NodeDevice,
    Partition,
    PartitionPolicy,
    PartitionSpec,
    TopologyScope,
    VirtualFunction,
)
from koord_numa.wire.devices import device_allocated, device_grants, parse_devices
from koord_numa.wire.errors import FieldPath, WireError
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.raw_json import UnreadObject
from tests.tables import each_row

GPU = {
    "type": "gpu",
    "id": "GPU-8c25ea37",
    "minor": 3,
    "moduleID": 3,
    "health": True,
    "labels": {"model": "H100"},
    "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "80Gi"},
    "topology": {"socketID": -1, "nodeID": 1, "pcieID": "pci0000:00", "busID": "0000:07:00.0"},
    "conditions": [{"type": "Ready"}],
}
NIC = {
    "type": "rdma",
    "minor": 0,
    "health": True,
    "resources": {"koordinator.sh/rdma": 100},
    "topology": {"nodeID": -1},
    "vfGroups": [
        {"labels": {"type": "fast"}, "vfs": [{"minor": 1, "busID": "0000:1f:00.3"}, {"busID": "0000:1f:00.2"}]}
    ],
}


def device(*devices: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A Device object."""
    spec = {"devices": list(devices)}
    return {"kind": "Device", "metadata": {"name": "worker", "resourceVersion": "7", **metadata}, "spec": spec}


def test_a_device_object() -> None:
    """Everything that decisions depend on, and nothing else."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": "worker", "uid": "uid-worker"}
    labels = {"node.koordinator.sh/gpu-partition-policy": "Honor", "node.koordinator.sh/gpu-model": "H100"}
    found = parse_devices(device(NIC, GPU, labels=labels, ownerReferences=[owner]))
    assert (found.node, found.node_uid, found.problem, found.resource_version) == ("worker", "uid-worker", "", "7")
    assert (found.honors_partitions, found.model, found.injected) == (True, "H100", True)
    assert found.ids == {("gpu", 3): "GPU-8c25ea37", ("rdma", 0): ""}
    assert found.devices == (
        NodeDevice(
            "gpu",
            3,
            (("koordinator.sh/gpu-core", 100), ("koordinator.sh/gpu-memory", 80 << 30)),
            DeviceTopology(1, "pci0000:00", -1),
            healthy=True,
            labels=(("model", "H100"),),
        ),
        NodeDevice(
            "rdma",
            0,
            (("koordinator.sh/rdma", 100),),
            DeviceTopology(None, "", -1),
            healthy=True,
            functions=(
                VirtualFunction("0000:1f:00.2", 0, (("type", "fast"),)),
                VirtualFunction("0000:1f:00.3", 1, (("type", "fast"),)),
            ),
        ),
    )


@each_row(
    ("changes", "expected"),
    [
        # Koordinator's agent omits a false health.
        ({"health": None}, NodeDevice("gpu", 3, (), None, healthy=False)),
        ({"health": False}, NodeDevice("gpu", 3, (), None, healthy=False)),
        ({"minor": None}, NodeDevice("gpu", 0)),
        ({"resources": {"kubernetes.io/gpu-core": 100}}, NodeDevice("gpu", 3, (("koordinator.sh/gpu-core", 100),))),
        ({"resources": {"koordinator.sh/gpu-core": "-5"}}, NodeDevice("gpu", 3, (("koordinator.sh/gpu-core", 0),))),
        ({"topology": {}}, NodeDevice("gpu", 3, (), DeviceTopology())),
        ({"type": "xpu"}, NodeDevice("xpu", 3)),
        ({"vfGroups": [{"vfs": None}, {}]}, NodeDevice("gpu", 3)),
    ],
)
def test_tolerant(changes: dict[str, Any], expected: NodeDevice) -> None:
    """Absent parts have the defaults of Koordinator's types."""
    plain = {"type": "gpu", "minor": 3, "health": True}
    raw = {key: value for key, value in {**plain, **changes}.items() if value is not None}
    found = parse_devices(device(raw))
    assert (found.problem, found.devices) == ("", (expected,))


@each_row(
    ("obj", "problem"),
    [
        (device({**GPU, "type": ""}), "spec.devices.type: is missing"),
        (device({**GPU, "minor": -1}), "spec.devices.minor: -1 is not in 0 to 2147483647"),
        (device({**GPU, "minor": "3"}), "whole number"),
        (device({**GPU, "health": "yes"}), "is neither true nor false"),
        (device(GPU, GPU), "gpu 3 is listed twice"),
        (device({**GPU, "resources": {"koordinator.sh/gpu-core": "many"}}), "is not a quantity"),
        (device({**GPU, "topology": {"nodeID": 1 << 20}}), "topology.nodeID: NUMA node 1048576 is above"),
        (device({**GPU, "id": "x" * 300}), "is longer than 253 characters"),
        (device({**NIC, "vfGroups": [{"vfs": [{"busID": "a"}, {"busID": "a"}]}]}), "have the same busID"),
        (device(*({**GPU, "minor": minor} for minor in range(257))), "257 devices are too many, at most 256"),
        (
            device({**NIC, "vfGroups": [{"vfs": [{"busID": str(n)} for n in range(1025)]}]}),
            "1025 virtual functions are too many",
        ),
        ({"metadata": {"name": "worker"}, "spec": {"devices": {}}}, "a list"),
        ({"metadata": {"name": "worker"}, "spec": []}, "an object"),
        (device(GPU, annotations={"scheduling.koordinator.sh/gpu-partitions": "{"}), "is not JSON"),
        (
            device(GPU, annotations={"scheduling.koordinator.sh/gpu-partitions": '{"two":[]}'}),
            "is not a number of GPUs",
        ),
        (
            device(GPU, annotations={"scheduling.koordinator.sh/gpu-partitions": '{"2":[{"minors":[0]}]}'}),
            "a partition lists 1 GPUs",
        ),
        (
            device(GPU, annotations={"scheduling.koordinator.sh/gpu-partitions": '{"2":[{"minors":[0,0]}]}'}),
            "a partition lists 2 GPUs",
        ),
    ],
)
def test_malformed_objects_are_not_used(obj: dict[str, Any], problem: str) -> None:
    """The problem is named, and no device is offered."""
    found = parse_devices(obj)
    assert problem in found.problem
    assert (found.node, found.devices) == ("worker", ())


def test_partition_table() -> None:
    """The annotation of the object, by number of GPUs."""
    table = {
        "2": [
            {"minors": [1, 0], "gpuLinkType": "NVLink", "ringBusBandwidth": "400Gi", "allocationScore": 4},
            {"minors": [2, 3]},
        ],
        "1": None,
    }
    found = parse_devices(device(GPU, annotations={"scheduling.koordinator.sh/gpu-partitions": json.dumps(table)}))
    assert found.partitions == ((1, ()), (2, (Partition((0, 1), 4, 400 << 30), Partition((2, 3), 0))))


def pod(**annotations: str) -> dict[str, Any]:
    """A waiting pod with Koordinator's annotations; names have no prefix and underscores."""
    keys = {f"scheduling.koordinator.sh/{name.replace('_', '-')}": text for name, text in annotations.items()}
    resources = {"limits": {"koordinator.sh/gpu": "100"}}
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "annotations": keys},
        "spec": {"containers": [{"name": "app", "resources": resources}]},
    }


SELECTOR = LabelSelector((Requirement("type", Operator.IN, ("fast",)),))


@each_row(
    ("annotations", "expected"),
    [
        ({}, DeviceSpec()),
        ({"device_allocate_hint": "{}"}, DeviceSpec()),
        ({"device_allocate_hint": "null"}, DeviceSpec()),
        ({"device_allocate_hint": '{"gpu":null}'}, DeviceSpec((("gpu", DeviceHint()),))),
        (
            {"device_allocate_hint": '{"rdma":{"selector":{"matchLabels":{"type":"fast"}},"vfSelector":{}}}'},
            DeviceSpec((("rdma", DeviceHint(SELECTOR, LabelSelector())),)),
        ),
        (
            {
                "device_allocate_hint": '{"rdma":{"allocateStrategy":"ApplyForAll","exclusivePolicy":"PCIeLevel"},'
                '"fpga":{"allocateStrategy":"RequestsAsCount"}}'
            },
            DeviceSpec(
                (
                    ("fpga", DeviceHint(strategy=AllocateStrategy.REQUESTS_AS_COUNT)),
                    ("rdma", DeviceHint(strategy=AllocateStrategy.APPLY_FOR_ALL, exclusive=DeviceExclusive.PCIE)),
                )
            ),
        ),
        (
            {"device_allocate_hint": '{"gpu":{"requiredTopologyScope":"NUMANode"}}'},
            DeviceSpec((("gpu", DeviceHint(scope=TopologyScope.NUMA_NODE)),)),
        ),
        (
            {"device_allocate_hint": '{"GPU":{"RequiredTopologyScope":"pcie"}}'},
            DeviceSpec((("gpu", DeviceHint(scope=TopologyScope.PCIE)),)),
        ),
        ({"device_joint_allocate": '{"deviceTypes":["gpu","rdma"]}'}, DeviceSpec(joint=("gpu", "rdma"))),
        (
            {"device_joint_allocate": '{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}'},
            DeviceSpec(joint=("gpu", "rdma"), same_pcie=True),
        ),
        ({"device_joint_allocate": '{"deviceTypes":null}'}, DeviceSpec()),
        ({"gpu_partition_spec": "{}"}, DeviceSpec(partition=PartitionSpec())),
        ({"gpu_partition_spec": '{"allocatePolicy":"BestEffort"}'}, DeviceSpec(partition=PartitionSpec())),
        (
            {"gpu_partition_spec": '{"allocatePolicy":"Restricted","ringBusBandwidth":"400Gi"}'},
            DeviceSpec(partition=PartitionSpec(PartitionPolicy.RESTRICTED, 400 << 30)),
        ),
    ],
)
def test_demands_of_a_pod(annotations: dict[str, str], expected: DeviceSpec) -> None:
    """All spellings."""
    found = parse_pod(pod(**annotations))
    assert (found.problem, found.request.devices) == ("", expected)


@each_row(
    ("annotations", "problem"),
    [
        ({"device_allocate_hint": "["}, "is not JSON"),
        ({"device_allocate_hint": "[]"}, "a list of 0 is not an object"),
        ({"device_allocate_hint": '{"gpus":{}}'}, '"gpus" is none of fpga, gpu, rdma'),
        ({"device_allocate_hint": '{"gpu":{"selectors":{}}}'}, "gpu.selectors: is unknown, did you mean selector?"),
        ({"device_allocate_hint": '{"gpu":{"allocateStrategy":"All"}}'}, "is none of ApplyForAll, RequestsAsCount"),
        (
            {"device_allocate_hint": '{"gpu":{"requiredTopologyScope":"Switch"}}'},
            "is none of Device, NUMANode, Node, PCIe",
        ),
        ({"device_allocate_hint": '{"gpu":{"exclusivePolicy":"Node"}}'}, "is none of DeviceLevel, PCIeLevel"),
        (
            {"device_allocate_hint": '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"Gt"}]}}}'},
            "Gt is not an operator of a label selector",
        ),
        ({"device_allocate_hint": '{"a":1,"b":2,"c":3,"d":4}'}, "4 device types are too many"),
        ({"device_joint_allocate": '{"deviceTypes":["nic"]}'}, '"nic" is none of fpga, gpu, rdma'),
        ({"device_joint_allocate": '{"deviceTypes":"gpu"}'}, "is not a list"),
        ({"device_joint_allocate": '{"requiredScope":"SameSwitch"}'}, "is none of SamePCIe"),
        ({"device_joint_allocate": '{"types":["gpu"]}'}, "types: is unknown"),
        ({"gpu_partition_spec": '{"allocatePolicy":"Strict"}'}, "is none of BestEffort, Restricted"),
        ({"gpu_partition_spec": '{"ringBusBandwidth":"fast"}'}, "is not a quantity"),
        ({"device_joint_alocate": "{}"}, "use the annotation scheduling.koordinator.sh/device-joint-allocate"),
    ],
)
def test_malformed_demands_are_rejected(annotations: dict[str, str], problem: str) -> None:
    """A demand is never ignored: the pod waits, and the message names the member."""
    assert problem in parse_pod(pod(**annotations)).problem


HELD = (
    DeviceGrant("gpu", 1, {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory": 8 << 30}, (), "GPU-1"),
    DeviceGrant("rdma", 0, {"koordinator.sh/rdma": 1}, (VirtualFunction("0000:1f:00.2", 0),)),
)


def test_what_is_written_is_read_back() -> None:
    """In Koordinator's shape."""
    text = device_allocated(HELD)
    assert json.loads(text) == {
        "gpu": [
            {
                "minor": 1,
                "id": "GPU-1",
                "resources": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"},
            }
        ],
        "rdma": [
            {
                "minor": 0,
                "resources": {"koordinator.sh/rdma": "1"},
                "extension": {"vfs": [{"minor": 0, "busID": "0000:1f:00.2"}]},
            }
        ],
    }
    assert device_grants(text, FieldPath("")) == HELD


@each_row(
    ("text", "expected"),
    [
        ("{}", ()),
        ("null", ()),
        ('{"gpu":null}', ()),
        ('{"gpu":[null]}', ()),
        (
            '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":100}}]}',
            (DeviceGrant("gpu", 0, {"koordinator.sh/gpu-core": 100}),),
        ),
        (
            '{"gpu":[{"resources":{"kubernetes.io/gpu-core":"100"}}]}',
            (DeviceGrant("gpu", 0, {"koordinator.sh/gpu-core": 100}),),
        ),
        (
            '{"gpu":[{"minor":2,"resources":{},"extension":{"vfs":null,"gpuSharedResourceTemplate":"vir02"}}]}',
            (DeviceGrant("gpu", 2, {}),),
        ),
    ],
)
def test_held_devices(text: str, expected: tuple[DeviceGrant, ...]) -> None:
    """As Go reads them."""
    assert device_grants(text, FieldPath("")) == expected


@each_row(
    "text",
    ["[", "[]", '{"gpu":{}}', '{"gpu":[{"minor":-1}]}', '{"gpu":[{"minor":"0"}]}', json.dumps({"gpu": [{}] * 257})],
)
def test_malformed_held_devices(text: str) -> None:
    """The holdings of such a pod are unknown."""
    with pytest.raises(WireError):
        device_grants(text, FieldPath(""))
    raw = pod(device_allocated=text)
    raw["spec"]["nodeName"] = "worker"
    found = parse_pod(raw)
    assert found.unknown_devices
    assert found.devices == ()


def test_held_devices_are_counted_before_they_are_read() -> None:
    with pytest.raises(WireError, match="257 devices are too many"):
        device_grants(json.dumps({"gpu": ["no device"] * 257}), FieldPath("pod"))


def test_a_pod_with_a_node_holds_and_one_without_does_not() -> None:
    """The annotation of a waiting pod was copied from another one. Both ways to parse a bound pod agree."""
    raw = pod(device_allocated=device_allocated(HELD))
    waiting = parse_pod(raw)
    assert (waiting.devices, waiting.stale_devices) == ((), True)
    raw["spec"]["nodeName"] = "worker"
    raw["metadata"]["uid"] = "v"
    whole = parse_pod(raw)
    assert (whole.devices, whole.stale_devices) == (HELD, False)
    text = UnreadObject(json.dumps(raw).encode())
    assert parse_pod(text) == parse_pod(UnreadObject(json.dumps(raw).encode())) == whole
