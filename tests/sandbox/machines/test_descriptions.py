"""Machines from numbers, from short texts, and from files that list every CPU."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import koord_numa.sandbox
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.constraints import TaintEffect
from koord_numa.core.objects.node import KubeletConfig, Taint
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.apiserver import DirectStore
from koord_numa.sandbox.machines.description import (
    GIB,
    STATIC_KUBELET,
    NodeDescription,
    Numbering,
    Shape,
    SimulatedDevice,
    Style,
    load_descriptions,
    node_name,
    read_descriptions,
    read_dump,
)
from koord_numa.wire import names, parse_node, parse_topology
from tests.sandbox.machines.conftest import MakeRack
from tests.sandbox.machines.pods import bind, create
from tests.tables import each_row

TOPOLOGIES = "noderesourcetopologies.topology.node.k8s.io"
DATA = Path(koord_numa.sandbox.__file__).parent / "data"
ROOT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("KOORD_NUMA_SHARED", ROOT.parent / "shared")) / "topologies"
DUMPS = sorted(SHARED.glob("*.json"))


def siblings(machine: CpuTopology) -> list[str]:
    """The CPUs of every core."""
    return [str(CpuSet(core.bits)) for core in machine.cores]


def test_a_shape() -> None:
    hardware = Shape(
        sockets=2, numa=2, cores=2, threads=2, memory=8 * GIB, pages={"1Gi": 2}, devices={"a.b/gpu": (3, None, 0)}
    ).build()
    machine = hardware.machine
    assert siblings(machine) == ["0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"]
    assert [str(CpuSet(bits)) for bits in machine.numa_bits.values()] == [
        "0-1,8-9",
        "2-3,10-11",
        "4-5,12-13",
        "6-7,14-15",
    ]
    assert [str(CpuSet(bits)) for bits in machine.socket_bits.values()] == ["0-3,8-11", "4-7,12-15"]
    assert [machine.distance(0, numa) for numa in range(4)] == [10, 12, 32, 32]
    assert (hardware.hugepage_bytes(1), hardware.plain_memory(1)) == ({"hugepages-1Gi": 2 * GIB}, 6 * GIB)
    assert hardware.devices == (
        SimulatedDevice("a.b/gpu", "gpu-0", 3),
        SimulatedDevice("a.b/gpu", "gpu-1", None),
        SimulatedDevice("a.b/gpu", "gpu-2", 0),
    )
    assert (hardware.devices_on(0), hardware.devices_on(1), hardware.device_counts()) == (
        {"a.b/gpu": 1},
        {},
        {"a.b/gpu": 3},
    )


def test_neighbouring_threads() -> None:
    assert siblings(Shape(1, 1, 2, 4, numbering=Numbering.ADJACENT).build().machine) == ["0-3", "4-7"]


def test_what_a_node_offers() -> None:
    shape = Shape(2, 1, 2, 2, 8 * GIB, pages={"2Mi": 512}, devices={"a.b/gpu": (0,)})
    ours = NodeDescription("n", shape.build(), reserved=CpuSet.parse("0-1"), amplification={"cpu": 1.5})
    assert ours.allocatable == {
        "cpu": 12000,
        "memory": 14 * GIB,
        "ephemeral-storage": 200 * GIB,
        "pods": 110,
        "hugepages-2Mi": 2 * GIB,
        "a.b/gpu": 1,
    }
    theirs = NodeDescription(
        "n", shape.build(), Style.KUBELET, STATIC_KUBELET, reserved=CpuSet.parse("0"), reserved_memory=GIB
    )
    assert (theirs.allocatable["cpu"], theirs.allocatable["memory"]) == (7000, 12 * GIB)


def test_reservations_beyond_the_capacity_are_refused() -> None:
    with pytest.raises(ValueError, match="node n reserves CPUs 0-99 that the machine does not have"):
        NodeDescription("n", Shape().build(), reserved=CpuSet.parse("0-99"))


ENTRY: dict[str, Any] = {
    "name": "worker",
    "count": 2,
    "style": "kubelet",
    "sockets": 1,
    "numa": 2,
    "cores": 4,
    "threads": 1,
    "memory": "32Gi",
    "hugepages": {"1Gi": 4},
    "devices": {"nvidia.com/gpu": [0, 1, None]},
    "reservedCPUs": "0,4",
    "reservedMemory": "1Gi",
    "numaPolicy": "Restricted",
    "labels": {"zone": "a"},
    "taints": [{"key": "numa"}],
    "pods": 20,
    "hidden": True,
    "kubelet": {"topologyPolicy": "restricted", "topologyScope": "pod", "cpuOptions": {"full-pcpus-only": True}},
}


def test_a_short_text(tmp_path: Path) -> None:
    path = tmp_path / "rack.yaml"
    path.write_text(yaml.safe_dump({"machines": [ENTRY]}))
    first, second = load_descriptions(path)
    assert first == NodeDescription(
        name="worker-0",
        hardware=Shape(1, 2, 4, 1, 32 * GIB, pages={"1Gi": 4}, devices={"nvidia.com/gpu": (0, 1, None)}).build(),
        style=Style.KUBELET,
        kubelet=KubeletConfig(
            topology_policy=KubeletPolicy.RESTRICTED,
            topology_scope=KubeletScope.POD,
            cpu_policy="static",
            cpu_options={"full-pcpus-only": True},
            memory_policy="Static",
            reserved_cpus=CpuSet.parse("0,4"),
        ),
        labels={"zone": "a", names.NODE_NUMA_POLICY: "Restricted"},
        taints=(Taint("numa", TaintEffect.NO_SCHEDULE),),
        reserved=CpuSet.parse("0,4"),
        reserved_memory=GIB,
        pods=20,
        hidden=True,
    )
    assert second.name == "worker-1"


WRONG: dict[str, tuple[Any, str]] = {
    "no list": ({}, "machines: is missing"),
    "nothing": (None, "null is not an object"),
    "typo": ({"machines": [{"name": "a", "socket": 2}]}, "machines[0].socket: is unknown"),
    "name": ({"machines": [{"name": "A b"}]}, 'machines[0].name: "A b" does not match ^[a-z0-9]'),
    "sockets": ({"machines": [{"name": "a", "sockets": 0}]}, "machines[0].sockets: 0 is below 1, the least that is"),
    "style": ({"machines": [{"name": "a", "style": "x"}]}, 'machines[0].style: "x" is none of koordinator, kubelet'),
    "labels": ({"machines": [{"name": "a", "labels": {"Zone": 1}}]}, "machines[0].labels.Zone: 1 is not a text"),
    "amount": ({"machines": [{"name": "a", "memory": []}]}, "machines[0].memory: a list of 0 is neither a text nor a"),
    "memory": ({"machines": [{"name": "a", "memory": "much"}]}, "machines[0] (a): memory: 'much' is not a quantity"),
    "debt": ({"machines": [{"name": "a", "memory": "-5Gi"}]}, "machines[0] (a): memory: -5Gi is negative"),
    "CPUs": ({"machines": [{"name": "a", "reservedCPUs": "x"}]}, "machines[0] (a): 'x' is neither a CPU id nor a"),
    "pages": ({"machines": [{"name": "a", "hugepages": {"3Mi": 1}}]}, "huge pages of size 3Mi cannot be"),
    "all pages": ({"machines": [{"name": "a", "hugepages": {"1Gi": 65}}]}, "they take more than the 64Gi of memory"),
    "reserve": ({"machines": [{"name": "a", "reservedMemory": "1Ti"}]}, "reservedMemory: 1Ti is more than a NUMA node"),
    "device": ({"machines": [{"name": "a", "devices": {"x.io/g": [9]}}]}, "a device on NUMA node 9 cannot be"),
    "resource": ({"machines": [{"name": "a", "devices": {"cpu": [0]}}]}, '"cpu" is not a resource of devices'),
    "ratio": ({"machines": [{"name": "a", "amplification": {"cpu": float("inf")}}]}, "inf is not a finite number"),
    "cost": ({"machines": [{"name": "a", "costs": [10, 12, 300]}]}, "costs[2]: 300 is above 255, the most that is"),
    "nodes": ({"machines": [{"name": "a", "count": 10**8}]}, "machines[0].count: 100000000 is above 50000"),
    "size": (
        {"machines": [{"name": "a", "sockets": 10**9}]},
        "1000000000 NUMA nodes and 16000000000 CPUs are too many",
    ),
    "file": ({"machines": [{"name": "a", "file": "none.json"}]}, "none.json cannot be read: No such file"),
    "policy": (
        {"machines": [{"name": "a", "kubelet": {"cpuPolicy": "dynamic"}}]},
        'machines[0].kubelet.cpuPolicy: "dynamic" does not match ^(none|static)$',
    ),
}


@pytest.mark.parametrize(("found", "message"), WRONG.values(), ids=WRONG.keys())
def test_mistakes_are_named(found: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^rack: ") as raised:
        read_descriptions(found, tmp_path, "rack")
    assert message in str(raised.value)


def test_files_that_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("{")
    (tmp_path / "deep.yaml").write_text("[\n" * 3000)
    (tmp_path / "cpus.json").write_text('{"cpus": [[0, 0, 0]]}')
    with pytest.raises(ValueError, match=r"deep.yaml is nested too deeply"):
        load_descriptions(tmp_path / "deep.yaml")
    with pytest.raises(ValueError, match=r"broken.yaml is neither YAML nor JSON"):
        load_descriptions(tmp_path / "broken.yaml")
    with pytest.raises(ValueError, match=r"cpus.json describes no machine: name: is missing"):
        load_descriptions(tmp_path / "cpus.json")


@pytest.mark.parametrize(
    ("text", "name"), [("40intel64-2g2n4c+pci", "40intel64-2g2n4c-pci"), ("A b", "a-b"), ("++", "node")]
)
def test_names_of_nodes(text: str, name: str) -> None:
    assert node_name(text) == name


DUMP = {
    "name": "odd",
    "columns": ["cpu", "core", "socket", "numa_node"],
    "cpus": [[0, 0, -1, 0], [2, 1, -1, 4]],
    "numa_nodes": [0, 1, 4],
    "distances": [[10, 20, 40], [20, 10, 40], [40, 40, 10]],
    "memory_bytes": [GIB, None, GIB],
    "pci": [["0000:02:00.0", "0x030200", 4], ["0000:01:00.0", "0x020000", -1], ["0000:00:00.0", "0x030000", 0]],
}


def test_a_file_that_lists_every_cpu() -> None:
    hardware = read_dump(json.dumps(DUMP).encode(), "odd.json")
    assert [(cpu.id, cpu.core, cpu.socket, cpu.numa) for cpu in hardware.machine.cpus] == [(0, 0, 0, 0), (2, 1, 0, 4)]
    assert (hardware.machine.numa_ids, hardware.machine.distance(4, 1)) == ((0, 1, 4), 40)
    assert hardware.memory == {0: GIB, 1: 0, 4: GIB}
    assert hardware.devices == (
        SimulatedDevice("vendor.example/nic", "0000:01:00.0", None),
        SimulatedDevice("nvidia.com/gpu", "0000:02:00.0", 4),
    )


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"cpus": []}, "cpus: no CPU is listed"),
    "twice": ({"cpus": [[0, 0, 0, 0], [0, 1, 0, 0]]}, "a CPU id is listed twice"),
    "negative": ({"cpus": [[-1, 0, 0, 0]]}, "cpus: -1 is not an id of a CPU, which are 0 to 4096"),
    "large": ({"cpus": [[10**11, 0, 0, 0]]}, "cpus: 100000000000 is not an id of a CPU"),
    "far": ({"cpus": [[0, 0, 0, 5000]]}, "NUMA ids must be 0 to 1023"),
    "memory": ({"memory_bytes": [GIB]}, "memory_bytes: 1 amounts for 3 numa_nodes"),
    "row": ({"cpus": [[0, "x", 0, 0]]}, 'cpus[0][1]: "x" is not a whole number'),
}


@each_row(("changes", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_a_file_of_an_impossible_machine(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^odd.json describes no machine: ") as raised:
        read_dump(json.dumps(DUMP | changes).encode(), "odd.json")
    assert message in str(raised.value)


def every_way(path: Path) -> Iterator[NodeDescription]:
    """A file as nodes of both styles."""
    for node in load_descriptions(path):
        yield node
        yield NodeDescription(f"{node.name}-kubelet", node.hardware, Style.KUBELET, STATIC_KUBELET)


def two_free(node: NodeDescription) -> str:
    """Two CPUs of whole cores, as far as cores are that small."""
    cores = [core.bits for core in node.hardware.machine.cores if not core.bits & node.reserved.bits]
    cpus = [cpu for bits in cores[:2] for cpu in CpuSet(bits)]
    return str(CpuSet.of(cpus[:2]))


def check_rack(store: DirectStore, rack_of: MakeRack, nodes: list[NodeDescription]) -> None:
    """All load, publish what we read again as the same machine, and take pods."""
    rack = rack_of(nodes)
    for description in nodes:
        node = parse_node(store.get("nodes", description.name))
        topology = parse_topology(store.get(TOPOLOGIES, description.name))
        assert (node.problem, topology.problem) == ("", "")
        assert node.allocatable == description.allocatable
        assert topology.distances == description.hardware.machine.distances
        assert [zone.numa for zone in topology.zones] == [*description.hardware.machine.numa_ids]
        pod = create(store, f"p-{description.name}", {"cpu": "2", "memory": "64Mi"})
        ours = description.style is Style.KOORDINATOR
        assert topology.owner is (CpuOwner.SCHEDULER if ours else CpuOwner.KUBELET)
        assert topology.machine == (description.hardware.machine if ours else None)
        bind(store, pod, description.name, {"cpuset": two_free(description)} if ours else None)
    assert (rack.refusals, rack.double_holds()) == ([], [])
    assert len(rack.history.holders()) == len(nodes)
    assert rack.publish() == len(nodes)


def test_the_demos_rack(store: DirectStore, rack_of: MakeRack) -> None:
    nodes = load_descriptions(DATA / "demo.yaml")
    assert [node.name for node in nodes] == [
        *("xeon-0", "xeon-1", "xeon-2", "xeon-kubelet-0", "xeon-kubelet-1", "dgx", "kunpeng-0", "kunpeng-1", "claimed")
    ]
    assert [len(node.hardware.machine.cpus) for node in nodes] == [96, 96, 96, 96, 96, 256, 128, 128, 128]
    pinning = [replace(node, agent=False) for node in nodes if node.name != "claimed"]  # no agent runs here
    check_rack(store, rack_of, pinning)


@pytest.mark.skipif(not DUMPS, reason="the files of real machines are not beside the repository")
def test_every_real_machine(store: DirectStore, rack_of: MakeRack) -> None:
    nodes = [node for path in DUMPS for node in every_way(path)]
    assert len(nodes) >= 40
    check_rack(store, rack_of, nodes)


CXL: dict[str, Any] = {
    "name": "cxl",
    "threads": 2,
    "numaNodes": [
        {"id": 0, "socket": 0, "cpus": "0,2,4,6", "memory": "64Gi", "hugepages": {"1Gi": 4}},
        {"id": 1, "socket": 1, "cpus": "1,3", "memory": "32Gi"},
        {"id": 4, "socket": 1, "memory": "256Gi"},
    ],
    "devices": {"a.b/nic": [1, 1]},
}


def test_numa_nodes_that_differ(tmp_path: Path) -> None:
    """Interleaved ids, memory without CPUs, huge pages and devices on one NUMA node."""
    (node,) = read_descriptions({"machines": [CXL]}, tmp_path)
    hardware, machine = node.hardware, node.hardware.machine
    assert siblings(machine) == ["0,4", "1,3", "2,6"]
    assert {numa: str(CpuSet(bits)) for numa, bits in machine.numa_bits.items()} == {0: "0,2,4,6", 1: "1,3", 4: ""}
    assert [machine.distance(1, numa) for numa in (0, 1, 4)] == [32, 10, 12]
    assert [hardware.plain_memory(numa) // GIB for numa in (0, 1, 4)] == [60, 32, 256]
    assert [hardware.devices_on(numa) for numa in (0, 1, 4)] == [{}, {"a.b/nic": 2}, {}]
    assert node.capacity["hugepages-1Gi"] == 4 * GIB


def test_distances_follow_the_order_of_the_numa_nodes(tmp_path: Path) -> None:
    there = CXL | {"numaNodes": CXL["numaNodes"][::-1], "distances": [[10, 17, 31], [17, 10, 21], [31, 21, 10]]}
    (node,) = read_descriptions({"machines": [there]}, tmp_path)
    assert [node.hardware.machine.distance(4, numa) for numa in (0, 1, 4)] == [31, 17, 10]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param({"cores": 4}, "cores: the machine is described by its numaNodes", id="two-descriptions"),
        pytest.param({"threads": 4}, "NUMA node 1 has 2 CPUs, no multiple of 4 threads", id="threads"),
        pytest.param({"devices": {"a.b/nic": [2]}}, "a device on NUMA node 2 cannot be", id="device"),
        pytest.param({"distances": [[10]]}, "3 rows of 3 are needed", id="distances"),
        pytest.param({"numaNodes": [{"id": 0, "cpus": "0-1"}] * 2}, "ids must be distinct", id="ids"),
        pytest.param(
            {"numaNodes": [{"id": 0, "cpus": "0-1", "memory": "1Gi", "hugepages": {"1Gi": 2}}], "devices": {}},
            "more than the memory of NUMA node 0",
            id="huge-pages",
        ),
    ],
)
def test_numa_nodes_that_cannot_be(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_descriptions({"machines": [CXL | change]}, tmp_path)
