"""The annotation that koord-numa writes on pods: the bytes that Koordinator's agent reads, and back."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Assignment, SharedPool
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import CpuBindPolicy
from koord_numa.wire import parse_pod
from koord_numa.wire.pod_annotations import resource_status, status_text
from tests.tables import each_row
from tests.wire.objects import POD, annotated, changed

GIB = 2**30
SPEC = "scheduling.koordinator.sh/resource-spec"
STATUS = "scheduling.koordinator.sh/resource-status"
NUMA_NODES = "koord-numa/numa-nodes"

BARE = changed(POD, "metadata annotations", {})

STATUSES: dict[str, tuple[Placement, dict[str, str]]] = {
    "CPUs and NUMA amounts": (
        Placement(
            node="n",
            cpus=CpuSet.parse("0-3"),
            numa=((0, {"memory": 8 * GIB, "cpu": 4000}),),
            mask=0b1,
            bind=CpuBindPolicy.FULL_PCPUS,
        ),
        {
            STATUS: '{"cpuset":"0-3","numaNodeResources":[{"node":0,"resources":{"cpu":"4","memory":"8Gi"}}]}',
            SPEC: '{"preferredCPUBindPolicy":"FullPCPUs"}',
            NUMA_NODES: "0",
        },
    ),
    "NUMA amounts of two nodes, ascending": (
        Placement(node="n", numa=((3, {"cpu": 500}), (1, {"kubernetes.io/batch-cpu": 1500})), mask=0b1010),
        {
            STATUS: (
                '{"numaNodeResources":[{"node":1,"resources":{"kubernetes.io/batch-cpu":"1500"}},'
                '{"node":3,"resources":{"cpu":"500m"}}]}'
            ),
            NUMA_NODES: "1,3",
        },
    ),
    "a shared pool by socket and NUMA node, its CPUs left to the agent": (
        Placement(node="n", shared_pools=(SharedPool(1, 2, CpuSet.parse("8-15")),), mask=0b100),
        {STATUS: '{"cpuSharedPools":[{"socket":1,"node":2}]}', NUMA_NODES: "2"},
    ),
    "nothing of its own": (Placement(node="n"), {}),
}


@each_row(("placement", "expected"), STATUSES.values(), ids=STATUSES.keys())
def test_annotations(placement: Placement, expected: dict[str, str]) -> None:
    assert resource_status(parse_pod(BARE), placement) == expected


def test_the_status_of_another_pod_is_overwritten() -> None:
    copied = parse_pod(annotated(BARE, STATUS, '{"cpuset":"0-63"}'))
    assert resource_status(copied, Placement(node="n")) == {STATUS: "{}"}


FULL = CpuBindPolicy.FULL_PCPUS
SPECS: dict[str, tuple[str, bool, str | None]] = {
    "nothing said": ("{}", False, '{"preferredCPUBindPolicy":"FullPCPUs"}'),
    "nothing said, but the node requires": ("{}", True, '{"requiredCPUBindPolicy":"FullPCPUs"}'),
    "required default": (
        '{"requiredCPUBindPolicy":"Default"}',
        True,
        '{"requiredCPUBindPolicy":"FullPCPUs"}',
    ),
    "preferred default": ('{"preferredCPUBindPolicy":"Default"}', False, '{"preferredCPUBindPolicy":"FullPCPUs"}'),
    "preferred default on a node that requires": (
        '{"preferredCPUBindPolicy":"Default"}',
        True,
        '{"preferredCPUBindPolicy":"FullPCPUs","requiredCPUBindPolicy":"FullPCPUs"}',
    ),
    "said already": ('{"preferredCPUBindPolicy":"FullPCPUs"}', False, None),
    "required already": ('{"requiredCPUBindPolicy":"FullPCPUs"}', True, None),
    "unknown fields stay": (
        '{"x":{"deep":[1,null]},"preferredCPUBindPolicy":""}',
        False,
        '{"x":{"deep":[1,null]},"preferredCPUBindPolicy":"FullPCPUs"}',
    ),
    "another case stays": (
        '{"PreferredCPUBindPolicy":"Default"}',
        False,
        '{"PreferredCPUBindPolicy":"FullPCPUs"}',
    ),
}


@each_row(("text", "required", "expected"), SPECS.values(), ids=SPECS.keys())
def test_the_policy_in_force_is_filled_in(text: str, required: bool, expected: str | None) -> None:
    pod = parse_pod(annotated(BARE, SPEC, text))
    placement = Placement(node="n", cpus=CpuSet.parse("0-1"), bind=FULL, bind_required=required)
    assert resource_status(pod, placement).get(SPEC) == expected


def test_without_own_cpus_the_spec_is_left_alone() -> None:
    pod = parse_pod(annotated(BARE, SPEC, '{"preferredCPUBindPolicy":"Default"}'))
    placement = Placement(node="n", numa=((0, {"cpu": 1000}),), bind=FULL)
    assert SPEC not in resource_status(pod, placement)


numa_ids = st.integers(0, 63)
resources = st.dictionaries(
    st.sampled_from(["cpu", "memory", "hugepages-1Gi", "nvidia.com/gpu", "kubernetes.io/batch-cpu"]),
    st.integers(0, 2**45),
    min_size=1,
)
pools = st.tuples(st.integers(0, 7), numa_ids).map(lambda pair: SharedPool(*pair, CpuSet()))
assignments = st.builds(
    Assignment,
    cpus=st.sets(st.integers(0, 4096), max_size=40).map(CpuSet.of),
    numa=st.dictionaries(numa_ids, resources, max_size=4).map(lambda found: tuple(sorted(found.items()))),
    shared_pools=st.sets(pools, max_size=3).map(lambda found: tuple(sorted(found, key=lambda p: (p.socket, p.numa)))),
)


@given(held=assignments)
def test_what_is_written_is_read_again(held: Assignment) -> None:
    bound = annotated(changed(BARE, "spec nodeName", "n"), STATUS, status_text(held))
    pod = parse_pod(bound)
    assert (pod.assignment, pod.problem) == (held, "")


@given(held=assignments)
def test_the_agent_can_read_it(held: Assignment) -> None:
    """The shapes of Koordinator's ``ResourceStatus`` in Go: texts, 32-bit integers, quantities as texts, no nulls."""
    status = json.loads(status_text(held))
    assert set(status) <= {"cpuset", "numaNodeResources", "cpuSharedPools"}
    assert all(status.values())
    assert isinstance(status.get("cpuset", ""), str)
    entries: list[dict[str, Any]] = status.get("numaNodeResources", [])
    assert [entry["node"] for entry in entries] == sorted(entry["node"] for entry in entries)
    for entry in entries:
        assert set(entry) == {"node", "resources"}
        assert all(isinstance(quantity, str) for quantity in entry["resources"].values())
    for pool in status.get("cpuSharedPools", []):
        assert {name: type(value) for name, value in pool.items()} == {"socket": int, "node": int}
