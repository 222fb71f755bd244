"""States beside a hypothesis: pods whose CPUs are spread over NUMA nodes may hold them on other ones."""

import pytest

from koord_numa.core.kubelet.admit import DryRunAdmitted, dry_run
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.hypothesis import SOMEONE, Hypothesis, cpus_by_numa, may_lie_otherwise
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.kubelet.variants import variants
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod, sidecar
from tests.tables import each_row


def _node() -> KubeletNode:
    """Four NUMA nodes of 8 CPUs of which only the counts are known."""
    return replace(node("4x1x4x2", policy=KubeletPolicy.BEST_EFFORT), ids_are_real=False)


def _with(before: Hypothesis, uid: str, request: PodRequest) -> Hypothesis:
    """With this pod, whose later containers get as much as can be of what its init containers had, on several NUMA nodes if it is wide."""
    answer = dry_run(before.state, request, before.trust, CpuReuse.MOST)
    assert isinstance(answer, DryRunAdmitted)
    wide = any(may_lie_otherwise(each, before.state.node) for each in answer.grant.containers)
    state = before.state.with_pod(uid, request, answer.grant, answer.managers)
    return replace(before, state=state, spread=before.spread | {uid} if wide else before.spread)


def _held(one: Hypothesis) -> int:
    """Of all CPUs those that are not free."""
    return (one.state.node.machine.bits & ~one.state.managers.cpus).bit_count()


@each_row(
    "request_",
    [
        pytest.param(pod(init(10), app(10)), id="the app has all CPUs of its init container"),
        pytest.param(pod(init(12), app(10)), id="the init container had more"),
        pytest.param(pod(init(10), init(12), app(9)), id="two init containers"),
        pytest.param(pod(init(10), sidecar(2), app(9)), id="a sidecar takes some"),
    ],
)
def test_cpus_that_containers_share_move_once(request_: PodRequest) -> None:
    """A pod with moved CPUs holds the same number, so does each of its containers, and no other pod has these CPUs."""
    before = _with(_with(Hypothesis(KubeletState.empty(_node())), "other", pod(app(3))), "wide", request_)
    moved = list(variants(before))[1:]
    assert moved
    for one in moved:
        assert _held(one) == _held(before)
        sizes = [len(each.cpus) for each in one.state.pods["wide"].grant.containers]
        assert sizes == [len(each.cpus) for each in before.state.pods["wide"].grant.containers]
        union = 0
        for each in one.state.pods["wide"].grant.containers:
            union |= each.cpus.bits
        assert not union & one.state.managers.cpus
        assert not union & one.state.pods["other"].grant.containers[0].cpus.bits
        assert one.state.without("wide").managers.cpus == before.state.without("wide").managers.cpus


def test_all_that_is_left_can_be_asked_for_wherever_cpus_lie() -> None:
    """An init container and its app hold 10 CPUs together, not 10 each."""
    before = _with(Hypothesis(KubeletState.empty(_node())), "wide", pod(init(10), app(10)))
    for one in variants(before):
        assert isinstance(dry_run(one.state, pod(app(22)), one.trust), DryRunAdmitted)


def test_loose_cpus_may_be_free_on_each_numa_node_alone() -> None:
    """However many there are: an init container may go to any of them."""
    on = replace(node("8x1x2x1", policy=KubeletPolicy.RESTRICTED), ids_are_real=False)
    state = KubeletState.empty(on)
    loose = sum(bits & -bits for bits in on.machine.numa_bits.values())
    one = Hypothesis(
        replace(state, managers=replace(state.managers, cpus=state.managers.cpus & ~loose)), loose={SOMEONE: loose}
    )
    found = [cpus_by_numa(each.state.managers.cpus, on) for each in variants(one)]
    assert found[:2] == [(1,) * 8, (2,) * 8]
    assert sorted(found[2:], reverse=True) == [tuple(1 + (at == here) for at in range(8)) for here in range(8)]
