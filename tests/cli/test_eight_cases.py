"""
A user with a pending pod: ``explain`` names the cause, and a size or an action that works.

Each case is prepared on a small cluster; what the text proposes is then done, and the pod fits. ``docs/troubleshooting.md`` shows them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from koord_numa.cli.demo.sandbox_cluster import SandboxCluster
from tests.cli.kinds import claim, using, volume
from tests.cli.small import ask, pod, small_cluster

Object = dict[str, Any]
Change = Callable[[SandboxCluster], None]

TOPOLOGIES: Final = "noderesourcetopologies.topology.node.k8s.io"
NUMA_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"
STATUS: Final = "scheduling.koordinator.sh/resource-status"
ON_THEIRS: Final = {"kubernetes.io/hostname": "theirs"}


def nothing(_: SandboxCluster) -> None:
    """Change nothing."""


def sized(cpu: int, **options: Any) -> Change:
    """The pod is created again with another size or policy."""
    return lambda cluster: replaced(cluster, pod("p", cpu, **options))


def replaced(cluster: SandboxCluster, wanted: Object) -> None:
    cluster.server.store.delete("pods", "p", "default")
    cluster.server.store.create(wanted)


def holding(name: str, cpus: str, count: int, *, spans: bool = False) -> Object:
    """A running pod that holds these CPUs of the node ``own``."""
    obj = pod(name, count, node="own")
    numa = "" if spans else f',"numaNodeResources":[{{"node":0,"resources":{{"cpu":"{count}","memory":"1Gi"}}}}]'
    obj["metadata"]["annotations"][STATUS] = f'{{"cpuset":"{cpus}"{numa}}}'
    return obj


def tainted(cluster: SandboxCluster) -> None:
    taint = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
    for name in ("own", "theirs"):
        cluster.server.store.patch("nodes", name, {"spec": {"taints": [taint]}})


def tolerated(cluster: SandboxCluster) -> None:
    wanted = pod("p", 4, numa="SingleNUMANode")
    wanted["spec"]["tolerations"] = [{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]
    replaced(cluster, wanted)


def publish(free: str, **attributes: str) -> Change:
    """The topology of the kubelet's node, with so many CPUs available on each NUMA node."""

    def change(cluster: SandboxCluster) -> None:
        topology = cluster.server.store.get(TOPOLOGIES, "theirs")
        for zone in topology["zones"]:
            for resource in zone["resources"]:
                if resource["name"] == "cpu":
                    resource["available"] = free
        extra = [{"name": name, "value": value} for name, value in attributes.items()]
        body = {"zones": topology["zones"], "attributes": [*topology["attributes"], *extra]}
        cluster.server.store.patch(TOPOLOGIES, "theirs", body)

    return change


def repacked(cluster: SandboxCluster) -> None:
    """Return the result of the rebind: each pod on one NUMA node."""
    for name, cpus in (("a", "0-1,8-9"), ("b", "2-3,10-11")):
        patch = {"metadata": {"annotations": {STATUS: f'{{"cpuset":"{cpus}"}}'}}}
        cluster.server.store.patch("pods", name, patch, "default")


def labelled(cluster: SandboxCluster) -> None:
    labels = {"node.koordinator.sh/numa-topology-policy": "Restricted"}
    cluster.server.store.patch("nodes", "own", {"metadata": {"labels": labels}})


def with_claim(cluster: SandboxCluster) -> None:
    cluster.server.store.create(volume("disk", "data", "own"))
    cluster.server.store.create(claim("data", "disk"))


def exclusive(mode: str = "Required") -> Object:
    """A pod over both NUMA nodes that shares none of them with pods on a single one."""
    wanted = pod("p", 10, kind="own")
    spec = f'{{"numaTopologyPolicy":"Restricted","singleNUMANodeExclusive":"{mode}"}}'
    wanted["metadata"]["annotations"][NUMA_SPEC] = spec
    return wanted


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster, a pod that waits, what people must read, and the action that the text proposes."""

    wanted: Object
    cause: str
    proposal: str
    action: Change
    others: tuple[Object, ...] = ()
    prepare: Change = nothing

    @property
    def page_cause(self) -> str:
        """The cause as the page has it: free amounts by NUMA node in a table, equal NUMA nodes in one row."""
        found = re.match(r"NUMA 0 has (\d+ of \d+) CPUs free, NUMA 1 has (\d+ of \d+)", self.cause)
        if found is None:
            return self.cause
        return f"NUMA 0{', 1' if found[1] == found[2] else ''} cpu {found[1]} CPUs"


CASES: Final = {
    "not enough aligned CPUs": Case(
        pod("p", 10, numa="SingleNUMANode", kind="own"),
        "NUMA 0 has 4 of 8 CPUs free, NUMA 1 has 8 of 8; needs 10 CPUs, 1Gi memory in one NUMA node",
        "container c with 8 CPUs instead of 10 fits on own, NUMA 1",
        sized(8, numa="SingleNUMANode", kind="own"),
        (pod("runs", 4, node="own", cpus="0-1,8-9", numa="SingleNUMANode"),),
    ),
    "policy mismatch": Case(
        pod("p", 4, numa="SingleNUMANode", kind="own"),
        "the pod wants SingleNUMANode, the node has Restricted",
        "with numaTopologyPolicy Restricted instead of SingleNUMANode it fits on own, NUMA 0",
        sized(4, numa="Restricted", kind="own"),
        prepare=labelled,
    ),
    "fragmented node": Case(
        pod("p", 8, numa="SingleNUMANode", kind="own"),
        "NUMA 0 has 4 of 8 CPUs free, NUMA 1 has 4 of 8",
        "after `koord-numa rebind own` (2 pods move) it fits on own, NUMA 1",
        repacked,
        (holding("a", "0,4,8,12", 4, spans=True), holding("b", "1,5,9,13", 4, spans=True)),
    ),
    "stale topology": Case(
        pod("p", 4, **ON_THEIRS),
        "NUMA 0 has 2 of 8 CPUs free, NUMA 1 has 2 of 8",
        "the topology of theirs shows 12 CPUs in use, but its pods request 0: its node agent lags behind or has stopped",
        publish("8"),
        prepare=publish("2"),
    ),
    "taint": Case(
        pod("p", 4, numa="SingleNUMANode"),
        "had untolerated taint {dedicated: db}",
        "tolerating dedicated=db:NoSchedule it fits on own, NUMA 0",
        tolerated,
        prepare=tainted,
    ),
    "kubelet-owned odd count": Case(
        pod("p", 3, **ON_THEIRS),
        "3 CPUs are not a multiple of 2; full-pcpus-only is on",
        "container c with 4 CPUs instead of 3 fits on theirs, NUMA 0 (whole cores)",
        sized(4, **ON_THEIRS),
        prepare=publish("8", cpuManagerPolicy="static", cpuManagerOptionFullPcpusOnly="true"),
    ),
    "volume": Case(
        using(pod("p", 2), "data"),
        'persistentvolumeclaim "data" not found',
        'repair the pod\'s volumes: persistentvolumeclaim "data" not found',
        with_claim,
    ),
    "exclusive neighbour": Case(
        exclusive(),
        "NUMA nodes are kept by pods of the other kind (singleNUMANodeExclusive)",
        "with singleNUMANodeExclusive Preferred it fits on own, NUMA 0,1",
        lambda cluster: replaced(cluster, exclusive("Preferred")),
        (pod("solo", 2, node="own", cpus="0-1", numa="SingleNUMANode"),),
    ),
}


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("case", [pytest.param(case, id=name.replace(" ", "-")) for name, case in CASES.items()])
async def test_the_cause_and_what_works(case: Case, tmp_path: Path) -> None:
    async with small_cluster(tmp_path, *case.others, case.wanted) as cluster:
        case.prepare(cluster)
        before = one_line((await ask(cluster, "explain", "p")).output)
        case.action(cluster)
        after = one_line((await ask(cluster, "explain", "p")).output)
    assert case.cause in before
    assert f"- {case.proposal}" in before
    assert "would go to" in after


def test_the_document_has_every_case() -> None:
    text = one_line((Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text())
    text = text.replace(" > ", " ")  # quotations of more than one line
    assert [name for name, case in CASES.items() if case.proposal not in text or case.cause not in text] == []
