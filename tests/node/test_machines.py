"""The topology that ``node-agent --print`` would publish, on recorded ``/sys`` trees and on trees generated from descriptions."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from koord_numa.cli import main
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.resources import CPU, MEMORY, MILLI
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.machines.description import GIB, Numbering, Shape, load_dump
from koord_numa.sandbox.machines.node_services import write_sysfs
from koord_numa.wire import names, parse_topology
from tests.node.trees import ARCHIVES, DESCRIPTIONS, ROOT, Described, name_of, names_of, unpack

CRDS = sorted((ROOT / "crds").glob("*.yaml"))
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TOPOLOGIES = "noderesourcetopologies.topology.node.k8s.io"
DESCRIBED = {name_of(path): path for path in DESCRIPTIONS}
needs_trees = pytest.mark.skipif(not ARCHIVES, reason="no recorded sysfs trees here")
needs_descriptions = pytest.mark.skipif(not DESCRIPTIONS, reason="no descriptions of machines here")


@pytest.fixture(scope="module")
def server() -> ApiServer:
    """A server with our definitions that is not listening."""
    return ApiServer(crds=CRDS)


def accept(server: ApiServer, obj: dict[str, Any]) -> None:
    """Raises what the definition does not accept."""
    server.store.create(obj)
    server.store.delete(TOPOLOGIES, obj["metadata"]["name"])


def printed(sysfs: Path, *options: str) -> dict[str, Any]:
    """Return the command's output for a tree."""
    result = CliRunner().invoke(main, ["node-agent", "--sysfs", str(sysfs), "--print", "--node-name", "n0", *options])
    assert result.exit_code == 0, result.output
    loaded: dict[str, Any] = yaml.load(result.stdout, Loader=LOADER)  # noqa: S506 - either of the two is safe
    return loaded


def assert_equal(obj: dict[str, Any], described: Described) -> None:
    """The object says of the machine what its description says, to our own reader."""
    topology = parse_topology(obj)
    assert not topology.problem
    machine = topology.machine
    assert machine is not None
    assert topology.owner is CpuOwner.SCHEDULER
    assert [(cpu.id, cpu.core, cpu.socket, cpu.numa) for cpu in machine.cpus] == sorted(described.cpus)
    assert [zone.numa for zone in topology.zones] == described.numa
    assert [zone.capacity.get(MEMORY) for zone in topology.zones] == described.memory
    assert [[machine.distance(a, b) for b in described.numa] for a in described.numa] == described.distances
    for zone in topology.zones:
        here = sum(numa == zone.numa for *_, numa in described.cpus)
        assert zone.allocatable[CPU] == zone.capacity[CPU] == here * MILLI


@needs_trees
@pytest.mark.parametrize("archive", ARCHIVES, ids=names_of(ARCHIVES))
def test_recorded_machines(archive: Path, tmp_path: Path, server: ApiServer) -> None:
    obj = printed(unpack(archive, tmp_path))
    topology = parse_topology(obj)
    assert not topology.problem
    assert topology.machine is not None
    accept(server, obj)
    if path := DESCRIBED.get(name_of(archive)):
        assert_equal(obj, Described.of(path.read_bytes()))


@needs_descriptions
@pytest.mark.parametrize("path", DESCRIPTIONS, ids=names_of(DESCRIPTIONS))
def test_generated_machines(path: Path, tmp_path: Path, server: ApiServer) -> None:
    """Cores may be numbered otherwise than in the description; which CPUs share one may not."""
    hardware = load_dump(path)
    obj = printed(write_sysfs(tmp_path, hardware))
    accept(server, obj)
    topology = parse_topology(obj)
    assert topology.machine is not None
    machine, made = topology.machine, hardware.machine
    assert machine.core_bits == made.core_bits
    assert machine.numa_bits == made.numa_bits
    assert machine.socket_bits == made.socket_bits
    assert machine.distances == made.distances
    assert {zone.numa: zone.capacity[MEMORY] for zone in topology.zones} == dict(hardware.memory)


def test_a_shape_with_pages_and_devices(tmp_path: Path) -> None:
    shape = Shape(
        sockets=2,
        numa=2,
        cores=4,
        numbering=Numbering.ADJACENT,
        memory=8 * GIB,
        pages={"2Mi": 512, "1Gi": 1},
        devices={"nvidia.com/gpu": (0, 3), "vendor.example/nic": (None,)},
    )
    obj = printed(write_sysfs(tmp_path, shape.build()))
    rows = {row["name"]: row for row in obj["zones"][0]["resources"]}
    assert rows["hugepages-2Mi"]["capacity"] == "1Gi"
    assert rows["hugepages-1Gi"]["capacity"] == "1Gi"
    # What huge pages take is no memory to allocate, as koordlet and the kubelet count.
    assert (rows["memory"]["capacity"], rows["memory"]["allocatable"]) == ("8Gi", "6Gi")
    devices = yaml.safe_load(obj["metadata"]["annotations"][names.PCI_DEVICES])
    assert [(device["class"], device.get("node"), device["root"]) for device in devices] == [
        ("0302", 0, "pci0000:00"),
        ("0200", None, "pci0000:00"),
        ("0302", 3, "pci0003:00"),
    ]


def test_a_static_kubelet_owns_the_cpus(tmp_path: Path) -> None:
    config = tmp_path / "kubelet.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "kind": "KubeletConfiguration",
                "cpuManagerPolicy": "static",
                "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
                "memoryManagerPolicy": "Static",
                "topologyManagerPolicy": "single-numa-node",
                "topologyManagerScope": "pod",
                "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
                "reservedSystemCPUs": "0,8",
                "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
            }
        )
    )
    obj = printed(write_sysfs(tmp_path, Shape().build()), "--kubelet-config", str(config))
    topology = parse_topology(obj)
    assert not topology.problem
    assert topology.owner is CpuOwner.KUBELET
    kubelet = topology.kubelet
    assert (kubelet.cpu_policy, kubelet.memory_policy, str(kubelet.reserved_cpus)) == ("static", "Static", "0,8")
    assert kubelet.cpu_options == {"full-pcpus-only": True}
    assert kubelet.topology_options == {"prefer-closest-numa-nodes": True}
    assert obj["topologyPolicies"] == ["SingleNUMANodePodLevel"]
    assert obj["zones"][0]["attributes"] == [{"name": "reservedMemory", "value": str(GIB)}]
    # What a kubelet without pods can allocate
    assert [(zone.allocatable[CPU], zone.allocatable[MEMORY]) for zone in topology.zones] == [
        (15 * MILLI, 63 * GIB),
        (15 * MILLI, 64 * GIB),
    ]


@pytest.mark.parametrize(
    ("config", "reserved"),
    [
        pytest.param({"reservedSystemCPUs": "0-1", "kubeReserved": {"cpu": "8"}}, "0-1", id="listed"),
        pytest.param({"kubeReserved": {"cpu": "1500m"}, "systemReserved": {"cpu": "1200m"}}, "0-1,16", id="amounts"),
        pytest.param({}, "", id="none"),
    ],
)
def test_what_a_static_kubelet_can_allocate(tmp_path: Path, config: dict[str, Any], reserved: str) -> None:
    """A kubelet that is given amounts takes whole cores from the lowest NUMA node first."""
    file = tmp_path / "kubelet.yaml"
    file.write_text(yaml.safe_dump({"cpuManagerPolicy": "static", **config}))
    topology = parse_topology(printed(write_sysfs(tmp_path, Shape().build()), "--kubelet-config", str(file)))
    taken = CpuSet.parse(reserved)
    assert str(topology.kubelet.reserved_cpus) == reserved
    assert [zone.allocatable[CPU] for zone in topology.zones] == [
        len(CpuSet.parse(cpus) - taken) * MILLI for cpus in ("0-7,16-23", "8-15,24-31")
    ]
    assert [zone.available for zone in topology.zones] == [zone.allocatable for zone in topology.zones]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a list", "not a KubeletConfiguration"),
        ("{reservedSystemCPUs: 1-}", "reservedSystemCPUs"),
        ("{reservedMemory: [{numaNode: x}]}", "reservedMemory"),
        ("{cpuManagerPolicy: [static]}", "cpuManagerPolicy"),
        ("{kubeReserved: {cpu: much}}", "kubeReserved"),
        ("{cpuManagerPolicy: static, kubeReserved: {cpu: 40}}", "reserve 40 of 32 CPUs"),
        ("{", "cannot be read"),
    ],
)
def test_a_malformed_kubelet_configuration(tmp_path: Path, text: str, complaint: str) -> None:
    config = tmp_path / "kubelet.yaml"
    config.write_text(text)
    sysfs = write_sysfs(tmp_path, Shape().build())
    options = ["node-agent", "--sysfs", str(sysfs), "--print", "--kubelet-config", str(config)]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 1
    assert complaint in result.output


@pytest.mark.parametrize(
    "config", ["{}", "{cpuManagerPolicy: static, reservedSystemCPUs: '0,16'}"], ids=["own", "static"]
)
def test_a_pod_is_simulated_on_the_printed_machine(tmp_path: Path, config: str) -> None:
    """Without the Node object, the node is assumed to be empty."""
    files = {name: tmp_path / f"{name}.yaml" for name in ("kubelet", "topology", "pod")}
    files["kubelet"].write_text(config)
    sysfs = write_sysfs(tmp_path, Shape().build())
    options = [
        "node-agent",
        "--sysfs",
        str(sysfs),
        "--print",
        "--node-name",
        "n0",
        "--kubelet-config",
        str(files["kubelet"]),
    ]
    files["topology"].write_text(CliRunner().invoke(main, options).stdout)
    amounts = {"cpu": "8", "memory": "1Gi"}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"schedulerName": "koord-numa", "containers": [container]},
    }
    files["pod"].write_text(yaml.safe_dump(pod))
    result = CliRunner().invoke(main, ["simulate", "-f", str(files["pod"]), "--from", str(files["topology"])])
    assert result.exit_code == 0, result.output
    assert "1 of 1 pods would be placed." in result.output


def test_no_machine_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["node-agent", "--sysfs", str(tmp_path), "--print"])
    assert result.exit_code == 1
    assert "describes no CPU" in result.output
