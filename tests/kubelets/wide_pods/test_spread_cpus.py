"""Pods whose CPUs come from several NUMA nodes: where they may be, and in which shares, a yes to the next pod holds."""

from typing import Any

import pytest

from koord_numa.core.cpus.kubelet_options import OVER_NUMA
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet import variants
from koord_numa.core.kubelet.prediction import TOO_MANY
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from tests.kubelets.node_life import NodeLife
from tests.kubelets.strategies import GIB, container


def life(shape: Shape, *options: str, reserved: tuple[int, ...], hidden: bool = False) -> NodeLife:
    config = KubeletConfig(
        topology_policy=KubeletPolicy.RESTRICTED,
        topology_scope=KubeletScope.CONTAINER,
        cpu_policy="static",
        cpu_options=dict.fromkeys(options, True),
        memory_policy="None",
        reserved_cpus=CpuSet.of(reserved),
    )
    kept = CpuSet.of(reserved)
    return NodeLife(NodeDescription("n", shape.build(), Style.KUBELET, config, reserved=kept, hidden=hidden))


def pod(*cpus: int, init: int = 0) -> dict[str, Any]:
    apps = [container(f"app{number}", count, 1) for number, count in enumerate(cpus)]
    return {"containers": apps, **({"initContainers": [container("init", init, 1)]} if init else {})}


def numa_nodes(one: NodeLife) -> list[set[int]]:
    machine = one.description.hardware.machine
    return [{cpu.id for cpu in machine.cpus if cpu.numa == numa} for numa in machine.numa_ids]


def test_a_wide_pod_after_a_departure_is_on_other_numa_nodes() -> None:
    """The pod of 7 is foreseen on NUMA nodes 2 and 3 and goes to 0 and 1, so that 8 CPUs are free on no two NUMA nodes."""
    one = life(Shape(4, 1, 4, 1, 16 * GIB), reserved=(15,))
    one.place(pod(6))
    one.admit()
    one.hear()
    one.place(pod(7))
    one.end(0)
    one.admit()
    one.hear()
    assert not one.refusals
    assert isinstance(one.ask(pod(8)), Rejection)
    one.hear()
    assert isinstance(one.ask(pod(8)), Rejection)
    assert isinstance(one.ask(pod(7)), Placement)


def test_a_pod_against_partial_evidence_explores_the_option() -> None:
    """A pod of 12 leaves 6 CPUs of one of two NUMA nodes, or 2 and 4 if the option is on, which is not published."""
    one = life(Shape(2, 1, 10, 1, 16 * GIB), reserved=(0,), hidden=True)
    for count in (1, 12):  # the first one shows that cores may be split
        one.place(pod(count))
        one.admit()
        one.hear()
    answer = one.ask(pod(5, init=3))
    assert not isinstance(answer, Rejection)
    assert OVER_NUMA in answer.explores


def test_the_option_is_explored_for_shares_of_earlier_pods() -> None:
    """
    If the option is on, the pod of 16 leaves 4 and 3 CPUs of two NUMA nodes with 12 and 11, both pods of 6 take the third one with 12,
    and a second pod of 16 has no room. That is followed beside packed CPUs, by which a pod of 6 is on one of the first two.
    """
    one = life(Shape(4, 1, 6, 2, 16 * GIB), reserved=(9, 20), hidden=True)
    assert [len(cpus - {9, 20}) for cpus in numa_nodes(one)] == [12, 11, 12, 11]
    for count in (16, 6, 6):
        one.place(pod(count))
        one.admit()
        one.hear()
    answer = one.ask(pod(16))
    assert isinstance(answer, Placement)
    assert OVER_NUMA in answer.explores


def test_a_pod_waits_where_shares_leave_room_in_too_many_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    one = life(Shape(2, 1, 8, 1, 16 * GIB), OVER_NUMA, reserved=(0, 1))
    one.place(pod(10))
    one.admit()
    one.hear()
    assert isinstance(one.ask(pod(1)), Placement)
    monkeypatch.setattr(variants, "MOST_LOOKED_AT", 0)
    answer = one.ask(pod(1))
    assert isinstance(answer, Rejection)
    assert answer.detail == TOO_MANY
