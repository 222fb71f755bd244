"""CPUs that finished init containers may still hold, where it is not known which other pods had left when the next one came."""

from koord_numa.core.kubelet.belief import Belief
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.replay import arrive
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod


def test_they_may_be_held_anyway_if_another_pod_had_left() -> None:
    """The last pod fits NUMA node 0 if the init container holds one CPU less, or if the first pod had left: then nothing is left there."""
    belief = Belief([Hypothesis(KubeletState.empty(replace(node("2x1x4x2"), ids_are_real=False)))])
    for uid, request, when in (("small", pod(app(1)), 0.0), ("tied", pod(init(2), app(1)), 1.0)):
        belief.arrive(uid, request, when)
        belief.started(uid, when)
    belief.arrive("last", pod(app(5)), 90.0)
    belief.depart("small", 100.0)
    belief.started("last", 101.0)
    assert {cpus_by_numa(one.state.managers.cpus, one.state.node) for one in belief.hypotheses} == {
        (5, 3),  # on NUMA node 1
        (0, 8),  # the first pod had left; where it had not, the CPU that is loose is free
    }
    assert all(one.loose for one in belief.hypotheses)


def test_those_of_a_pod_that_leaves_tell_nothing_apart() -> None:
    """It holds CPUs until it leaves, before the next pod comes or after: what is free then is the same."""
    belief = Belief([Hypothesis(KubeletState.empty(replace(node("2x1x4x2"), ids_are_real=False)))])
    belief.arrive("tied", pod(init(2), app(1)), 0.0)
    belief.started("tied", 1.0)
    belief.arrive("next", pod(app(1)), 90.0)
    belief.depart("tied", 100.0)
    belief.started("next", 101.0)
    (before,), (after,) = belief.last, belief.hypotheses
    assert before.loose.keys() == {"tied"}
    assert cpus_by_numa(after.state.managers.cpus, after.state.node) == (7, 8)
    assert not after.loose


def test_a_pod_hint_may_reuse_cpus_on_any_of_its_numa_nodes() -> None:
    """Of three NUMA nodes of three CPUs the pod has all nine, or seven if its containers take all over that the init container leaves."""
    on = replace(node("3x1x3x1", KubeletPolicy.RESTRICTED, KubeletScope.POD), ids_are_real=False)
    (after,) = arrive(Hypothesis(KubeletState.empty(on)), "wide", pod(init(3), app(4), app(2), app(1))).values()
    perhaps = sum(bits.bit_count() for bits in after.loose.values())
    assert after.state.managers.cpus.bit_count() + perhaps == 9 - 7


def test_without_a_hint_cpus_may_be_taken_over_on_any_numa_node() -> None:
    """The later containers need five of the six CPUs that the init container leaves: all of them may be these."""
    on = replace(node("4x1x2x2", KubeletPolicy.NONE), ids_are_real=False)
    (after,) = arrive(Hypothesis(KubeletState.empty(on)), "wide", pod(init(6), app(2), app(3))).values()
    perhaps = sum(bits.bit_count() for bits in after.loose.values())
    assert after.state.managers.cpus.bit_count() + perhaps == 16 - 6
