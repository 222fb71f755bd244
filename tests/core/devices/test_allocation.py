"""The devices of a pod by hints, strategies, topology scopes, partitions and joint allocation, or Koordinator's message."""

from typing import Any

import pytest

from koord_numa.core.devices import Shortage
from koord_numa.core.objects.constraints import LabelSelector, Operator, Requirement
from koord_numa.core.objects.devices import (
    AllocateStrategy,
    DeviceExclusive,
    DeviceHint,
    DeviceInventory,
    DeviceSpec,
    Partition,
    PartitionPolicy,
    PartitionSpec,
    TopologyScope,
)
from tests.core.devices.rack import EIGHT, choose, inventory, provider, request
from tests.tables import each_row

NO_GPU = "Insufficient gpu devices"
NO_NIC = "Insufficient rdma devices"
NO_PART = "Insufficient Partitioned GPU Devices"
NO_SCOPE = "Insufficient Topology Scoped GPU Devices"
NOT_JOINT = "node(s) Device Joint-Allocate rules violation"
NO_NUMA = "Insufficient NUMA Scoped Devices"
NO_FUNCTION = "Insufficient rdma VirtualFunctions"


def labelled(key: str, value: str) -> LabelSelector:
    """A selector of one label."""
    return LabelSelector((Requirement(key, Operator.IN, (value,)),))


def hinted(kind: str, **fields: Any) -> DeviceSpec:
    """A hint for one device type."""
    return DeviceSpec(hints=((kind, DeviceHint(**fields)),))


@each_row(
    ("amounts", "pods", "expected"),
    [
        ({"gpu": 100}, (), "gpu0"),
        ({"gpu": 200}, (), "gpu0 gpu1"),
        ({"gpu": 300}, (), "gpu0 gpu1 gpu2"),
        ({"gpu": 400}, (), "gpu0 gpu1 gpu2 gpu3"),
        ({"gpu": 500}, (), "gpu0 gpu1 gpu2 gpu3 gpu4"),
        ({"gpu": 800}, (), "gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7"),
        ({"gpu": 900}, (), NO_GPU),
        # PCIe switches in use come first, then those of NUMA nodes in use.
        ({"gpu": 100}, ("gpu5",), "gpu4"),
        ({"gpu": 100}, ("gpu4 gpu5",), "gpu6"),
        ({"gpu": 200}, ("gpu4 gpu5",), "gpu6 gpu7"),
        ({"gpu": 200}, ("gpu0",), "gpu2 gpu3"),
        ({"gpu": 400}, ("gpu0",), "gpu4 gpu5 gpu6 gpu7"),
        ({"gpu": 300}, ("gpu0",), "gpu1 gpu2 gpu3"),
        ({"gpu": 200}, ("gpu0 gpu2 gpu4 gpu6",), "gpu1 gpu3"),
        ({"gpu": 800}, ("gpu3",), NO_GPU),
        ({"gpu": 100}, ("gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7",), NO_GPU),
        # Partial GPUs fill up the fullest one that fits.
        ({"gpu": 50}, (), "gpu0"),
        ({"gpu": 50}, ("gpu3:50",), "gpu3"),
        ({"gpu": 60}, ("gpu3:50",), "gpu2"),
        ({"gpu": 20}, ("gpu3:50", "gpu2:70"), "gpu2"),
        ({"gpu": 40}, ("gpu3:50", "gpu2:70"), "gpu3"),
        ({"gpu": 100}, ("gpu0:1",), "gpu1"),
        ({"gpu": 50}, ("gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6", "gpu7:60"), NO_GPU),
        ({"gpu.shared": 2, "gpu-memory-ratio": 100}, ("gpu3:50",), "gpu2 gpu3"),
        ({"gpu-memory": 8 << 30}, ("gpu3:50",), "gpu3"),
        ({"gpu-memory": 60 << 30}, ("gpu3:50",), "gpu2"),
        ({"gpu-core": 60, "gpu-memory": 8 << 30}, ("gpu3:50",), "gpu2"),
        # Shares of NICs spread.
        ({"rdma": 1}, (), "rdma0"),
        ({"rdma": 1}, ("rdma0:1",), "rdma1"),
        ({"rdma": 1}, ("rdma0:1 rdma1:1 rdma2:2 rdma3:2",), "rdma0"),
        ({"rdma": 100}, ("rdma0:1",), "rdma1"),
        ({"rdma": 200}, ("rdma1:1",), "rdma0 rdma2"),
        ({"rdma": 400}, ("rdma1:1",), NO_NIC),
        ({"gpu": 100, "rdma": 1}, (), "gpu0 rdma0"),
        ({"gpu": 100, "rdma": 500}, (), NO_NIC),
        ({"fpga": 100}, (), "Insufficient fpga devices"),
        ({"huawei.com/npu-core": 100, "gpu-memory-ratio": 100}, (), NO_GPU),
    ],
)
def test_default_order(amounts: dict[str, int], pods: tuple[str, ...], expected: str) -> None:
    """Without conditions: the smallest part of the machine that holds the devices."""
    assert choose(request(amounts), inventory(), *pods) == expected


@each_row(
    ("gpus", "amounts", "pods", "expected"),
    [
        ("0a! 0a", {"gpu": 100}, (), "gpu1"),
        ("0a! 0a!", {"gpu": 100}, (), NO_GPU),
        ("0a! 0a", {"gpu": 200}, (), NO_GPU),
        ("0a! 0a", {"gpu": 50}, ("gpu0:50",), "gpu1"),
        ("0a 0a", {"gpu": 100}, ("gpu7",), "gpu0"),
        ("? ?", {"gpu": 200}, (), "gpu0 gpu1"),
        ("? 0a", {"gpu": 100}, (), "gpu1"),
        ("-a -a", {"gpu": 200}, (), "gpu0 gpu1"),
        ("0 0", {"gpu": 200}, (), "gpu0 gpu1"),
        ("0a", {"gpu": 200}, (), NO_GPU),
        ("", {"gpu": 100}, (), NO_GPU),
    ],
)
def test_unhealthy_vanished_and_unlocated(
    gpus: str, amounts: dict[str, int], pods: tuple[str, ...], expected: str
) -> None:
    """Unhealthy devices have nothing free, vanished ones are not offered, and devices without a topology count."""
    assert choose(request(amounts), inventory(gpus), *pods) == expected


EVEN = labelled("model", "even")


@each_row(
    ("amounts", "spec", "pods", "expected"),
    [
        ({"gpu": 200}, hinted("gpu", selector=EVEN), (), "gpu0 gpu2"),
        ({"gpu": 100}, hinted("gpu", selector=EVEN), ("gpu0",), "gpu2"),
        ({"gpu": 500}, hinted("gpu", selector=EVEN), (), NO_GPU),
        ({"gpu": 100}, hinted("gpu", selector=labelled("model", "none")), (), NO_GPU),
        ({"rdma": 1}, hinted("rdma", selector=labelled("model", "odd")), (), "rdma1"),
        # A hint for another type is irrelevant.
        ({"gpu": 100}, hinted("rdma", selector=labelled("model", "none")), (), "gpu0"),
        ({"rdma": 1}, hinted("rdma", strategy=AllocateStrategy.APPLY_FOR_ALL), (), "rdma0 rdma1 rdma2 rdma3"),
        ({"rdma": 1}, hinted("rdma", strategy=AllocateStrategy.APPLY_FOR_ALL, selector=EVEN), (), "rdma0 rdma2"),
        ({"rdma": 60}, hinted("rdma", strategy=AllocateStrategy.APPLY_FOR_ALL), ("rdma2:50",), NO_NIC),
        (
            {"gpu": 100},
            hinted("gpu", strategy=AllocateStrategy.APPLY_FOR_ALL, selector=EVEN),
            (),
            "gpu0 gpu2 gpu4 gpu6",
        ),
        ({"rdma": 3}, hinted("rdma", strategy=AllocateStrategy.REQUESTS_AS_COUNT), ("rdma0:1",), "rdma1 rdma2 rdma3"),
        ({"rdma": 5}, hinted("rdma", strategy=AllocateStrategy.REQUESTS_AS_COUNT), (), NO_NIC),
        # DeviceLevel: nobody else uses the device. PCIeLevel: nobody else uses a device of the type on the switch.
        ({"rdma": 1}, hinted("rdma", exclusive=DeviceExclusive.DEVICE), ("rdma0:1 rdma1:1",), "rdma2"),
        ({"gpu": 50}, hinted("gpu", exclusive=DeviceExclusive.DEVICE), ("gpu0:10",), "gpu1"),
        ({"gpu": 50}, hinted("gpu", exclusive=DeviceExclusive.PCIE), ("gpu0:10",), "gpu2"),
        ({"gpu": 100}, hinted("gpu", exclusive=DeviceExclusive.PCIE), ("gpu0 gpu2 gpu4 gpu6",), NO_GPU),
        ({"gpu": 50}, hinted("gpu", exclusive=DeviceExclusive.PCIE), ("rdma0:10",), "gpu0"),
    ],
)
def test_hints(amounts: dict[str, int], spec: DeviceSpec, pods: tuple[str, ...], expected: str) -> None:
    """Selectors, strategies and exclusivity."""
    assert choose(request(amounts, spec), inventory(), *pods) == expected


FAST, SLOW, ANY = labelled("group", "fast"), labelled("group", "slow"), LabelSelector()


@each_row(
    ("selector", "pods", "device", "function"),
    [
        (ANY, (), "rdma0", "0000:00:00.1"),
        (FAST, (), "rdma0", "0000:00:00.1"),
        (SLOW, (), "rdma0", "0000:00:00.2"),
        (FAST, ("rdma0:1@0000:00:00.1",), "rdma1", "0000:01:00.1"),
        (ANY, ("rdma0:1@0000:00:00.1 rdma1:2 rdma2:2 rdma3:2",), "rdma0", "0000:00:00.2"),
        (SLOW, ("rdma0:1@0000:00:00.1 rdma1:2 rdma2:2 rdma3:2",), "rdma0", "0000:00:00.2"),
    ],
)
def test_virtual_functions(selector: LabelSelector, pods: tuple[str, ...], device: str, function: str) -> None:
    """The lowest free bus id that the selector matches."""
    hints = provider(request({"rdma": 1}, hinted("rdma", function_selector=selector)), inventory(), *pods)
    found = hints.at(0)
    assert not isinstance(found, Shortage)
    (grant,) = hints.grants(found)
    assert (f"{grant.type}{grant.minor}", grant.functions[0].bus_id) == (device, function)


@pytest.mark.parametrize(
    ("selector", "pods"),
    [
        (labelled("group", "none"), ()),
        (FAST, (" ".join(f"rdma{minor}:1@0000:0{minor}:00.1" for minor in range(4)),)),
    ],
)
def test_no_virtual_functions(selector: LabelSelector, pods: tuple[str, ...]) -> None:
    """The NICs are free, their virtual functions are not."""
    pod = request({"rdma": 1}, hinted("rdma", function_selector=selector))
    assert choose(pod, inventory(), *pods) == NO_FUNCTION


PCIE, NUMA, NODE, DEVICE = TopologyScope.PCIE, TopologyScope.NUMA_NODE, TopologyScope.NODE, TopologyScope.DEVICE


@each_row(
    ("scope", "amounts", "pods", "expected"),
    [
        (PCIE, {"gpu": 200}, (), "gpu0 gpu1"),
        (PCIE, {"gpu": 300}, (), NO_SCOPE),
        (PCIE, {"gpu": 200}, ("gpu0",), "gpu2 gpu3"),
        (PCIE, {"gpu": 200}, ("gpu0 gpu2 gpu4 gpu6",), NO_SCOPE),
        (PCIE, {"gpu": 100}, ("gpu0 gpu2 gpu4 gpu6",), "gpu1"),
        (NUMA, {"gpu": 300}, ("gpu0",), "gpu1 gpu2 gpu3"),
        (NUMA, {"gpu": 400}, ("gpu0",), "gpu4 gpu5 gpu6 gpu7"),
        (NUMA, {"gpu": 200}, ("gpu0 gpu2 gpu4 gpu6",), "gpu1 gpu3"),
        (NUMA, {"gpu": 400}, ("gpu0 gpu4",), NO_SCOPE),
        (NUMA, {"gpu": 500}, (), NO_SCOPE),
        (NODE, {"gpu": 500}, (), "gpu0 gpu1 gpu2 gpu3 gpu4"),
        (NODE, {"gpu": 800}, ("gpu0",), NO_GPU),
        (DEVICE, {"gpu": 100}, (), "gpu0"),
        (DEVICE, {"gpu": 200}, (), NO_SCOPE),
        (DEVICE, {"gpu": 50}, ("gpu5:50",), "gpu5"),
        (PCIE, {"gpu.shared": 2, "gpu-memory-ratio": 100}, (), "node(s) Unsupported Multi-Shared GPU"),
    ],
)
def test_topology_scopes(scope: TopologyScope, amounts: dict[str, int], pods: tuple[str, ...], expected: str) -> None:
    """All GPUs are within one part of the machine."""
    assert choose(request(amounts, hinted("gpu", scope=scope)), inventory(), *pods) == expected


@each_row(
    ("scope", "pods", "expected"),
    [
        (PCIE, (), NO_NIC),
        (NUMA, (), "rdma0 rdma1"),
        (NUMA, ("rdma0:1",), "rdma2 rdma3"),
        (NUMA, ("rdma0:1 rdma2:1",), NO_NIC),
        (NODE, ("rdma0:1 rdma2:1",), "rdma1 rdma3"),
    ],
)
def test_topology_scopes_of_nics(scope: TopologyScope, pods: tuple[str, ...], expected: str) -> None:
    """Scopes hold for every type, not for GPUs alone."""
    assert choose(request({"rdma": 200}, hinted("rdma", scope=scope)), inventory(), *pods) == expected


def test_a_scope_needs_the_topology_of_every_gpu() -> None:
    """A GPU without topology leaves the machine without a tree."""
    pod = request({"gpu": 100}, hinted("gpu", scope=PCIE))
    assert choose(pod, inventory("0a ?")) == "node(s) missing GPU Device Topology Tree"


H100 = {"node.koordinator.sh/gpu-model": "NVIDIA-H100-80GB-HBM3"}
HONOR = {"node.koordinator.sh/gpu-partition-policy": "Honor"}
RESTRICTED = DeviceSpec(partition=PartitionSpec(PartitionPolicy.RESTRICTED))
BEST_EFFORT = DeviceSpec(partition=PartitionSpec())


@each_row(
    ("labels", "spec", "amounts", "pods", "expected"),
    [
        (H100, BEST_EFFORT, {"gpu": 100}, (), "gpu0"),
        (H100, BEST_EFFORT, {"gpu": 200}, (), "gpu0 gpu1"),
        (H100, BEST_EFFORT, {"gpu": 400}, (), "gpu0 gpu1 gpu2 gpu3"),
        (H100, BEST_EFFORT, {"gpu": 800}, (), "gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7"),
        (H100, BEST_EFFORT, {"gpu": 300}, (), "node(s) Unsupported number of GPU requests"),
        # What stays possible decides: the half and the pair in use are taken from first.
        (H100, BEST_EFFORT, {"gpu": 100}, ("gpu5",), "gpu4"),
        (H100, BEST_EFFORT, {"gpu": 200}, ("gpu5",), "gpu6 gpu7"),
        (H100, BEST_EFFORT, {"gpu": 400}, ("gpu5",), "gpu0 gpu1 gpu2 gpu3"),
        (H100, BEST_EFFORT, {"gpu": 800}, ("gpu5",), NO_GPU),
        (H100, BEST_EFFORT, {"gpu": 400}, ("gpu1", "gpu5"), NO_PART),
        (H100, BEST_EFFORT, {"gpu": 200}, ("gpu0 gpu2 gpu4 gpu6",), NO_PART),
        (H100, DeviceSpec(), {"gpu": 200}, ("gpu0 gpu2 gpu4 gpu6",), "gpu1 gpu3"),
        (H100, DeviceSpec(), {"gpu": 300}, (), "gpu0 gpu1 gpu2"),
        ({**H100, **HONOR}, DeviceSpec(), {"gpu": 200}, ("gpu0 gpu2 gpu4 gpu6",), NO_PART),
        ({**H100, **HONOR}, DeviceSpec(), {"gpu": 300}, (), "node(s) Unsupported number of GPU requests"),
        # A GPU in use in part is in use.
        (H100, BEST_EFFORT, {"gpu": 200}, ("gpu0:10 gpu2:10 gpu4:10",), "gpu6 gpu7"),
        # Partial GPUs need no partition.
        ({**H100, **HONOR}, BEST_EFFORT, {"gpu": 50}, ("gpu3:50",), "gpu3"),
        ({}, BEST_EFFORT, {"gpu": 200}, (), "node(s) missing GPU Partition Table"),
        (HONOR, DeviceSpec(), {"gpu": 200}, (), "node(s) missing GPU Partition Table"),
        ({"node.koordinator.sh/gpu-model": "H20"}, BEST_EFFORT, {"gpu": 200}, (), "gpu0 gpu1"),
        ({"node.koordinator.sh/gpu-model": "H800"}, BEST_EFFORT, {"gpu": 200}, (), "gpu0 gpu1"),
        (
            {"node.koordinator.sh/gpu-model": "A100"},
            BEST_EFFORT,
            {"gpu": 200},
            (),
            "node(s) missing GPU Partition Table",
        ),
    ],
)
def test_built_in_partitions(
    labels: dict[str, str], spec: DeviceSpec, amounts: dict[str, int], pods: tuple[str, ...], expected: str
) -> None:
    """The table of Hopper machines with eight GPUs."""
    assert choose(request(amounts, spec), inventory(), *pods, labels=labels) == expected


def test_the_built_in_table_is_for_eight_gpus() -> None:
    """A Hopper machine with four GPUs has another table."""
    pod = request({"gpu": 200}, BEST_EFFORT)
    assert choose(pod, inventory("0a 0a 1b 1b"), labels=H100) == "node(s) missing GPU Partition Table"


G = 1 << 30
TABLE = (
    (1, tuple(Partition((minor,)) for minor in range(4))),
    (
        2,
        (
            Partition((0, 1), 1, 100 * G),
            Partition((0, 2), 3, 400 * G),
            Partition((1, 3), 3, 200 * G),
            Partition((2, 3), 2),
        ),
    ),
    (4, (Partition((0, 1, 2, 3), 1, 400 * G),)),
)


def wants(policy: PartitionPolicy, bandwidth: int | None = None) -> DeviceSpec:
    """A partition spec."""
    return DeviceSpec(partition=PartitionSpec(policy, bandwidth))


BE, RE = PartitionPolicy.BEST_EFFORT, PartitionPolicy.RESTRICTED


@each_row(
    ("spec", "pods", "expected"),
    [
        # The highest allocation score first; of equal ones the bin-pack, then the lowest minors.
        (wants(BE), (), "gpu0 gpu2"),
        (wants(RE), (), "gpu0 gpu2"),
        (wants(BE), ("gpu2",), "gpu1 gpu3"),
        (wants(RE), ("gpu2",), "gpu1 gpu3"),
        (wants(BE), ("gpu2 gpu3",), "gpu0 gpu1"),
        (wants(RE), ("gpu2 gpu3",), NO_PART),
        (wants(BE), ("gpu0 gpu1",), "gpu2 gpu3"),
        (wants(RE), ("gpu0 gpu1",), NO_PART),
        (wants(BE, 300 * G), (), "gpu0 gpu2"),
        (wants(BE, 300 * G), ("gpu2",), NO_PART),
        (wants(BE, 100 * G), ("gpu2",), "gpu1 gpu3"),
        (wants(BE, 100 * G), ("gpu2 gpu3",), "gpu0 gpu1"),
        # A partition without a bandwidth satisfies none.
        (wants(BE, 1), ("gpu0 gpu1",), NO_PART),
        (wants(BE, 500 * G), (), NO_PART),
    ],
)
def test_partition_table(spec: DeviceSpec, pods: tuple[str, ...], expected: str) -> None:
    """The table of the Device object."""
    there = inventory("0a 0a 1b 1b", "", partitions=TABLE)
    assert choose(request({"gpu": 200}, spec), there, *pods) == expected


@each_row(
    ("gpus", "spec", "expected"),
    [
        ("0a 0a! 1b 1b", wants(BE), "gpu0 gpu2"),
        ("0a! 0a 1b 1b", wants(BE), "gpu1 gpu3"),
        ("0a! 0a 1b 1b!", wants(BE), NO_PART),
        ("0a 0a 1b", wants(BE), "gpu0 gpu2"),
        # A scope bounds partitions too.
        ("0a 0a 1b 1b", DeviceSpec((("gpu", DeviceHint(scope=PCIE)),), partition=PartitionSpec()), "gpu2 gpu3"),
        ("0a 0a 0b 1b", DeviceSpec((("gpu", DeviceHint(scope=NUMA)),), partition=PartitionSpec()), "gpu0 gpu2"),
    ],
)
def test_partitions_of_changed_machines(gpus: str, spec: DeviceSpec, expected: str) -> None:
    """Partitions with an unhealthy, a missing or a scattered GPU are not used."""
    there = inventory(gpus, "", partitions=TABLE)
    assert choose(request({"gpu": 200}, spec), there) == expected


SAME = DeviceSpec(joint=("gpu", "rdma"), same_pcie=True)
NEAR = DeviceSpec(joint=("gpu", "rdma"))
NICS_FIRST = DeviceSpec(joint=("rdma", "gpu"), same_pcie=True)


@each_row(
    ("spec", "amounts", "pods", "expected"),
    [
        (SAME, {"gpu": 100, "rdma": 1}, (), "gpu0 rdma0"),
        (SAME, {"gpu": 200, "rdma": 1}, (), "gpu0 gpu1 rdma0"),
        # One NIC on each switch of the GPUs, however few are asked for.
        (SAME, {"gpu": 400, "rdma": 1}, (), "gpu0 gpu1 gpu2 gpu3 rdma0 rdma1"),
        (SAME, {"gpu": 800, "rdma": 100}, (), "gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7 rdma0 rdma1 rdma2 rdma3"),
        # More NICs than switches: other switches with as many.
        (SAME, {"gpu": 200, "rdma": 200}, (), "gpu0 gpu2 rdma0 rdma1"),
        (SAME, {"gpu": 100, "rdma": 200}, (), NOT_JOINT),
        # The switch of the preferred GPU has no NIC left: another switch is taken.
        (SAME, {"gpu": 100, "rdma": 100}, ("rdma0",), "gpu2 rdma1"),
        (SAME, {"gpu": 100, "rdma": 100}, ("gpu0", "rdma0"), "gpu2 rdma1"),
        (SAME, {"gpu": 200, "rdma": 100}, ("gpu2 gpu4 gpu6", "rdma0"), "gpu5 gpu7 rdma2 rdma3"),
        (SAME, {"gpu": 200, "rdma": 200}, ("gpu2 gpu4 gpu6 gpu7", "rdma0"), "gpu3 gpu5 rdma1 rdma2"),
        (SAME, {"gpu": 200, "rdma": 100}, ("gpu2 gpu4 gpu5 gpu6 gpu7", "rdma0"), NOT_JOINT),
        (SAME, {"gpu": 100, "rdma": 1}, ("rdma0 rdma1 rdma2 rdma3",), NO_NIC),
        (NEAR, {"gpu": 100, "rdma": 1}, (), "gpu0 rdma0"),
        (NEAR, {"gpu": 400, "rdma": 1}, (), "gpu0 gpu1 gpu2 gpu3 rdma0 rdma1"),
        (NEAR, {"gpu": 100, "rdma": 100}, ("rdma0",), "gpu2 rdma1"),
        (NEAR, {"gpu": 100, "rdma": 200}, (), "gpu0 rdma0 rdma1"),
        # Not on one switch: on the NUMA node of the GPUs, then elsewhere.
        (NEAR, {"gpu": 100, "rdma": 100}, ("gpu0 gpu1 gpu4 gpu5 gpu6 gpu7", "rdma1"), "gpu2 rdma0"),
        (NEAR, {"gpu": 100, "rdma": 100}, ("gpu0 gpu1 gpu4 gpu5 gpu6 gpu7", "rdma0 rdma1"), "gpu2 rdma2"),
        (NICS_FIRST, {"gpu": 100, "rdma": 1}, (), "gpu0 rdma0"),
        (NICS_FIRST, {"gpu": 100, "rdma": 100}, ("gpu0 gpu1",), "gpu2 rdma1"),
        (NICS_FIRST, {"gpu": 200, "rdma": 200}, (), "gpu0 gpu2 rdma0 rdma1"),
        (NICS_FIRST, {"gpu": 100, "rdma": 200}, (), "gpu0 gpu2 rdma0 rdma1"),
        # Joint allocation of a type that is not requested has no effect.
        (SAME, {"gpu": 100}, ("rdma0 rdma1 rdma2 rdma3",), "gpu0"),
    ],
)
def test_joint_allocation(spec: DeviceSpec, amounts: dict[str, int], pods: tuple[str, ...], expected: str) -> None:
    """GPUs and NICs on the same PCIe switches."""
    assert choose(request(amounts, spec), inventory(), *pods) == expected


@each_row(
    ("spec", "there", "amounts", "pods", "expected"),
    [
        # More than two types.
        (
            DeviceSpec(joint=("gpu", "rdma", "fpga"), same_pcie=True),
            inventory(EIGHT, "0a 0b 1c 1d", "0b 1d"),
            {"gpu": 200, "rdma": 1, "fpga": 100},
            (),
            "gpu2 gpu3 rdma1 fpga0",
        ),
        (
            DeviceSpec(joint=("gpu", "rdma", "fpga"), same_pcie=True),
            inventory(EIGHT, "0a 0b 1c 1d", "0b 1d"),
            {"gpu": 200, "rdma": 1, "fpga": 100},
            ("rdma1 fpga1",),
            NOT_JOINT,
        ),
        # Partitions bound the primary type.
        (
            DeviceSpec(joint=("gpu", "rdma"), same_pcie=True, partition=PartitionSpec()),
            inventory("0a 0a 1b 1b", "0a 1b", partitions=TABLE),
            {"gpu": 200, "rdma": 1},
            (),
            "gpu0 gpu2 rdma0 rdma1",
        ),
        (
            DeviceSpec(joint=("gpu", "rdma"), same_pcie=True, partition=PartitionSpec()),
            inventory("0a 0a 1b 1b", "0a 1b", partitions=TABLE),
            {"gpu": 200, "rdma": 1},
            ("rdma1",),
            "gpu0 gpu1 rdma0",
        ),
        # Devices without a known switch are on no common one.
        (SAME, inventory("0 0", "0"), {"gpu": 100, "rdma": 1}, (), NOT_JOINT),
        (NEAR, inventory("0 0", "0"), {"gpu": 100, "rdma": 1}, (), "gpu0 rdma0"),
        (SAME, inventory("-a -b", "-b"), {"gpu": 100, "rdma": 1}, (), "gpu1 rdma0"),
        # The same name of a switch on two NUMA nodes is two switches.
        (SAME, inventory("0a", "1a"), {"gpu": 100, "rdma": 1}, (), NOT_JOINT),
        (
            DeviceSpec((("gpu", DeviceHint(scope=PCIE)),), ("gpu", "rdma"), same_pcie=True),
            inventory("0a 0b 0b", "0a 0b"),
            {"gpu": 200, "rdma": 1},
            (),
            "gpu1 gpu2 rdma1",
        ),
        (
            DeviceSpec((("rdma", DeviceHint(scope=NUMA)),), ("gpu", "rdma"), same_pcie=True),
            inventory("0a 1b", "0a 1b"),
            {"gpu": 200, "rdma": 1},
            (),
            NOT_JOINT,
        ),
    ],
)
def test_joint_allocation_of_other_machines(
    spec: DeviceSpec, there: DeviceInventory, amounts: dict[str, int], pods: tuple[str, ...], expected: str
) -> None:
    """Three types, partitions, unknown switches and scopes."""
    assert choose(request(amounts, spec), there, *pods) == expected


@each_row(
    ("gpus", "numa", "amounts", "pods", "expected"),
    [
        (EIGHT, 0b01, {"gpu": 100}, (), "gpu0"),
        (EIGHT, 0b10, {"gpu": 100}, (), "gpu4"),
        (EIGHT, 0b10, {"gpu": 400}, (), "gpu4 gpu5 gpu6 gpu7"),
        (EIGHT, 0b10, {"gpu": 500}, (), NO_NUMA),
        (EIGHT, 0b11, {"gpu": 500}, (), "gpu0 gpu1 gpu2 gpu3 gpu4"),
        (EIGHT, 0b10, {"gpu": 100, "rdma": 1}, (), "gpu4 rdma2"),
        (EIGHT, 0b10, {"gpu": 100, "rdma": 1}, ("rdma2 rdma3",), NO_NUMA),
        (EIGHT, 0b100, {"gpu": 100}, (), NO_NUMA),
        # A device of no NUMA node is near all; a device without a topology is near none.
        ("-a 0b", 0b10, {"gpu": 100}, (), "gpu0"),
        ("? 1b", 0b01, {"gpu": 100}, (), NO_NUMA),
        ("? 1b", 0b10, {"gpu": 100}, (), "gpu1"),
    ],
)
def test_numa_nodes(gpus: str, numa: int, amounts: dict[str, int], pods: tuple[str, ...], expected: str) -> None:
    """Only devices of the NUMA nodes."""
    assert choose(request(amounts), inventory(gpus), *pods, numa=numa) == expected


NEEDS_MORE = "needs 3 gpu and 4 rdma on the same PCIe switches; the best switch has"
TWO_AND_TWO = "needs 2 gpu and 2 rdma on the same PCIe switches; the best switch has"


@each_row(
    ("spec", "amounts", "pods", "message", "detail", "resolvable"),
    [
        (DeviceSpec(), {"gpu": 400}, ("gpu0 gpu1 gpu2 gpu3 gpu4",), NO_GPU, "needs 4 gpu; 3 of 8 are free", True),
        (DeviceSpec(), {"gpu": 1200}, (), NO_GPU, "needs 12 gpu; 8 of 8 are free", False),
        (
            DeviceSpec(),
            {"gpu": 50},
            ("gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7:60",),
            NO_GPU,
            "needs 1 gpu with 50 gpu-core, 50 gpu-memory-ratio each; 0 of 8 are free",
            True,
        ),
        (DeviceSpec(), {"fpga": 100}, (), "Insufficient fpga devices", "the node has no fpga", False),
        (
            hinted("gpu", scope=PCIE),
            {"gpu": 300},
            (),
            NO_SCOPE,
            "needs 3 gpu on one PCIe switch; the best has 2",
            False,
        ),
        (
            hinted("gpu", scope=NUMA),
            {"gpu": 400},
            ("gpu0", "gpu4 gpu5"),
            NO_SCOPE,
            "needs 4 gpu on one NUMA node; the best has 3",
            True,
        ),
        (
            SAME,
            {"gpu": 200, "rdma": 200},
            ("gpu2 gpu3 gpu4 gpu5 gpu6", "rdma3"),
            NOT_JOINT,
            f"{TWO_AND_TWO} 2 + 1",
            True,
        ),
        (
            hinted("rdma", function_selector=labelled("group", "none")),
            {"rdma": 1},
            (),
            NO_FUNCTION,
            "needs a virtual function of 1 rdma; 0 have a free one",
            True,
        ),
        # No switch of the machine has that many, whatever pods leave.
        (SAME, {"gpu": 300, "rdma": 400}, ("gpu4",), NOT_JOINT, f"{NEEDS_MORE} 2 + 1", False),
        # Too few NICs on the node: the closest switch is named too.
        (
            SAME,
            {"gpu": 200, "rdma": 200},
            ("gpu2 gpu3 gpu4 gpu5 gpu6 gpu7", "rdma1 rdma2 rdma3"),
            NO_NIC,
            f"needs 2 rdma; 1 of 4 are free; {TWO_AND_TWO} 2 + 1",
            True,
        ),
        (
            BEST_EFFORT,
            {"gpu": 300},
            (),
            "node(s) missing GPU Partition Table",
            "neither the Device object nor the GPU model has one",
            False,
        ),
    ],
)
def test_shortages_have_numbers(
    spec: DeviceSpec, amounts: dict[str, int], pods: tuple[str, ...], message: str, detail: str, *, resolvable: bool
) -> None:
    """The rejection names the required number, the largest number on one part of the machine, and whether evictions could help."""
    found = provider(request(amounts, spec), inventory(), *pods).at(0)
    assert isinstance(found, Shortage)
    assert (found.message, found.detail, found.resolvable) == (message, detail, resolvable)


def test_shortages_on_numa_nodes_count_their_devices() -> None:
    """The devices of other NUMA nodes are not in the numbers, and their health is irrelevant."""
    found = provider(request({"gpu": 400}), inventory("0a 0a 0b 0b 1c! 1c 1d 1d"), "gpu0", "gpu5").at(0b01)
    assert isinstance(found, Shortage)
    assert (found.message, found.detail) == (NO_NUMA, "needs 4 gpu; 3 of 4 are free on these NUMA nodes")
