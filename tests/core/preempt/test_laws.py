"""Laws for every choice of victims, on random nodes."""

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.constraints import DisruptionBudget
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Alignment
from koord_numa.core.objects.vocabulary import NumaPolicy
from koord_numa.core.preempt.dry_run import DryRun, PreemptionNode
from koord_numa.core.preempt.victims import PreemptionCandidate, select_victims_on_node, still_right
from koord_numa.core.scheduling.filters import ScoredPlacement, evaluate
from koord_numa.core.scheduling.request import SchedulingRequest
from tests.core.preempt.preemption_nodes import ask, budget, owned_site, running, terms
from tests.strategies import any_of

SHAPES = {"1x2x4x1": 4, "2x1x2x2": 4, "1x4x2x2": 4}
"""Machines, and the CPUs of each of their NUMA nodes: ids are consecutive there."""


@st.composite
def crowded(draw: st.DrawFn) -> tuple[str, list[Pod]]:
    """A machine and pods on it, each with CPUs of one NUMA node."""
    shape = draw(st.sampled_from(sorted(SHAPES)))
    per_numa = SHAPES[shape]
    sockets, numa_each, _, _ = map(int, shape.split("x"))
    pods = []
    for numa in range(sockets * numa_each):
        owners = draw(st.lists(st.integers(0, 3), min_size=per_numa, max_size=per_numa))
        for owner in sorted({owner for owner in owners if owner}):
            cpus = [numa * per_numa + index for index, it in enumerate(owners) if it == owner]
            pods.append(
                running(
                    f"p{numa}{owner}",
                    ",".join(map(str, cpus)),
                    draw(st.integers(0, 4)),
                    numa=numa,
                    created=draw(any_of(0.0, 1.0, 2.0)),
                    mirror=draw(st.integers(0, 9)) == 0,
                    deleting=draw(st.integers(0, 9)) == 0,
                )
            )
    return shape, pods


asks = st.builds(
    ask, st.integers(1, 8), st.integers(1, 5), st.sampled_from([policy.value for policy in NumaPolicy])
)  # CPUs, priority, NUMA policy

budgets = st.lists(
    st.builds(budget, st.just("pdb"), st.integers(0, 2), st.sampled_from(["p01", "p11", "p02"])), max_size=2
)


def cleared(wants: SchedulingRequest, site: PreemptionNode) -> PreemptionCandidate | None:
    return select_victims_on_node(wants, site, terms())


@given(crowded(), asks)
def test_without_awaited_pods_it_fits_and_with_one_it_does_not(
    node: tuple[str, list[Pod]], wants: SchedulingRequest
) -> None:
    shape, pods = node
    found = cleared(wants, owned_site(*pods, shape=shape))
    if found is None:
        return
    rest = [pod for pod in pods if pod.key.uid not in found.awaited]
    after = evaluate(wants, owned_site(*rest, shape=shape).seen, terms().rules)
    assert isinstance(after, ScoredPlacement)
    assert after.placement == found.placement
    if wants.request.numa.policy is NumaPolicy.SINGLE_NUMA_NODE:
        assert found.placement.alignment is Alignment.ALIGNED
    for stays in [pod for pod in pods if pod.key.uid in found.awaited]:
        less = evaluate(wants, owned_site(*rest, stays, shape=shape).seen, terms().rules)
        aligned_wish = isinstance(less, ScoredPlacement) and less.placement.alignment is not Alignment.ALIGNED
        assert not isinstance(less, ScoredPlacement) or (
            aligned_wish and found.placement.alignment is Alignment.ALIGNED
        )


@given(crowded(), asks)
def test_only_evictable_pods_of_lower_priority_are_victims(
    node: tuple[str, list[Pod]], wants: SchedulingRequest
) -> None:
    shape, pods = node
    found = cleared(wants, owned_site(*pods, shape=shape))
    for victim in found.victims if found is not None else ():
        assert victim.request.priority < wants.request.priority
        assert not victim.mirror
        assert not victim.deleting


@given(crowded(), asks, st.data())
def test_the_order_in_which_pods_are_known_does_not_matter(
    node: tuple[str, list[Pod]], wants: SchedulingRequest, data: st.DataObject
) -> None:
    shape, pods = node
    shuffled = data.draw(st.permutations(pods))
    assert cleared(wants, owned_site(*pods, shape=shape)) == cleared(wants, owned_site(*shuffled, shape=shape))


@given(crowded(), asks)
def test_if_nothing_helps_then_not_even_an_empty_node_does(
    node: tuple[str, list[Pod]], wants: SchedulingRequest
) -> None:
    shape, pods = node
    site = owned_site(*pods, shape=shape)
    if cleared(wants, site) is not None:
        return
    priority = wants.request.priority
    # Of pods that are leaving only those of lower priority are counted on, unless all that is needed is to wait for them.
    stay = [pod for pod in pods if pod.request.priority >= priority or (pod.mirror and not pod.deleting)]
    fits_now = isinstance(evaluate(wants, site.seen, terms().rules), ScoredPlacement)
    fits_then = isinstance(evaluate(wants, owned_site(*stay, shape=shape).seen, terms().rules), ScoredPlacement)
    assert fits_now or not fits_then


@given(crowded(), asks, budgets)
def test_budgets_change_who_goes_but_not_whether_it_is_possible(
    node: tuple[str, list[Pod]], wants: SchedulingRequest, some: list[DisruptionBudget]
) -> None:
    shape, pods = node
    site = owned_site(*pods, shape=shape)
    free, spared = cleared(wants, site), select_victims_on_node(wants, site, terms(*some))
    assert (free is None) == (spared is None)
    if spared is not None:
        assert spared.violations <= len(spared.victims)


@given(crowded(), asks)
def test_found_states_stay_right_while_pods_leave(node: tuple[str, list[Pod]], wants: SchedulingRequest) -> None:
    shape, pods = node
    site = owned_site(*pods, shape=shape)
    found = cleared(wants, site)
    if found is None:
        return
    assert still_right(wants, site, terms(), found)
    gone: set[str] = set()
    for victim in found.victims[:-1]:
        gone.add(victim.key.uid)
        rest = [pod for pod in pods if pod.key.uid not in gone]
        assert still_right(wants, owned_site(*rest, shape=shape), terms(), found)


@given(crowded(), asks, st.data())
def test_a_pod_rejected_by_amounts_stays_without_a_place(
    node: tuple[str, list[Pod]], wants: SchedulingRequest, data: st.DataObject
) -> None:
    shape, pods = node
    trial = DryRun(wants, owned_site(*pods, shape=shape), terms())
    uids = [pod.key.uid for pod in pods]
    trial.send_away(uids)
    order = data.draw(st.permutations(uids))
    kept: list[str] = []
    for uid in order:
        if trial.lacks_amounts_with([uid]):
            kept.append(uid)
        else:
            trial.let_back([uid])
    for uid in kept:
        trial.let_back([uid])
        assert trial.answer() is None
        trial.send_away([uid])
        assert trial.lacks_amounts_with([uid])
