"""A node that was in use when it was first seen: what its pods hold together tells in which states its kubelet may be."""

from random import Random

from koord_numa.core.kubelet.belief import Belief
from koord_numa.core.kubelet.hypothesis import SOMEONE, Hypothesis, cpus_by_numa
from koord_numa.core.kubelet.inferred_state import Block, groupings, used_starts
from koord_numa.core.kubelet.node_config import NodeConfig
from koord_numa.core.kubelet.replay import Arrival, advance
from koord_numa.core.kubelet.state import STEP_COUNT, KubeletNode, KubeletState, OnTruncation, TooManyWays
from koord_numa.core.kubelet.variants import without
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.request import Container, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner, KubeletPolicy, KubeletScope
from koord_numa.core.resources import MILLI
from tests.core.kubelet.nodes import GI, ROOMY, app, finished, init, pod
from tests.core.kubelet.starts.lived import lived
from tests.tables import each_row

CPUS = 8
MEMORY = 16 * GI


def _zones(numas: int, state: KubeletState | None = None) -> tuple[Zone, ...]:
    """As resource-topology-exporter counts: blocks over several NUMA nodes in full on each, init containers not at all."""
    free = [{"cpu": CPUS * MILLI, "memory": MEMORY} for _ in range(numas)]
    whole = [dict(amounts) for amounts in free]
    for resident in state.pods.values() if state is not None else ():
        for one in resident.grant.containers:
            if state is None or one.kind is ContainerKind.INIT:
                continue
            for numa, count in enumerate(cpus_by_numa(one.cpus.bits, state.node)):
                free[numa]["cpu"] -= count * MILLI
            for block in one.memory:
                for numa in range(numas):
                    if block.mask >> numa & 1:
                        free[numa]["memory"] = max(0, free[numa]["memory"] - block.amount)
    return tuple(Zone(numa, whole[numa], whole[numa], free[numa]) for numa in range(numas))


def _config(policy: KubeletPolicy, scope: KubeletScope, zones: tuple[Zone, ...]) -> NodeConfig:
    kubelet = KubeletConfig(topology_policy=policy, topology_scope=scope, cpu_policy="static")
    topology = NodeResourceTopology(
        "n", CpuOwner.KUBELET, zones=zones, kubelet=kubelet, fingerprint_method="with-exclusive-resources"
    )
    return NodeConfig.of(topology, ROOMY)


def _memory(state: KubeletState) -> tuple[object, ...]:
    """Return the values that decide about further blocks: free bytes of every group, and the groups."""
    table = state.managers.memory
    assert table is not None
    sums = {
        mask: sum(table.free[n]["memory"] for n in table.groups if table.groups[n] == mask)
        for mask in table.groups.values()
    }
    return tuple(table.groups.values()), tuple(sorted(sums.items()))


def _agrees(one: Hypothesis, truth: KubeletState) -> bool:
    """
    Return true if the truth has the same memory, and on every NUMA node no fewer CPUs than the hypothesis and at most the loose ones more.
    """
    free, true = (cpus_by_numa(state.managers.cpus, truth.node) for state in (one.state, truth))
    loose = cpus_by_numa(one.loose.get(SOMEONE, 0), truth.node)
    return _memory(one.state) == _memory(truth) and all(
        low <= real <= low + open_ for low, real, open_ in zip(free, true, loose, strict=True)
    )


PARTED = (58, 128, 224)
"""Lives in which best-effort gave a container other NUMA nodes than the init container of equal size before it."""

CROWDED = (103,)
"""Lives in which one of two pods that leave has no place if the other one was where it was not."""

POLICIES = [KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED, KubeletPolicy.BEST_EFFORT]


@each_row("scope", [KubeletScope.CONTAINER, KubeletScope.POD])
@each_row("policy", POLICIES)
@each_row("seed", [*range(12), *PARTED, *CROWDED])
def test_the_truth_is_among_the_initial_states_of_a_used_node(
    seed: int, policy: KubeletPolicy, scope: KubeletScope
) -> None:
    """Also after pods have left, each of which may have been on any NUMA node with as much in use."""
    dice = Random(seed)
    on = _config(policy, scope, _zones(3)).node
    truth, requests = _lived(on, dice)
    starts = used_starts(_config(policy, scope, _zones(3, truth)), requests, {})
    if not starts:
        return  # too many states are possible: the node is not followed
    assert any(_agrees(one, truth) for one in starts)
    gone = dice.sample(sorted(requests), min(len(requests), 2))
    left = truth
    for uid in gone:
        left = left.without(uid)
    try:
        after = [way for one in starts for way in without(one, gone)]
    except TooManyWays:
        return
    if policy is not KubeletPolicy.BEST_EFFORT:  # which may have put a pod on several NUMA nodes
        assert any(_agrees(one, left) for one in after)


def _lived(on: KubeletNode, dice: Random) -> tuple[KubeletState, dict[str, PodRequest]]:
    """A kubelet that pods have come to and gone from."""
    return lived(KubeletState.empty(on), 12, _containers, dice)


def _containers(dice: Random) -> list[Container]:
    containers = [app(dice.randint(1, 5), memory=dice.randint(1, 20) * GI // 2)]
    if dice.random() < 0.3:
        containers.insert(0, init(dice.randint(1, 3)))
    if dice.random() < 0.3:
        containers.append(app(1, "second", memory=GI))
    return containers


def _two(*used: int) -> NodeConfig:
    zones = tuple(
        Zone(numa, {"cpu": 8 * MILLI}, {"cpu": 8 * MILLI}, {"cpu": (8 - count) * MILLI})
        for numa, count in enumerate(used)
    )
    return _config(KubeletPolicy.SINGLE_NUMA_NODE, KubeletScope.CONTAINER, zones)


def _free(belief: Belief) -> set[tuple[int, ...]]:
    return {cpus_by_numa(one.state.managers.cpus, one.state.node) for one in belief.hypotheses}


def test_an_unlocated_departure_counts_until_it_matters() -> None:
    """4 CPUs left NUMA node 0 or 1: a pod of 5 goes to 1 only if they left there, and to 0 only if they left there."""
    frame = _two(6, 5)
    starts = used_starts(frame, {"a": pod(app(4)), "b": pod(app(4)), "c": pod(app(3))}, {})
    belief = Belief(starts, on_truncation=OnTruncation.WAIT)
    assert _free(belief) == {(2, 3)}
    belief.depart("a", 10.0)
    assert _free(belief) == {(2, 3)}
    assert all(one.leaving == {"a"} for one in belief.hypotheses)
    belief.arrive("d", pod(app(5)), 20.0)
    belief.started("d", 21.0)
    assert _free(belief) == {(1, 3), (2, 2)}
    zones = _two(7, 5).topology.zones
    assert finished(belief.report([["b", "c", "d"]], zones, lambda _: True, 30.0, certain=True)) is not None
    assert _free(belief) == {(1, 3)}


def test_pods_that_came_after_the_topology_are_replayed() -> None:
    belief = Belief(used_starts(_two(6, 0), {"a": pod(app(6))}, {}), on_truncation=OnTruncation.WAIT)
    belief.resume([Arrival("b", pod(app(4)), 5.0, 6.0), Arrival("c", pod(app(2)), 7.0)], {})
    assert _free(belief) == {(0, 4)}


def test_use_that_the_pods_do_not_add_up_to_is_not_begun_with() -> None:
    assert not used_starts(_two(6, 0), {"a": pod(app(4))}, {})


def test_cpus_of_init_containers_may_be_held_beside_the_pod() -> None:
    """The pod of 5 may hold 3 more where it is, which is not on the NUMA node that is empty."""
    starts = used_starts(_two(5, 0), {"a": pod(init(3), app(5))}, {})
    assert [cpus_by_numa(one.state.managers.cpus, one.state.node) for one in starts] == [(0, 8)]
    assert [cpus_by_numa(one.loose[SOMEONE], one.state.node) for one in starts] == [(3, 0)]


def test_cpus_of_init_containers_are_held_without_app_cpus() -> None:
    """No topology shows the pod, which may be on either NUMA node: shared CPUs are not the init container's."""
    starts = used_starts(_two(5, 0), {"a": pod(app(5))}, {"b": pod(init(3), app(1.5))})
    assert [cpus_by_numa(one.state.managers.cpus, one.state.node) for one in starts] == [(0, 5)]
    assert [cpus_by_numa(one.loose[SOMEONE], one.state.node) for one in starts] == [(3, 3)]


def test_memory_counted_in_full_tells_groups() -> None:
    """Equal use of two NUMA nodes is one block on both, or one on each, by what the pods hold in all."""
    supply = {numa: {"memory": 10} for numa in range(3)}
    used = {0: {"memory": 6}, 1: {"memory": 6}, 2: {"memory": 2}}

    def found(*sizes: int) -> list[dict[int, int]]:
        blocks = [Block({"memory": size}, may_span=True, must_span=False) for size in sizes]
        return [dict(each.groups) for each in groupings(used, supply, blocks, in_full=True) or ()]

    assert found(6, 6, 2) == [{0: 1, 1: 2, 2: 4}]
    assert found(6, 2) == [{0: 3, 1: 3, 2: 4}]
    assert found(5, 2) == []


def test_memory_filled_up_leaves_open_where_a_block_reaches() -> None:
    supply = {numa: {"memory": 10} for numa in range(2)}
    blocks = [Block({"memory": 6}, may_span=True, must_span=False)]
    found = groupings({0: {"memory": 6}, 1: {}}, supply, blocks, in_full=False)
    assert found is not None
    assert [dict(each.groups) for each in found] == [{0: 1, 1: 2}, {0: 3, 1: 3}]


def test_groups_are_found_beside_many_that_hold_too_much() -> None:
    """Eight NUMA nodes can be grouped in 4,140 ways, and more than 2,000 are not tried."""
    supply = {numa: {"memory": 10} for numa in range(8)}
    blocks = [Block({"memory": 6}, may_span=True, must_span=False)] * 8
    found = groupings({numa: {"memory": 6} for numa in range(8)}, supply, blocks, in_full=True)
    assert found is not None
    assert [dict(each.groups) for each in found] == [{numa: 1 << numa for numa in range(8)}]


def test_a_replay_gives_way_before_it_has_a_result() -> None:
    """The departures of four pods of unknown places have many results, which one slice would not finish."""
    zones = [Zone(n, {"cpu": 16 * MILLI}, {"cpu": 16 * MILLI}, {"cpu": 7 * MILLI}) for n in range(4)]
    frame = _config(KubeletPolicy.SINGLE_NUMA_NODE, KubeletScope.CONTAINER, tuple(zones))
    starts = used_starts(frame, {str(cpus): pod(app(cpus)) for cpus in range(1, 9)}, {})
    left = {str(cpus): float(cpus) for cpus in range(1, 5)}
    before = STEP_COUNT.total
    pieces = list(advance(starts, Arrival("new", pod(app(4)), 9.0), left, None, 20_000))
    taken = STEP_COUNT.total - before
    assert taken > 4_000
    assert max(*pieces, taken - sum(pieces)) < 1_000  # with the last piece, after which nothing is yielded


def test_a_belief_without_states_on_a_used_node_begins_again() -> None:
    starts = used_starts(_two(6, 0), {"a": pod(app(6))}, {})
    assert not Belief(starts, on_truncation=OnTruncation.WAIT).lost
    assert Belief(starts, overflow="too many", on_truncation=OnTruncation.WAIT).lost == "too many"
    assert not Belief(starts, overflow="too many").lost
