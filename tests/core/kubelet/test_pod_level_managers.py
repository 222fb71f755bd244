"""Pods with pod-level resources on kubelets with the gate PodLevelResourceManagers on."""

from random import Random

import pytest

from koord_numa.core.cpu_topology import cpu_topology_of
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import Admitted, NotAdmitted, admit_pod
from koord_numa.core.kubelet.demand import EMPTY_POD_SHARED_POOL, SMT_ALIGNMENT, TOPOLOGY_AFFINITY, UNEXPECTED_ADMISSION
from koord_numa.core.kubelet.state import DevicePool, KubeletNode, KubeletState, MemoryBlock, PluginDevice
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.tables import each_row

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR
DUAL_SOCKET_HT = cpu_topology_of([(cpu, cpu % 6, cpu % 2, cpu % 2, cpu % 2) for cpu in range(12)])
"""The kubelet's topoDualSocketHT: two NUMA nodes of three cores with two threads; even CPUs are on the first."""
MEMORY = {0: {"memory": 10}, 1: {"memory": 10}}


def node(
    policy: KubeletPolicy = KubeletPolicy.BEST_EFFORT,
    scope: KubeletScope = KubeletScope.POD,
    *,
    gate: bool = True,
    memory: bool = False,
    cpu_options: dict[str, bool] | None = None,
) -> KubeletNode:
    """A node with CPU 0 reserved."""
    return KubeletNode(
        machine=DUAL_SOCKET_HT,
        config=KubeletConfig(
            topology_policy=policy,
            topology_scope=scope,
            cpu_policy="static",
            cpu_options=cpu_options or {},
            memory_policy="Static" if memory else "None",
            reserved_cpus=CpuSet.parse("0"),
        ),
        allocatable={"cpu": 11_000, "memory": 20, "pods": 110},
        memory=MEMORY if memory else {},
        pod_level_managers=gate,
    )


def exclusive(name: str, cpus: int, memory: int = 1, kind: ContainerKind = APP) -> Container:
    """A container with equal requests and limits."""
    amounts = {"cpu": cpus * 1000, "memory": memory}
    return Container(name, kind, amounts, amounts)


def shared(name: str, kind: ContainerKind = APP) -> Container:
    """A container without requests."""
    return Container(name, kind, {}, {})


def pod(cpus: float, *containers: Container, memory: int = 6) -> PodRequest:
    """A Guaranteed pod by its pod-level resources."""
    amounts = {"cpu": int(cpus * 1000), "memory": memory}
    return PodRequest(containers=containers, pod_requests=amounts, pod_limits=amounts)


# The rows "scope: pod" of TestStaticPolicyAllocatePod in the kubelet's policy_static_test.go.
UPSTREAM: dict[str, tuple[PodRequest, str, dict[str, str]]] = {
    "exclusive container below the pod's budget": (pod(2, exclusive("a", 1)), "2,8", {"a": "2"}),
    "shared container": (pod(1, shared("a")), "6", {}),
    "exclusive and shared containers": (
        pod(3, exclusive("a", 1), exclusive("b", 1), shared("c")),
        "2,6,8",
        {"a": "6", "b": "2"},
    ),
    "init containers": (
        pod(
            2,
            exclusive("i", 1, kind=INIT),
            exclusive("j", 1, kind=INIT),
            exclusive("a", 1),
            exclusive("b", 1),
        ),
        "2,8",
        {"i": "2", "j": "2", "a": "2", "b": "8"},
    ),
    "exclusive sidecar": (
        pod(
            3,
            shared("i", INIT),
            exclusive("s", 1, kind=SIDECAR),
            shared("j", INIT),
            exclusive("a", 1),
            shared("b"),
        ),
        "2,6,8",
        {"s": "6", "a": "2"},
    ),
    "shared sidecar": (
        pod(3, shared("i", INIT), shared("s", SIDECAR), shared("j", INIT), exclusive("a", 1), shared("b")),
        "2,6,8",
        {"a": "6"},
    ),
}


@each_row(("request_", "pod_cpus", "slices"), UPSTREAM.values(), ids=UPSTREAM)
def test_scope_pod(request_: PodRequest, pod_cpus: str, slices: dict[str, str]) -> None:
    answer = admit_pod(KubeletState.empty(node()), "u", request_)
    assert isinstance(answer, Admitted)
    assert str(answer.grant.pod_cpus) == pod_cpus
    assert {one.name: str(one.cpus) for one in answer.grant.containers if one.cpus} == slices
    assert not answer.state.managers.cpus & answer.grant.pod_cpus.bits


@each_row(
    ("node_", "request_", "reason"),
    [
        pytest.param(
            node(), pod(2, exclusive("a", 1), exclusive("b", 1), shared("c")), EMPTY_POD_SHARED_POOL, id="no-cpu-left"
        ),
        pytest.param(
            node(memory=True), pod(4, exclusive("a", 1, 6), shared("b")), EMPTY_POD_SHARED_POOL, id="no-memory-left"
        ),
        pytest.param(
            node(),
            pod(2, exclusive("s", 1, kind=SIDECAR), exclusive("i", 2, kind=INIT), exclusive("a", 1)),
            EMPTY_POD_SHARED_POOL,
            id="init-container-beside-sidecar",
        ),
        pytest.param(
            node(),
            pod(1, exclusive("s", 1, kind=SIDECAR), shared("i", INIT)),
            EMPTY_POD_SHARED_POOL,
            id="shared-init-container-beside-sidecar",
        ),
        pytest.param(
            node(KubeletPolicy.SINGLE_NUMA_NODE), pod(7, exclusive("a", 1)), TOPOLOGY_AFFINITY, id="wider-than-a-numa"
        ),
        pytest.param(
            node(cpu_options={"full-pcpus-only": True}), pod(3, exclusive("a", 2)), SMT_ALIGNMENT, id="split-core"
        ),
        pytest.param(
            node(KubeletPolicy.NONE, KubeletScope.CONTAINER, memory=True),
            pod(2, shared("a")),
            UNEXPECTED_ADMISSION,
            id="scope-container-without-hint-and-memory",
        ),
    ],
)
def test_rejections(node_: KubeletNode, request_: PodRequest, reason: str) -> None:
    state = KubeletState.empty(node_)
    answer = admit_pod(state, "u", request_)
    assert isinstance(answer, NotAdmitted)
    assert answer.refusal.reason == reason
    assert answer.state == state


def test_full_pcpus_only_judges_the_pod_and_not_its_containers() -> None:
    answer = admit_pod(KubeletState.empty(node(cpu_options={"full-pcpus-only": True})), "u", pod(2, exclusive("a", 1)))
    assert isinstance(answer, Admitted)


def test_memory_is_bound_for_the_pod() -> None:
    answer = admit_pod(KubeletState.empty(node(memory=True)), "u", pod(3, exclusive("a", 1, 2), shared("b"), memory=6))
    assert isinstance(answer, Admitted)
    assert answer.grant.pod_memory == (MemoryBlock("memory", 6, 1),)
    assert answer.state.managers.memory is not None
    assert answer.state.managers.memory.free == {0: {"memory": 4}, 1: {"memory": 10}}


def test_devices_count_at_admission() -> None:
    two = replace(node(), devices={"gpu": DevicePool((PluginDevice("g0", 1), PluginDevice("g1", 1)))})
    gpus = Container("a", APP, {}, {"gpu": 2})
    answer = admit_pod(KubeletState.empty(two), "u", pod(1, gpus))
    assert isinstance(answer, Admitted)
    assert answer.grant.containers[0].devices == {"gpu": ("g0", "g1")}
    refused = admit_pod(answer.state, "v", pod(1, gpus))
    assert isinstance(refused, NotAdmitted)
    assert refused.refusal.reason == UNEXPECTED_ADMISSION


def test_scope_container_ignores_the_budget_of_the_pod() -> None:
    # The first container has no memory limit of its own, so that it is not exclusive.
    half = Container("half", APP, {"cpu": 1000}, {"cpu": 1000})
    answer = admit_pod(KubeletState.empty(node(scope=KubeletScope.CONTAINER)), "u", pod(5, half, exclusive("a", 2)))
    assert isinstance(answer, Admitted)
    assert not answer.grant.pod_cpus
    assert [str(one.cpus) for one in answer.grant.containers] == ["", "2,8"]


@pytest.mark.parametrize(
    ("node_", "request_"),
    [
        pytest.param(node(gate=False), pod(2, exclusive("a", 1)), id="gate-off"),
        pytest.param(node(), pod(2.5, exclusive("a", 1)), id="fraction-of-a-cpu"),
        pytest.param(
            node(),
            PodRequest(
                containers=(exclusive("a", 1),),
                pod_requests={"cpu": 1000, "memory": 6},
                pod_limits={"cpu": 2000, "memory": 6},
            ),
            id="not-guaranteed",
        ),
    ],
)
def test_nothing_is_exclusive(node_: KubeletNode, request_: PodRequest) -> None:
    answer = admit_pod(KubeletState.empty(node_), "u", request_)
    assert isinstance(answer, Admitted)
    assert not answer.grant.pod_cpus
    assert not any(one.cpus for one in answer.grant.containers)


@each_row("seed", range(40))
def test_departures_restore_the_state(seed: int) -> None:
    dice = Random(seed)
    policy = dice.choice((KubeletPolicy.BEST_EFFORT, KubeletPolicy.RESTRICTED, KubeletPolicy.SINGLE_NUMA_NODE))
    state = KubeletState.empty(node(policy, dice.choice((KubeletScope.POD, KubeletScope.CONTAINER)), memory=True))
    before = []
    for number in range(4):
        kinds = (INIT, SIDECAR, APP)
        parts = [
            exclusive(f"c{at}", dice.randint(1, 2), kind=kind) if dice.random() < 0.6 else shared(f"c{at}", kind)
            for at, kind in enumerate(sorted(dice.choices(kinds, k=3), key=kinds.index))
        ]
        answer = admit_pod(state, f"u{number}", pod(dice.randint(1, 5), *parts, memory=dice.randint(2, 6)))
        if isinstance(answer, Admitted):
            before.append((f"u{number}", state))
            used = answer.grant.pod_cpus.bits
            for one in answer.grant.containers:
                used |= one.cpus.bits
            assert not used & ~state.managers.cpus
            state = answer.state
    for uid, earlier in reversed(before):
        state = state.without(uid)
        assert state == earlier
