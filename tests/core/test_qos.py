"""Koordinator's classes: derivation, and whose CPUs are its own."""

import pytest

from koord_numa.core.objects.request import Container, NumaSpec, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, NumaPolicy, PriorityClass, QosClass
from koord_numa.core.pod_resources import (
    bursts,
    default_qos,
    is_exclusive_by_policy,
    may_use_cpuset,
    pinned_by_static_kubelet,
    priority_class,
)
from tests.tables import each_row

SINGLE = NumaSpec(NumaPolicy.SINGLE_NUMA_NODE)


def container(request: int, limit: int | None, kind: ContainerKind = ContainerKind.APP) -> Container:
    limits = {} if limit is None else {"cpu": limit, "memory": 1}
    return Container("c", kind, {"cpu": request, "memory": 1}, limits)


GUARANTEED = (container(2000, 2000),)
BURSTABLE = (container(2000, 4000),)


@each_row(
    ("pod", "qos"),
    [
        pytest.param(PodRequest(BURSTABLE, qos=QosClass.LSE), QosClass.LSE, id="label"),
        pytest.param(PodRequest(GUARANTEED), QosClass.LSR, id="guaranteed"),
        pytest.param(PodRequest(BURSTABLE), QosClass.LS, id="burstable"),
        pytest.param(PodRequest(), QosClass.BE, id="best-effort"),
    ],
)
def test_default_qos(pod: PodRequest, qos: QosClass) -> None:
    assert default_qos(pod) is qos


@each_row(
    ("pod", "band"),
    [
        pytest.param(PodRequest(priority_class=PriorityClass.MID, priority=9500), PriorityClass.MID, id="label"),
        pytest.param(PodRequest(priority=9000), PriorityClass.PROD, id="prod-from"),
        pytest.param(PodRequest(priority=9999), PriorityClass.PROD, id="prod-to"),
        pytest.param(PodRequest(priority=7500), PriorityClass.MID, id="mid"),
        pytest.param(PodRequest(priority=5000), PriorityClass.BATCH, id="batch"),
        pytest.param(PodRequest(priority=3999), PriorityClass.FREE, id="free"),
        pytest.param(PodRequest(priority=10000), PriorityClass.BATCH, id="between-bands-best-effort"),
        pytest.param(PodRequest(GUARANTEED, priority=10000), PriorityClass.PROD, id="between-bands-guaranteed"),
        pytest.param(PodRequest(qos=QosClass.SYSTEM), PriorityClass.PROD, id="system"),
    ],
)
def test_priority_class(pod: PodRequest, band: PriorityClass) -> None:
    assert priority_class(pod) is band


@each_row(
    ("pod", "may"),
    [
        pytest.param(PodRequest(GUARANTEED), False, id="guaranteed-without-label-is-ls"),
        pytest.param(PodRequest(GUARANTEED, qos=QosClass.LSR), True, id="lsr"),
        pytest.param(PodRequest(GUARANTEED, qos=QosClass.LSE, priority=10000), True, id="lse-between-bands"),
        pytest.param(PodRequest(GUARANTEED, qos=QosClass.LSR, priority=7500), False, id="lsr-mid"),
        pytest.param(PodRequest(GUARANTEED, qos=QosClass.LS), False, id="ls"),
    ],
)
def test_may_use_cpuset(pod: PodRequest, may: bool) -> None:
    assert may_use_cpuset(pod) is may


@each_row(
    ("pod", "own"),
    [
        pytest.param(PodRequest((container(1000, 1000),), numa=SINGLE), True, id="limit-equals-request"),
        pytest.param(PodRequest((container(1000, 2000),), numa=SINGLE), False, id="limit-above-request"),
        pytest.param(PodRequest((container(1500, 1500),), numa=SINGLE), False, id="fraction"),
        pytest.param(PodRequest((container(1000, None),), numa=SINGLE), False, id="no-limit"),
        pytest.param(PodRequest((container(1000, 1000),)), False, id="no-policy"),
        pytest.param(PodRequest((container(1000, 1000),), numa=SINGLE, qos=QosClass.LS), False, id="labelled-ls"),
        pytest.param(
            PodRequest((container(1000, 1000),), numa=NumaSpec(NumaPolicy.RESTRICTED)), False, id="another-policy"
        ),
    ],
)
def test_exclusive_by_single_numa_policy(pod: PodRequest, own: bool) -> None:
    assert is_exclusive_by_policy(pod) is own


@each_row(
    ("pod", "burst"),
    [
        pytest.param(PodRequest(GUARANTEED), False, id="equal"),
        pytest.param(PodRequest(BURSTABLE), True, id="above"),
        pytest.param(PodRequest((container(1000, None),)), False, id="no-limit"),
        pytest.param(PodRequest((container(1, 9, ContainerKind.INIT), *GUARANTEED)), False, id="init-does-not-matter"),
        pytest.param(PodRequest(GUARANTEED, pod_requests={"cpu": 1}, pod_limits={"cpu": 2}), True, id="pod-level"),
    ],
)
def test_bursts(pod: PodRequest, burst: bool) -> None:
    assert bursts(pod) is burst


@each_row(
    ("pod", "pinned"),
    [
        pytest.param(PodRequest(GUARANTEED), (2,), id="whole"),
        pytest.param(PodRequest(GUARANTEED, qos=QosClass.LS), (2,), id="the-label-does-not-matter"),
        pytest.param(PodRequest((container(1500, 1500),)), (), id="fraction"),
        pytest.param(PodRequest((container(1500, 1500), container(1000, 1000))), (1,), id="one-whole-container"),
        pytest.param(PodRequest((container(3000, 3000, ContainerKind.INIT), *GUARANTEED)), (3, 2), id="init-too"),
        pytest.param(PodRequest(BURSTABLE), (), id="burstable"),
    ],
)
def test_pinned_by_a_static_kubelet(pod: PodRequest, pinned: tuple[int, ...]) -> None:
    assert pinned_by_static_kubelet(pod) == pinned
