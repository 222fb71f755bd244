"""Laws of allocation on random nodes and sequences of pods: nothing is given twice, nothing is forgotten, the order is irrelevant."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.allocation.allocate import (
    AllocateOptions,
    allocate,
    allocate_demand,
    cpu_occupancy,
    demand_of,
    place,
)
from koord_numa.core.allocation.demand import CpuBinding, NodeRules
from koord_numa.core.allocation.numa_offers import best_shaped, offers
from koord_numa.core.allocation.numa_selection import hints, select_numa_nodes
from koord_numa.core.cpus.bind_policies import has_shape
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.numa.policies import NumaExclusivity, decide_koordinator
from koord_numa.core.objects.request import Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    NodeBindPolicy,
    NumaAllocateStrategy,
    NumaExclusive,
    NumaPolicy,
    QosClass,
    RestrictedRule,
    ScoringType,
)
from koord_numa.core.score.node_scores import Strategy
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Holding, Ledger, holding_of
from koord_numa.core.state.numa_free import Accounting, NumaAccounting, accounts, numa_occupancy
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import GI, node, pod
from tests.strategies import any_of

SHAPES = ["1x1x4x2", "2x1x3x2", "2x2x2x2", "2x2x4x1", "1x3x2x4", "5x1x2x2"]
POLICIES = [NumaPolicy.BEST_EFFORT, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE]
SCORED = [ScoringType.LEAST_ALLOCATED, ScoringType.MOST_ALLOCATED, ScoringType.BALANCED_ALLOCATION]


@st.composite
def nodes(draw: st.DrawFn) -> Inventory:
    """A node with some GPUs per NUMA node, perhaps reserved CPUs, amplification and node-wide policies."""
    made = node(draw(any_of(*SHAPES)), memory=8 * GI, reserved=draw(any_of("", "0", "1-2")))
    zones = tuple((numa, {**offer, "nvidia.com/gpu": draw(st.integers(0, 2))}) for numa, offer in made.zones)
    ratio = draw(any_of(1.0, 1.0, 1.5))
    return replace(
        made,
        zones=tuple((numa, {**offer, "cpu": int(offer["cpu"] * ratio)}) for numa, offer in zones),
        allocatable={
            **made.allocatable,
            "cpu": int(made.allocatable["cpu"] * ratio),
            "nvidia.com/gpu": sum(offer["nvidia.com/gpu"] for _, offer in zones),
        },
        ratios={"cpu": ratio},
        node_ratios={"cpu": ratio},
        bind=draw(any_of(NodeBindPolicy.NONE, NodeBindPolicy.NONE, *NodeBindPolicy)),
        strategy=draw(any_of(None, *NumaAllocateStrategy)),
    )


traits = st.fixed_dictionaries(
    {
        "policy": st.sampled_from([NumaPolicy.NONE, *POLICIES]),
        "static_kubelet": st.booleans(),
        "kubelet_whole_cores": st.booleans(),
        "never_aligned": st.booleans(),
        "cpus_by_claim": st.booleans(),
        "spans_evenly": st.booleans(),
    }
)


@st.composite
def pods(draw: st.DrawFn) -> PodRequest:
    """Pods of all kinds, most of them small enough for the nodes above."""
    cpu = draw(any_of(0, 500, 1000, 1500, 2000, 3000, 4000, 6000, 9000))
    return pod(
        cpu,
        draw(any_of(0, GI, 3 * GI + 1, 7 * GI)),
        limit=draw(any_of(None, None, cpu + 1000)),
        qos=draw(any_of(QosClass.NONE, QosClass.LS, QosClass.LSR, QosClass.LSR)),
        numa=draw(any_of(*NumaPolicy)),
        exclusive=draw(any_of(*NumaExclusive)),
        required=draw(any_of(CpuBindPolicy.NONE, *CpuBindPolicy)),
        preferred=draw(any_of(*CpuBindPolicy)),
        gpus=draw(any_of(0, 0, 1, 2)),
    )


options = st.builds(
    AllocateOptions, numa_policy=st.sampled_from(list(NumaPolicy)), scoring=st.builds(Strategy, st.sampled_from(SCORED))
)


def filled(where: Inventory, requests: list[PodRequest], given_options: AllocateOptions) -> Ledger:
    """The ledger after these pods came one after the other and stayed where they were placed."""
    ledger = Ledger()
    for index, request in enumerate(requests):
        answer = allocate(request, where, ledger, given_options)
        if isinstance(answer, Placement) and fits_node(request, where, ledger):
            ledger.hold(holding_of(Pod(PodKey("ns", str(index), str(index)), request), answer.assignment))
    return ledger


def fits_node(request: PodRequest, where: Inventory, ledger: Ledger) -> bool:
    """Check the other conditions of the plain predicate on resources."""
    wanted = holding_of(Pod(PodKey("", "", ""), request)).amounts
    return all(ledger.amounts.get(name, 0) + wanted.get(name, 0) <= there for name, there in where.allocatable.items())


@given(nodes(), st.lists(pods(), max_size=8), options)
def test_nothing_is_allocated_twice_or_overcommitted(
    where: Inventory, requests: list[PodRequest], given_options: AllocateOptions
) -> None:
    ledger = filled(where, requests, given_options)
    assert all(count == 1 for count in ledger.references.values())
    assert ledger.cpus <= where.cpus
    numa_free = accounts(where, ledger)
    for name, totals in numa_free.total.items():
        for numa, there in zip(numa_free.numa_ids, totals, strict=True):
            assert ledger.numa.get(numa, {}).get(name, 0) <= there
        assert numa_free.unclaimed(name) >= 0 or not any(h.numa for h in ledger)


@given(nodes(), st.lists(pods(), max_size=5), pods(), options)
def test_a_placement_is_what_was_asked_for(
    where: Inventory, requests: list[PodRequest], request: PodRequest, given_options: AllocateOptions
) -> None:
    ledger = filled(where, requests, given_options)
    answer = allocate(request, where, ledger, given_options)
    if isinstance(answer, Rejection):
        assert answer.message
        return
    assert where.machine is not None
    amounts = holding_of(Pod(PodKey("", "", ""), request)).amounts
    if answer.bind is not CpuBindPolicy.NONE:
        assert 1000 * len(answer.cpus) == amounts["cpu"]
        assert not answer.cpus & ledger.cpus
        if answer.bind_required:
            assert has_shape(answer.bind, where.machine, answer.cpus)
    else:
        assert not answer.cpus
    if answer.mask is not None:
        assert {numa for numa, _ in answer.numa} <= {numa for numa in where.numa_ids if answer.mask >> numa & 1}
        published = {name for _, offer in where.zones for name in offer}
        for name, amount in amounts.items():
            if name in published:
                assert sum(given.get(name, 0) for _, given in answer.numa) == amount
        for numa, given_here in answer.numa:
            if answer.cpus:
                here = answer.cpus & CpuSet(where.machine.numa_bits[numa])
                assert 1000 * len(here) == given_here.get("cpu", 0)
    if request.numa.policy is NumaPolicy.SINGLE_NUMA_NODE and len(where.zones) > 1 and amounts:
        assert answer.mask is not None
        assert answer.mask.bit_count() == 1


@given(nodes(), st.lists(pods(), max_size=5), pods(), options)
def test_who_came_first_does_not_matter(
    where: Inventory, requests: list[PodRequest], request: PodRequest, given_options: AllocateOptions
) -> None:
    ledger = filled(where, requests, given_options)
    backwards = Ledger.of(reversed(list(ledger)))
    assert allocate(request, where, ledger, given_options) == allocate(request, where, backwards, given_options)


@given(nodes(), st.lists(pods(), max_size=5), pods(), options)
def test_a_pod_that_leaves_gives_everything_back(
    where: Inventory, requests: list[PodRequest], request: PodRequest, given_options: AllocateOptions
) -> None:
    ledger = filled(where, requests, given_options)
    before = accounts(where, ledger)
    answer = allocate(request, where, ledger, given_options)
    if isinstance(answer, Placement):
        ledger.hold(holding_of(Pod(PodKey("ns", "last", "last"), request), answer.assignment))
        ledger.release("last")
        assert accounts(where, ledger) == before
        assert allocate(request, where, ledger, given_options) == answer


@given(st.lists(st.tuples(nodes(), traits, st.lists(pods(), max_size=3)), min_size=2, max_size=4), pods(), options)
def test_a_reused_demand_gets_the_result_of_a_new_one(
    cluster: list[tuple[Inventory, dict[str, Any], list[PodRequest]]],
    request: PodRequest,
    given_options: AllocateOptions,
) -> None:
    demand = demand_of(request, given_options)
    for made, others, requests in cluster:
        where = replace(made, **others)
        ledger = filled(where, requests, given_options)
        remembered = demand if isinstance(demand, Rejection) else allocate_demand(demand, where, ledger)
        assert remembered == allocate(request, where, ledger, given_options)
        for name in set(where.traits.__struct_fields__) - {"ratio", "has_zones"}:
            assert getattr(where.traits, name) == getattr(where, name)


@given(nodes(), st.lists(pods(), max_size=4), pods())
def test_the_largest_that_fits_does_fit(where: Inventory, requests: list[PodRequest], request: PodRequest) -> None:
    ledger = filled(where, requests, AllocateOptions())
    answer = allocate(request, where, ledger, AllocateOptions())
    if not isinstance(answer, Rejection) or not answer.largest or ledger.unplaced:
        return
    assert answer.reason is Reason.NUMA_AFFINITY
    amounts = dict(answer.largest)
    smaller = replace(
        request,
        containers=(replace(request.containers[0], requests=amounts, limits={**amounts, "cpu": 10**6}),),
        qos=QosClass.LS,
        numa=replace(request.numa, exclusive=NumaExclusive.PREFERRED),
    )
    if where.bind is NodeBindPolicy.NONE and where.ratios["cpu"] == 1:
        assert isinstance(allocate(smaller, where, ledger, AllocateOptions()), Placement)


HELD_ON_NUMA = st.fixed_dictionaries(
    {"cpu": st.integers(0, 40).map(lambda n: n * 100), "memory": st.integers(0, 4 * GI)}
)


@st.composite
def held_amounts(draw: st.DrawFn, where: Inventory) -> Ledger:
    """Any ledger, also one that no allocation would have made: amounts and CPUs need not agree."""
    assert where.machine is not None
    free = list(where.cpus)
    holdings = []
    for index in range(draw(st.integers(0, 4))):
        some = draw(st.sets(st.sampled_from(free), max_size=6))
        numa = draw(
            st.dictionaries(
                st.sampled_from(where.numa_ids),
                HELD_ON_NUMA,
                max_size=2,
            )
        )
        holdings.append(
            Holding(PodKey("ns", str(index), str(index)), {}, CpuSet.of(some), numa=tuple(sorted(numa.items())))
        )
        free = [cpu for cpu in free if cpu not in some] or free
    return Ledger.of(holdings)


@given(nodes(), st.data(), st.sampled_from(list(Accounting)))
def test_the_arithmetic_election_equals_the_merge_of_all_hints(
    where: Inventory, data: st.DataObject, accounting: Accounting
) -> None:
    ledger = data.draw(held_amounts(where))
    cpu = data.draw(any_of(0, 1000, 2000, 4000, 6000))
    binding = data.draw(
        st.sampled_from(
            [None, CpuBinding(CpuBindPolicy.SPREAD_BY_PCPUS), CpuBinding(CpuBindPolicy.SPREAD_BY_PCPUS, required=True)]
        )
    )
    wanted = {
        "cpu": cpu,
        "memory": data.draw(any_of(0, GI, 9 * GI)),
        "nvidia.com/gpu": data.draw(st.integers(0, 2)),
    }
    rules = NodeRules(
        amounts={name: amount for name, amount in wanted.items() if amount},
        binding=binding if cpu else None,
        policy=data.draw(any_of(*POLICIES)),
        scoring=Strategy(data.draw(any_of(*SCORED))),
        accounting=accounting,
        ratio=where.ratios["cpu"],
        restricted=data.draw(any_of(*RestrictedRule)),
    )
    room = offers(rules, accounts(where, ledger, NumaAccounting(accounting)), cpu_occupancy(ledger))
    wish = data.draw(any_of(NumaExclusive.NONE, NumaExclusive.REQUIRED))
    exclusivity = NumaExclusivity(wish, numa_occupancy(ledger, where.machine))
    merged = decide_koordinator(rules.policy, [hints(rules, room, exclusivity)], room.mask, exclusivity)
    elected = select_numa_nodes(rules, room, exclusivity)
    if rules.policy is NumaPolicy.BEST_EFFORT and _touches_protected(merged.hint.mask, exclusivity):
        # Required is a demand here, also of a pod that would take any set otherwise.
        assert not (elected.admitted and _touches_protected(elected.hint.mask, exclusivity))
        return
    if any(room.lacking.values()):
        # Sets with NUMA nodes that have nothing of some resource: test_asymmetric.py has their law.
        assert elected.admitted or not merged.admitted
        return
    assert elected.admitted == merged.admitted
    if merged.admitted:
        if binding is not None and not binding.required and elected.hint.mask != merged.hint.mask:
            # The preferred CPU shape decides between sets of one size before Koordinator's order does.
            assert elected.hint.mask is not None
            assert merged.hint.mask is not None
            assert elected.hint.mask.bit_count() == merged.hint.mask.bit_count()
            assert elected.hint.mask in best_shaped([elected.hint.mask, merged.hint.mask], rules, room)
            return
        assert elected.hint == merged.hint._replace(score=elected.hint.score)  # a set that is chosen needs no score
        if elected.hint.preferred and elected.hint.mask is not None:
            assert isinstance(place(rules, room, Placement(where.node, mask=elected.hint.mask)), Placement)


def _touches_protected(mask: int | None, exclusivity: NumaExclusivity) -> bool:
    """A set of several NUMA nodes with one that SingleNUMANode pods keep for themselves."""
    several = mask is None or mask & (mask - 1) != 0
    return several and exclusivity.wish is NumaExclusive.REQUIRED and bool((mask or -1) & exclusivity.occupancy.single)
