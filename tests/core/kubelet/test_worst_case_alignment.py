"""Kubelets that align although we choose the CPUs: a pod goes only where they admit it, wherever they put the others."""

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.bounds import refuse_unsure
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Unschedulable
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner, KubeletPolicy, KubeletScope
from koord_numa.core.scheduling.filters import decide
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.state.inventory import Inventory, candidate, inventory
from koord_numa.core.state.ledger import Ledger, holding_of
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import GI, pod
from tests.machines import machine
from tests.tables import each_row

GPU = "nvidia.com/gpu"
SINGLE = KubeletConfig(
    KubeletPolicy.SINGLE_NUMA_NODE, KubeletScope.POD, cpu_policy="static", memory_policy="None", reserved_cpus=CpuSet(0)
)


def host(config: KubeletConfig, *, gpus: int = 4, amplified: float = 1.0) -> tuple[Node, NodeResourceTopology]:
    """Two NUMA nodes of eight CPUs, 64 GiB and some GPUs."""
    built = machine("2x1x4x2")
    offer = {"cpu": 8000, "memory": 64 * GI, **({GPU: gpus} if gpus else {})}
    zones = tuple(Zone(numa, offer, offer, offer) for numa in built.numa_ids)
    allocatable = {"cpu": 16000, "memory": 128 * GI, GPU: 8, "pods": 110}
    node = Node("n", allocatable=allocatable, amplification={"cpu": amplified} if amplified > 1 else {})
    return node, NodeResourceTopology("n", CpuOwner.SCHEDULER, zones, machine=built, kubelet=config)


def there(*pods: PodRequest) -> Ledger:
    """These pods are on the node, where is unknown."""
    return Ledger.of(holding_of(Pod(PodKey("ns", str(i), str(i)), request)) for i, request in enumerate(pods))


def refusal(config: KubeletConfig, request: PodRequest, *others: PodRequest, **fields: int) -> str:
    """Return the detail of the node's rejection, empty if the node accepts the pod."""
    made = inventory(*host(config, gpus=fields.get("gpus", 4), amplified=fields.get("amplified", 1)))
    assert isinstance(made, Inventory)
    answer = made.aligner and refuse_unsure(request, made.aligner, there(*others))
    return answer.detail if answer else ""


ITSELF = "its kubelet aligns CPUs, memory and devices itself (single-numa-node): "
UNSURE = f"{ITSELF}it chooses by its own state, in which no NUMA node is sure to have"


@each_row(
    ("config", "request_", "others", "expected"),
    [
        pytest.param(SINGLE, pod(gpus=1), [pod(gpus=1)] * 7, "", id="one-gpu-is-always-somewhere"),
        pytest.param(SINGLE, pod(gpus=2), [pod(gpus=1)] * 5, "", id="of-three-gpus-two-are-together"),
        pytest.param(
            SINGLE, pod(gpus=2), [pod(gpus=1)] * 6, f"{UNSURE} 2 {GPU} left", id="two-gpus-may-be-on-two-numa-nodes"
        ),
        pytest.param(SINGLE, pod(4000, GI, gpus=1), [pod(4000, GI, gpus=1)], "", id="all-of-it-is-left-somewhere"),
        pytest.param(
            SINGLE,
            pod(4000, GI, gpus=1),
            [pod(5000, GI), pod(gpus=4)],
            f"{UNSURE} 4 CPUs, 1 {GPU} left",
            id="cpus-here-gpus-there",
        ),
        pytest.param(SINGLE, pod(4500, GI), [pod(8000)] * 2, "", id="shared-cpus-are-not-aligned"),
        pytest.param(
            SINGLE,
            pod(9000, GI),
            [],
            "its kubelet aligns CPUs, memory and devices itself (single-numa-node): no NUMA node has 9 CPUs",
            id="wider-than-a-numa-node",
        ),
        pytest.param(
            SINGLE,
            pod(others={"vendor.example/nic": 1}),
            [],
            "",
            id="unpublished-device",
        ),
        pytest.param(
            replace(SINGLE, memory_policy=None),
            pod(1000, 60 * GI),
            [pod(1000, 20 * GI)],
            f"{UNSURE} 1 CPU, 60Gi memory left",
            id="memory-may-be-bound",
        ),
        pytest.param(
            replace(SINGLE, memory_policy="None"),
            pod(1000, 60 * GI),
            [pod(1000, 20 * GI)],
            "",
            id="memory-is-not-bound",
        ),
        pytest.param(
            KubeletConfig(KubeletPolicy.NONE, cpu_policy="static", memory_policy="Static"),
            pod(1000, 65 * GI),
            [],
            "its kubelet aligns memory itself (none): no NUMA node has 65Gi memory",
            id="only-memory-is-bound",
        ),
        pytest.param(KubeletConfig(KubeletPolicy.BEST_EFFORT), pod(9000, GI), [], "", id="refuses-nothing"),
        pytest.param(KubeletConfig(), pod(gpus=5), [], "", id="nothing-known"),
    ],
)
def test_what_is_sure(config: KubeletConfig, request_: PodRequest, others: list[PodRequest], expected: str) -> None:
    assert refusal(config, request_, *others) == expected


def test_memory_of_init_containers_alone_is_not_hinted_for() -> None:
    pages = {"cpu": 1000, "memory": GI, "hugepages-2Mi": GI}
    request = PodRequest(
        containers=(
            Container("first", ContainerKind.INIT, pages, pages),
            Container("app", ContainerKind.APP, {"cpu": 1000, "memory": GI}, {"cpu": 1000, "memory": GI}),
        )
    )
    expected = f"{ITSELF}hugepages-2Mi of init containers alone it binds anywhere"
    assert refusal(replace(SINGLE, memory_policy="Static"), request) == expected


def test_what_an_init_container_leaves_ties_the_others() -> None:
    amounts = {"cpu": 1000, "memory": GI}
    parts = [Container(kind.value, kind, amounts, amounts) for kind in (ContainerKind.INIT, ContainerKind.APP)]
    request = PodRequest(containers=tuple(parts))
    expected = f"{ITSELF}what init containers leave ties the others to NUMA nodes that were chosen without them"
    assert refusal(replace(SINGLE, topology_scope=KubeletScope.CONTAINER), request) == expected
    assert refusal(SINGLE, request) == ""


def test_amplified_cpus_are_not_the_kubelets() -> None:
    assert "cpu is amplified" in refusal(SINGLE, pod(1000, GI), amplified=2)


def test_memory_kept_by_a_kubelet_may_be_missing_anywhere() -> None:
    node, topology = host(replace(SINGLE, memory_policy="Static"))
    made = inventory(replace(node, allocatable={**node.allocatable, "memory": 60 * GI}), topology)
    assert isinstance(made, Inventory)
    assert made.aligner is not None
    assert refuse_unsure(pod(1000, 31 * GI), made.aligner, Ledger()) is not None
    assert refuse_unsure(pod(1000, 30 * GI), made.aligner, Ledger()) is None


@pytest.mark.parametrize(("gpus", "placed"), [(5, True), (6, False)])
def test_a_decision_asks_the_kubelet_too(gpus: int, *, placed: bool) -> None:
    node, topology = host(SINGLE)
    made = inventory(node, topology)
    there_is = candidate(node, made, there(*[pod(gpus=1)] * gpus))
    answer = decide(scheduling_request(pod(gpus=2), Profile()), [there_is], Profile())
    if placed:
        assert isinstance(answer, Placement)
    else:
        assert isinstance(answer, Unschedulable)
        assert answer.rejections["n"].reason is Reason.KUBELET_ALIGNMENT


def test_who_comes_and_goes_counts_at_once() -> None:
    made = inventory(*host(SINGLE))
    assert isinstance(made, Inventory)
    assert made.aligner is not None
    ledger, last = there(*[pod(gpus=1)] * 5), Pod(PodKey("default", "last", "last"), pod(gpus=1))
    sure = [refuse_unsure(pod(gpus=2), made.aligner, ledger) is None]
    ledger.hold(holding_of(last))
    sure.append(refuse_unsure(pod(gpus=2), made.aligner, ledger) is None)
    ledger.release("last")
    sure.append(refuse_unsure(pod(gpus=2), made.aligner, ledger) is None)
    assert sure == [True, False, True]


def test_ordinary_kubelets_cost_nothing() -> None:
    made = inventory(*host(KubeletConfig(KubeletPolicy.NONE, cpu_policy="static")))
    assert isinstance(made, Inventory)
    assert made.aligner is None
