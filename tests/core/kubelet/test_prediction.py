"""Answers of the scheduler: admitted with the resources to charge, or rejected with reason, numbers and deciding assumption."""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from koord_numa.core.cpus.kubelet_options import CoreEvidence, FreeCpus, core_rule, surely_whole
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import Admitted, admit_pod
from koord_numa.core.kubelet.prediction import NOTHING_KNOWN, refuse_exploration, would_admit
from koord_numa.core.kubelet.state import Charge, KubeletAdmission, KubeletNode, KubeletState
from koord_numa.core.kubelet.view import CANNOT_ALIGN, CANNOT_ALLOCATE, NO_WHOLE_CORES, KubeletView, kubelet_view
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, PodKey, PodRequest
from koord_numa.core.objects.verdicts import NumaNumbers, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuOwner,
    KubeletPolicy,
    KubeletScope,
    UnknownKubeletOptions,
)
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import ResourceList
from koord_numa.core.state.ledger import Holding
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.admission import exported
from tests.conformance.kubelet.seen import exact_view
from tests.core.kubelet.nodes import GI, ROOMY, app, init, node, pod
from tests.core.kubelet.test_admit import nodes, pods
from tests.tables import each_row

SINGLE, RESTRICTED = KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED
BEST_EFFORT, NONE = KubeletPolicy.BEST_EFFORT, KubeletPolicy.NONE


def zones(*free: int, **more: tuple[int, ...]) -> tuple[Zone, ...]:
    """NUMA nodes of eight CPUs with so many free; ``memory`` in GiB and ``gpu`` likewise, four of each."""
    made = []
    for numa, cpus in enumerate(free):
        supply, left = {"cpu": 8000}, {"cpu": cpus * 1000}
        if "memory" in more:
            supply["memory"], left["memory"] = 4 * GI, more["memory"][numa] * GI
        if "gpu" in more:
            supply["vendor.com/gpu"], left["vendor.com/gpu"] = 4, more["gpu"][numa]
        made.append(Zone(numa, supply, supply, left))
    return tuple(made)


def held(uid: str, request: PodRequest, *numa: tuple[int, ResourceList]) -> Holding:
    """A pod on the node."""
    return Holding(PodKey("default", uid, uid), effective_requests(request), numa=numa, request=request)


def view(
    published: tuple[Zone, ...], policy: KubeletPolicy | None = SINGLE, *there: Holding, **more: Any
) -> KubeletView:
    """A node of which no options but these are published."""
    config = KubeletConfig(
        topology_policy=policy,
        topology_scope=more.get("scope", KubeletScope.CONTAINER),
        cpu_policy=more.get("cpu_policy", "static"),
    )
    method = more.get("fingerprint_method", "")
    topology = NodeResourceTopology("n", CpuOwner.KUBELET, zones=published, kubelet=config, fingerprint_method=method)
    allocatable = more.get("allocatable", {**ROOMY, "vendor.com/gpu": 4 * len(published)})
    return kubelet_view(Node("n", allocatable=allocatable), topology, there, more.get("unpublished", ()))


YES: dict[str, tuple[KubeletView, PodRequest, KubeletAdmission]] = {
    "the lowest NUMA node with room": (
        view(zones(3, 8)),
        pod(app(4)),
        KubeletAdmission(numa=((1, {"cpu": 4000}),), mask=0b10),
    ),
    "every container on its own": (
        view(zones(4, 8)),
        pod(app(4), app(6, "b")),
        KubeletAdmission(numa=((0, {"cpu": 4000}), (1, {"cpu": 6000})), mask=0b11),
    ),
    "memory and devices, too": (
        view(zones(8, 8, memory=(0, 4), gpu=(4, 4)), SINGLE, held("a", pod(app(1, memory=4 * GI)))),
        pod(app(2, memory=2 * GI, gpu=1)),
        KubeletAdmission(numa=((1, {"vendor.com/gpu": 1, "cpu": 2000, "memory": 2 * GI}),), mask=0b10),
    ),
    "nothing to hold": (view(zones(8, 8)), pod(app(0.5)), KubeletAdmission()),
    "spread over NUMA nodes": (
        view(zones(8, 8), RESTRICTED),
        pod(app(10)),
        KubeletAdmission(
            numa=((0, {"cpu": 10000}), (1, {"cpu": 10000})),
            charge=Charge.EVERYWHERE,
            mask=0b11,
            note="several NUMA nodes are possible, so the pod is counted on each",
        ),
    ),
    "beside memory that no known pod explains": (
        view(zones(8, 8, memory=(1, 4)), BEST_EFFORT, held("a", pod(app(1))), fingerprint_method="all"),
        pod(app(2)),
        KubeletAdmission(
            numa=((0, {"cpu": 2000, "memory": GI}), (1, {"cpu": 2000, "memory": GI})),
            charge=Charge.EVERYWHERE,
            mask=0b11,
            note="memory is taken to be grouped as the pods on the node suggest; "
            "several NUMA nodes are possible, so the pod is counted on each",
        ),
    ),
    "an init container's CPUs are held to the end": (
        view(zones(8, 8)),
        pod(init(3), app(2)),
        KubeletAdmission(numa=((0, {"cpu": 5000}),), mask=0b01),
    ),
    "a container of the same size gets them again": (
        view(zones(8, 8)),
        pod(init(2), app(2)),
        KubeletAdmission(numa=((0, {"cpu": 2000}),), mask=0b01),
    ),
    "unpublished options": (
        view(zones(8, 8), cpu_policy=None),
        pod(app(8)),
        KubeletAdmission(
            numa=((0, {"cpu": 8000}),),
            mask=0b01,
            note="CPU manager options are not published: CPUs are taken to be whole cores of 8 threads",
        ),
    ),
    "shared pods need no topology": (view((), None), pod(Container("app", ContainerKind.APP)), KubeletAdmission()),
}


@each_row(("seen", "request_", "expected"), YES.values(), ids=YES)
def test_yes(seen: KubeletView, request_: PodRequest, expected: KubeletAdmission) -> None:
    assert would_admit(request_, seen) == expected


def test_a_pod_that_splits_a_core_explores_an_unpublished_option() -> None:
    seen, three = view(zones(8, 8), cpu_policy=None), pod(app(3))
    answer = would_admit(three, seen)
    assert isinstance(answer, KubeletAdmission)
    assert answer.explores == ("full-pcpus-only",)
    assert refuse_exploration(three, seen, answer, UnknownKubeletOptions.EXPLORE) is None
    for request, where, rule in (
        (three, seen, UnknownKubeletOptions.STRICT),
        (replace(three, replaceable=False), seen, UnknownKubeletOptions.EXPLORE),
        (three, replace(seen, explored=True), UnknownKubeletOptions.EXPLORE),
    ):
        refusal = refuse_exploration(request, where, answer, rule)
        assert refusal is not None
        assert refusal.reason is Reason.KUBELET_SMT
        assert "full-pcpus-only" in refusal.detail


KEPT = surely_whole(core_rule(KubeletConfig(), zones(8, 8), "", CoreEvidence(kept=True)), [FreeCpus.of(zones(8, 8))])

NO: dict[str, tuple[KubeletView, PodRequest, Rejection]] = {
    "no NUMA node has enough": (
        view(zones(3, 6)),
        pod(app(8)),
        Rejection(
            Reason.KUBELET_ALIGNMENT,
            CANNOT_ALIGN,
            "container app: needs 8 CPUs in one NUMA node",
            numbers=(NumaNumbers(0, "cpu", 8000, 3000, 8000), NumaNumbers(1, "cpu", 8000, 6000, 8000)),
            largest={"cpu": 6000},
        ),
    ),
    "more than any NUMA node can ever have": (
        view(zones(8, 8)),
        pod(app(9)),
        Rejection(
            Reason.KUBELET_ALIGNMENT,
            CANNOT_ALIGN,
            "container app: needs 9 CPUs in one NUMA node",
            resolvable=False,
            numbers=(NumaNumbers(0, "cpu", 8000, 8000, 9000), NumaNumbers(1, "cpu", 8000, 8000, 9000)),
            largest={"cpu": 8000},
        ),
    ),
    "too few CPUs without any policy": (
        view(zones(2, 2), NONE),
        pod(app(5)),
        Rejection(
            Reason.KUBELET_ALLOCATION,
            CANNOT_ALLOCATE,
            "container app: needed 5 exclusive CPUs, free 4",
            numbers=(NumaNumbers(0, "cpu", 8000, 2000, 5000), NumaNumbers(1, "cpu", 8000, 2000, 5000)),
            largest={"cpu": 2000},
        ),
    ),
    "the node as a whole": (
        view(zones(8, 8), SINGLE, allocatable={"cpu": 1000, "memory": GI, "pods": 10}),
        pod(app(2)),
        Rejection(Reason.RESOURCES, "Insufficient cpu", "cpu: needed 2000, free 1000", resolvable=False),
    ),
    "too many pods": (
        view(zones(8, 8), SINGLE, held("a", pod(app(1))), allocatable={**ROOMY, "pods": 1}),
        pod(app(2)),
        Rejection(Reason.RESOURCES, "Too many pods", "pods: needed 1, free 0"),
    ),
    "half a core, as it has refused before": (
        replace(view(zones(8, 8), cpu_policy=None), cores=KEPT),
        pod(app(3)),
        Rejection(
            Reason.KUBELET_SMT,
            NO_WHOLE_CORES,
            "3 CPUs are not a multiple of 8; its kubelet refused a pod for its whole cores: CPUs are taken to be whole cores of 8 threads",
            resolvable=False,
        ),
    ),
    "memory that no known pod explains": (
        view(zones(8, 1, memory=(1, 4)), BEST_EFFORT, held("a", pod(app(1)))),
        pod(app(2)),
        Rejection(
            Reason.KUBELET_ALLOCATION,
            CANNOT_ALLOCATE,
            "the known pods of the node do not explain where memory is in use",
        ),
    ),
    "memory of a group of which one NUMA node may show no use": (
        view(zones(8, 8, memory=(1, 4)), BEST_EFFORT, held("a", pod(app(1)))),
        pod(app(2)),
        Rejection(
            Reason.KUBELET_ALLOCATION,
            CANNOT_ALLOCATE,
            "the known pods of the node do not explain where memory is in use",
        ),
    ),
    "a pod not shown yet": (
        view(zones(8), SINGLE, held("a", pod(app(6)), (0, {"cpu": 6000})), unpublished=("a",)),
        pod(app(3)),
        Rejection(
            Reason.KUBELET_ALIGNMENT,
            CANNOT_ALIGN,
            "container app: needs 3 CPUs in one NUMA node",
            numbers=(NumaNumbers(0, "cpu", 8000, 2000, 3000),),
            largest={"cpu": 2000},
        ),
    ),
    "a pod not shown yet, place unknown": (
        view(zones(8, 8), SINGLE, held("a", pod(app(6))), unpublished=("a",)),
        pod(app(3)),
        Rejection(
            Reason.KUBELET_ALIGNMENT,
            CANNOT_ALIGN,
            "container app: needs 3 CPUs in one NUMA node",
            numbers=(NumaNumbers(0, "cpu", 8000, 2000, 3000), NumaNumbers(1, "cpu", 8000, 2000, 3000)),
            largest={"cpu": 2000},
        ),
    ),
    "no policy published": (
        view(zones(8, 8), None),
        pod(app(2)),
        Rejection(Reason.NO_TOPOLOGY, NOTHING_KNOWN, "the topology manager policy is not published", resolvable=False),
    ),
    "no NUMA node published": (
        view((), SINGLE),
        pod(app(2)),
        Rejection(Reason.NO_TOPOLOGY, NOTHING_KNOWN, "no NUMA nodes are published", resolvable=False),
    ),
}


@each_row(("seen", "request_", "expected"), NO.values(), ids=NO)
def test_no(seen: KubeletView, request_: PodRequest, expected: Rejection) -> None:
    assert would_admit(request_, seen) == expected


def test_a_node_followed_from_its_first_pod_is_known_to_the_cpu() -> None:
    seen = exact_view("n", admit_pod(KubeletState.empty(node()), "a", pod(app(6))).state)
    assert would_admit(pod(app(2)), seen) == KubeletAdmission(
        numa=((0, {"cpu": 2000}),), mask=0b01, cpus=CpuSet.parse("6-7")
    )
    assert would_admit(pod(app(7)), exact_view("n", seen.state.without("a"))) == KubeletAdmission(
        numa=((0, {"cpu": 7000}),), mask=0b01, cpus=CpuSet.parse("0-6")
    )


def test_devices_near_two_numa_nodes_promise_the_least() -> None:
    """Two zones list the same two devices, as the Node object shows: three at once are not to be had."""
    seen = view(zones(8, 8, gpu=(2, 2)), RESTRICTED, allocatable={**ROOMY, "vendor.com/gpu": 4})
    assert isinstance(would_admit(pod(app(2, gpu=2)), seen), KubeletAdmission)
    assert isinstance(would_admit(pod(app(2, gpu=3)), seen), Rejection)


@given(nodes(), st.lists(pods(), max_size=5), pods())
def test_no_yes_that_the_kubelet_refuses(real: KubeletNode, arriving: list[PodRequest], one: PodRequest) -> None:
    """
    The law holds after any history and with any unpublished options.

    Bound memory counts under single-numa-node only: elsewhere blocks may span NUMA nodes without a trace, so that a rare yes is wrong.
    """
    assume(real.config.topology_policy is SINGLE or not real.pins_memory)
    state, there = KubeletState.empty(real), []
    for number, early in enumerate(arriving):
        verdict = admit_pod(state, f"u{number}", early)
        state = verdict.state
        if isinstance(verdict, Admitted):
            there.append(held(f"u{number}", early))
    topology = NodeResourceTopology(
        node="n",
        owner=CpuOwner.KUBELET,
        zones=exported(real, state, {numa: amounts["memory"] for numa, amounts in real.memory.items()}),
        kubelet=KubeletConfig(topology_policy=real.config.topology_policy, topology_scope=real.config.topology_scope),
    )
    answer = would_admit(one, kubelet_view(Node("n", allocatable=real.allocatable), topology, there))
    if isinstance(answer, Rejection) or answer.explores:
        return
    assert isinstance(admit_pod(state, "new", one), Admitted)
