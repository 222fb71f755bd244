"""Admission of whole pods: the cases that are easily missed, and laws over any sequence of pods."""

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import Admitted, NotAdmitted, admit_pod
from koord_numa.core.kubelet.state import ContainerGrant, KubeletNode, KubeletState
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, ROOMY, app, gpus, init, node, pod, sidecar
from tests.strategies import any_of
from tests.tables import each_row

RESTRICTED, BEST_EFFORT = KubeletPolicy.RESTRICTED, KubeletPolicy.BEST_EFFORT
SINGLE, NONE = KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.NONE


def run(some: KubeletNode, *pods: PodRequest) -> list[str]:
    """The answers to pods that arrive one after the other: a reason, or what each container got."""
    state, answers = KubeletState.empty(some), []
    for number, one in enumerate(pods):
        verdict = admit_pod(state, f"u{number}", one)
        state = verdict.state
        if isinstance(verdict, NotAdmitted):
            answers.append(verdict.refusal.reason)
        else:
            answers.append(" ".join(_told(grant) for grant in verdict.grant.containers))
    return answers


def _told(grant: ContainerGrant) -> str:
    devices = "".join(f"+{'+'.join(ids)}" for ids in grant.devices.values())
    memory = "".join(f"@{block.mask:b}" for block in grant.memory[:1])
    return f"{grant.cpus or '-'}{devices}{memory}"


BURSTABLE = pod(Container("app", ContainerKind.APP, {"cpu": 2000}, {}))
TWO_GI = {0: {"memory": 2 * GI}, 1: {"memory": 2 * GI}}

CASES: dict[str, tuple[KubeletNode, list[PodRequest], list[str]]] = {
    "the lowest NUMA node with room": (node(), [pod(app(6)), pod(app(4)), pod(app(2))], ["0-5", "8-11", "6-7"]),
    "shared pods get nothing of their own": (node(), [BURSTABLE, pod(app(1.5))], ["-", "-"]),
    "an init container pins the rest of its pod": (
        node("2x1x8x2", reserved="0-10"),
        [pod(init(1), app(13))],
        ["TopologyAffinityError"],
    ),
    "without it the pod fits elsewhere": (node("2x1x8x2", reserved="0-10"), [pod(app(13))], ["16-28"]),
    "a larger app container takes its init container's CPUs over": (
        node(),
        [pod(init(4), app(8)), pod(app(8))],
        ["0-3 0-7", "8-15"],
    ),
    "leftovers are held as long as the pod": (
        node(),
        [pod(init(8), app(2)), pod(app(8)), pod(app(1))],
        ["0-7 0-1", "8-15", "TopologyAffinityError"],
    ),
    "a sidecar keeps its CPUs": (node(), [pod(sidecar(4), app(6))], ["0-3 8-13"]),
    "reservation: one NUMA node is enough by capacity, never by what is free": (
        node(policy=RESTRICTED, reserved="0,8"),
        [pod(app(8)), pod(app(9))],
        ["TopologyAffinityError", "1-7,10-11"],
    ),
    "pod scope asks once for all": (
        node(scope=KubeletScope.POD),
        [pod(app(5), app(4, "b")), pod(app(4), app(4, "b"))],
        ["TopologyAffinityError", "0-3 4-7"],
    ),
    "container scope serves them apart": (node(), [pod(app(5), app(4, "b"))], ["0-4 8-11"]),
    "a device named with nothing still confines": (
        node(devices={"vendor.com/gpu": gpus(0b10, 0b10)}),
        [pod(app(2)), pod(app(2, gpu=0))],
        ["0-1", "8-9"],
    ),
    "CPUs and devices must agree": (
        node(devices={"vendor.com/gpu": gpus(0b01, 0b10)}),
        [pod(app(7)), pod(app(2, gpu=1)), pod(app(2, gpu=1))],
        ["0-6", "8-9+gpu1", "TopologyAffinityError"],
    ),
    "best-effort admits all that can be allocated": (
        node(policy=BEST_EFFORT),
        [pod(app(5)), pod(app(5)), pod(app(5)), pod(app(2))],
        ["0-4", "8-12", "5-7,14-15", "UnexpectedAdmissionError"],
    ),
    "policy none allocates from anywhere": (node(policy=NONE), [pod(app(5)), pod(app(5))], ["0-4", "5-9"]),
    "memory and CPUs on one NUMA node; no memory anywhere is found out too late": (
        node(memory=TWO_GI),
        [pod(app(7)), pod(app(2, memory=2 * GI)), pod(app(2)), pod(app(1, memory=2 * GI))],
        ["0-6@1", "8-9@10", "TopologyAffinityError", "UnexpectedAdmissionError"],
    ),
    "memory that no NUMA node has is refused even without a policy": (
        node(policy=NONE, memory=TWO_GI),
        [pod(app(1)), pod(app(1, memory=3 * GI))],
        ["0@1", "UnexpectedAdmissionError"],
    ),
    "memory of a finished init container is free again": (
        node(memory=TWO_GI),
        [pod(init(1, memory=2 * GI), app(1)), pod(app(1))],
        ["0@1 0@1", "1@1"],
    ),
    "a page size that the machine lacks": (node(memory=TWO_GI), [pod(app(1, pages=1))], ["UnexpectedAdmissionError"]),
    "the managers are asked before the node": (
        node(allocatable={**ROOMY, "cpu": 3000, "pods": 2}),
        [pod(app(9)), pod(app(4)), pod(app(1)), pod(app(1)), pod(app(1))],
        ["TopologyAffinityError", "OutOfcpu", "0", "1", "OutOfpods"],
    ),
    "whole cores": (
        node(options=("full-pcpus-only",), reserved="0"),
        [pod(app(3)), pod(app(6)), pod(app(8)), pod(app(2))],
        ["SMTAlignmentError", "2-7", "8-15", "TopologyAffinityError"],
    ),
    "pod-level resources are left alone": (
        node(memory=TWO_GI),
        [pod(app(9, memory=9 * GI), pod_requests={"cpu": 9000}, pod_limits={"cpu": 9000})],
        ["-"],
    ),
}


@each_row(("some", "pods", "answers"), CASES.values(), ids=CASES)
def test_cases(some: KubeletNode, pods: list[PodRequest], answers: list[str]) -> None:
    assert run(some, *pods) == answers


def test_hints_of_a_granted_pod() -> None:
    verdict = admit_pod(KubeletState.empty(node()), "u", pod(app(2)))
    assert isinstance(verdict, Admitted)
    (grant,) = verdict.grant.containers
    assert (grant.cpus, grant.hint and grant.hint.mask) == (CpuSet.parse("0-1"), 1)


@st.composite
def nodes(draw: st.DrawFn) -> KubeletNode:
    """Nodes of any policy, with and without memory manager, devices and reservation."""
    shape = draw(any_of("1x1x4x2", "2x1x4x2", "2x2x2x2", "4x1x2x1"))
    sockets, per_socket, *_ = map(int, shape.split("x"))
    numa = range(sockets * per_socket)
    return node(
        shape,
        draw(any_of(*KubeletPolicy)),
        draw(any_of(*KubeletScope)),
        draw(st.sampled_from([None, {i: {"memory": 4 * GI} for i in numa}])),
        reserved=draw(any_of("", "0", "0-1")),
        options=draw(any_of((), ("full-pcpus-only",), ("distribute-cpus-across-numa",))),
        devices=draw(st.sampled_from([{}, {"vendor.com/gpu": gpus(*(1 << i for i in numa), None)}])),
    )


@st.composite
def pods(draw: st.DrawFn) -> PodRequest:
    """Pods of up to three containers, the last of them an app container as there must be one."""
    parts = []
    count = draw(st.integers(1, 3))
    for number in range(count):
        make = draw(any_of(app, app, init, sidecar)) if number + 1 < count else app
        devices = draw(st.sampled_from([{}, {"gpu": 0}, {"gpu": 1}, {"gpu": 2}]))
        cpus = draw(any_of(0.5, 1, 2, 2, 4, 6))
        parts.append(make(cpus, f"c{number}", memory=draw(st.integers(1, 5)) * GI, **devices))
    parts.sort(key=lambda part: part.kind is ContainerKind.APP)
    return pod(*parts)


def fill(some: KubeletNode, arriving: list[PodRequest]) -> KubeletState:
    """The state after all of them have asked."""
    state = KubeletState.empty(some)
    for number, one in enumerate(arriving):
        state = admit_pod(state, f"u{number}", one).state
    return state


@given(nodes(), st.lists(pods(), max_size=6), pods())
def test_removing_what_was_admitted_restores_the_state(
    some: KubeletNode, before: list[PodRequest], one: PodRequest
) -> None:
    """Except under best-effort with bound memory, where the kubelet's own state does not come back."""
    if some.config.topology_policy is BEST_EFFORT and some.pins_memory:
        some = replace(some, memory={}, config=replace(some.config, memory_policy="None"))
    state = fill(some, before)
    verdict = admit_pod(state, "new", one)
    if isinstance(verdict, NotAdmitted):
        assert _comparable(verdict.state) == _comparable(state)
    else:
        assert _comparable(verdict.state.without("new")) == _comparable(state)


def _comparable(state: KubeletState) -> object:
    """Inside a group only the sum is kept: releases are credited to low NUMA ids first."""
    memory = state.managers.memory
    groups = sorted(set(memory.groups.values())) if memory is not None else []
    sums = [
        sum(amounts["memory"] for numa, amounts in memory.free.items() if mask >> numa & 1) if memory is not None else 0
        for mask in groups
    ]
    blocks = memory.blocks if memory is not None else {}
    return state.managers.cpus, state.managers.devices, groups, sums, blocks, set(state.pods), state.requested


@given(nodes(), st.lists(pods(), max_size=8))
def test_nothing_is_given_twice(some: KubeletNode, arriving: list[PodRequest]) -> None:
    state = fill(some, arriving)
    lasting = 0
    for resident in state.pods.values():
        own = 0
        for grant in resident.grant.containers:
            own |= grant.cpus.bits
        assert not own & lasting
        lasting |= own
    assert not lasting & (state.managers.cpus | some.reserved)
    assert not some.pins_cpus or lasting | state.managers.cpus | some.reserved == some.machine.bits


@given(nodes(), st.lists(pods(), max_size=4), pods())
def test_deciding_does_not_change_the_state(some: KubeletNode, before: list[PodRequest], one: PodRequest) -> None:
    state = fill(some, before)
    again = fill(some, before)
    admit_pod(state, "new", one)
    assert state == again


@given(nodes(), st.integers(1, 8))
def test_laxer_policies_admit_what_a_strict_policy_admits(some: KubeletNode, cpus: int) -> None:
    refused = [
        isinstance(admit_pod(KubeletState.empty(_with(some, policy)), "u", pod(app(cpus))), NotAdmitted)
        for policy in (BEST_EFFORT, RESTRICTED, SINGLE)
    ]
    assert refused == sorted(refused)


def _with(some: KubeletNode, policy: KubeletPolicy) -> KubeletNode:
    return replace(some, config=replace(some.config, topology_policy=policy))
