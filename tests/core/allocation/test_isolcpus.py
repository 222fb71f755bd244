"""Pods that prefer CPUs which the kernel isolates: all of their CPUs are isolated, or the choice is the usual one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey, PodRequest
from koord_numa.core.objects.verdicts import Exclusivity, Placement
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy
from koord_numa.core.state.ledger import Holding
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import BEST_EFFORT, FULL, LSR, SINGLE, SPREAD, node, place, pod
from tests.tables import each_row

PCPU = CpuExclusivePolicy.PCPU_LEVEL


def isolated(cpus: int, **fields: Any) -> PodRequest:
    request = pod(1000 * cpus, qos=LSR, **({"numa": SINGLE} | fields))
    return replace(request, bind=replace(request.bind, isolated=True))


def picked(request: PodRequest, isolcpus: str, *held: Holding) -> str:
    """The CPUs on two NUMA nodes of 4 cores with 2 threads: siblings are 0-1, 2-3, and so on."""
    found = place(request, node(isolated=CpuSet.parse(isolcpus)), *held)
    assert isinstance(found, Placement), found
    return str(found.cpus)


@each_row(
    ("request_", "isolcpus", "cpus"),
    [
        pytest.param(isolated(2), "4-7", "4-5", id="isolated ones"),
        pytest.param(pod(2000, qos=LSR, numa=SINGLE), "4-7", "0-1", id="without the wish"),
        pytest.param(isolated(6), "4-7", "0-5", id="too few: no mixture"),
        pytest.param(isolated(2), "5,7", "0-1", id="halves of cores"),
        pytest.param(isolated(2, required=SPREAD), "5,7", "5,7", id="halves are wanted"),
        pytest.param(isolated(2, required=FULL), "5-7", "6-7", id="a required shape"),
        pytest.param(isolated(10, numa=BEST_EFFORT), "4-7,12-15", "4-13", id="per NUMA node"),
    ],
)
def test_choice(request_: PodRequest, isolcpus: str, cpus: str) -> None:
    assert picked(request_, isolcpus) == cpus


def test_the_exclusive_policy_comes_first() -> None:
    other = pod(1000, qos=LSR, numa=SINGLE, cpu_exclusive=PCPU)
    first = place(other, node("1x1x4x2", isolated=CpuSet.parse("0-1")))
    assert isinstance(first, Placement)
    held = Holding(PodKey("ns", "a", "a"), {"cpu": 1000}, first.cpus, numa=first.numa, exclusive=PCPU, request=other)
    found = place(isolated(1, cpu_exclusive=PCPU), node("1x1x4x2", isolated=CpuSet.parse("0-1")), held)
    assert isinstance(found, Placement)
    assert (str(found.cpus), found.exclusivity) == ("2", Exclusivity.HONOURED)


@given(st.integers(1, 8), st.integers(0, 0xFFFF), st.sampled_from([FULL, SPREAD]), st.booleans())
def test_the_wish_decides_nothing_else(cpus: int, bits: int, shape: CpuBindPolicy, required: bool) -> None:
    """Same NUMA nodes and shape as without it; the CPUs are all isolated, or those without it."""
    fields: dict[str, Any] = {"required" if required else "preferred": shape}
    where = node(isolated=CpuSet(bits))
    with_wish, without = (
        place(request, where)
        for request in (isolated(cpus, **fields), pod(1000 * cpus, qos=LSR, numa=SINGLE, **fields))
    )
    if not isinstance(without, Placement):
        assert with_wish == without
        return
    assert isinstance(with_wish, Placement)
    if with_wish.cpus != without.cpus:
        assert with_wish.cpus <= CpuSet(bits)
    assert replace(with_wish, cpus=without.cpus) == without
