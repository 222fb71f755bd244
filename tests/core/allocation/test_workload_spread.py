"""Spreading and packing the pods of a workload inside a node: the acceptance case, and laws by brute force."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.allocation.numa_offers import workload_spread
from koord_numa.core.objects.constraints import LabelSelector, Operator, Requirement
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import NumaSpread, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import NumaSpreadMode, NumaSpreadScope
from koord_numa.core.scheduling.filters import decide
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.state.inventory import Inventory, candidate
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import SINGLE, node, place, pod
from tests.tables import each_row

PACK, SPREAD = NumaSpreadMode.PACK, NumaSpreadMode.SPREAD


def selector(app: str) -> LabelSelector:
    return LabelSelector((Requirement("app", Operator.IN, (app,)),))


def worker(app: str, *, picks: str = "", required: bool = True, gpus: int = 1, **spread: Any) -> PodRequest:
    """A pod of a workload that is spread over NUMA nodes."""
    wish = NumaSpread(selector(picks or app), required=required, **spread)
    return replace(pod(2000, gpus=gpus, numa=SINGLE), labels=(("app", app),), numa_spread=wish)


def on(numa: int, app: str, number: int, *, namespace: str = "default", gpus: int = 1) -> Holding:
    """A placed pod of a workload."""
    amounts = {"cpu": 2000, "nvidia.com/gpu": gpus} if gpus else {"cpu": 2000}
    request = replace(pod(2000, gpus=gpus), labels=(("app", app),), namespace=namespace)
    return Holding(PodKey("ns", f"{app}{number}", f"{app}{number}"), amounts, numa=((numa, amounts),), request=request)


def run(where: Inventory, pods: list[PodRequest]) -> Iterator[Placement | Rejection]:
    """Place pods one after the other."""
    held: list[Holding] = []
    for number, request in enumerate(pods):
        found = place(request, where, *held)
        yield found
        if isinstance(found, Placement):
            amounts = {name: amount for _, part in found.numa for name, amount in part.items()}
            key = PodKey("ns", str(number), str(number))
            held.append(Holding(key, amounts, found.cpus, numa=found.numa, request=request))


@each_row("required", [True, False])
@each_row("scope", list(NumaSpreadScope))
def test_prefill_and_decode_over_two_roots(scope: NumaSpreadScope, required: bool) -> None:
    """ai-dynamo/dynamo#10171: 2 prefill and 4 decode pods on 8 GPUs and two roots, in any order of arrival."""
    where = node("2x1x16x2", gpus=4)
    prefill = worker("prefill", scope=scope, required=required)
    decode = worker("decode", scope=scope, required=required)
    for places in combinations(range(6), 2):
        pods = [prefill if at in places else decode for at in range(6)]
        masks = [found.mask if isinstance(found, Placement) else None for found in run(where, pods)]
        assert sorted(mask or 0 for at, mask in enumerate(masks) if at in places) == [1, 2]
        assert sorted(mask or 0 for at, mask in enumerate(masks) if at not in places) == [1, 1, 2, 2]


def test_without_the_annotation_they_share_a_root() -> None:
    """Without the annotation, the emptiest NUMA node is filled first, whatever workload runs there."""
    prefill, decode = (replace(worker(app), numa_spread=None) for app in ("prefill", "decode"))
    found = run(node("2x1x16x2", gpus=4), [prefill, decode, prefill])
    assert [placed.mask for placed in found if isinstance(placed, Placement)] == [1, 2, 1]


def test_a_full_domain_refuses_or_is_avoided() -> None:
    where = node(gpus=1)
    held = [on(0, "a", 1), on(1, "other", 1)]
    refusal = place(worker("a"), node(gpus=2), *held, on(1, "other", 2))
    assert isinstance(refusal, Rejection)
    assert refusal.reason is Reason.NUMA_SPREAD
    assert refusal.message == "node(s) cannot spread the pods of the workload over NUMA nodes (numa-spread)"
    assert refusal.detail.startswith("pods that the selector picks: 1 on NUMA node 0, 0 on NUMA node 1")
    allowed = place(worker("a", required=False), node(gpus=2), *held, on(1, "other", 2))
    assert isinstance(allowed, Placement)
    assert allowed.mask == 1
    # Where no NUMA node has room, the wish is not blamed.
    full = place(worker("a"), where, *held)
    assert isinstance(full, Rejection)
    assert full.reason is not Reason.NUMA_SPREAD


def test_other_workloads_and_namespaces_do_not_count() -> None:
    where = node(gpus=4)
    placed = place(worker("a"), where, on(0, "b", 1), on(0, "a", 2, namespace="elsewhere"), on(1, "a", 3))
    assert isinstance(placed, Placement)
    assert placed.mask == 1


def test_sockets_are_domains_of_several_numa_nodes() -> None:
    where = node("2x2x4x2", gpus=2)
    found = place(worker("a", scope=NumaSpreadScope.SOCKET), where, on(0, "a", 1))
    assert isinstance(found, Placement)
    assert (found.mask or 0) & 0b1100


def test_domains_without_the_devices_are_not_compared() -> None:
    """GPUs on one NUMA node only: the other one never gets a pod, and must not keep the second pod waiting."""
    where = node(gpus=0)
    zones = ((0, {**where.zones[0][1], "nvidia.com/gpu": 4}), where.zones[1])
    where = replace(where, zones=zones)
    assert [found.mask for found in run(where, [worker("a")] * 2) if isinstance(found, Placement)] == [1, 1]


def test_a_pod_without_a_policy_gets_a_numa_node_for_the_wish() -> None:
    where = node(gpus=4)
    found = place(replace(worker("a"), numa=pod(1).numa), where, on(0, "a", 1))
    assert isinstance(found, Placement)
    assert found.mask == 2


def test_nodes_without_numa_nodes_take_no_spread_pods() -> None:
    where = Inventory(node="n", allocatable={"cpu": 16000, "nvidia.com/gpu": 8})
    request = replace(worker("a"), numa=pod(1).numa)
    refusal = place(request, where)
    assert isinstance(refusal, Rejection)
    assert refusal.reason is Reason.NUMA_SPREAD
    assert isinstance(place(replace(worker("a", required=False), numa=pod(1).numa), where), Placement)


def test_the_emptier_node_is_preferred() -> None:
    """Between nodes: a pod goes where its domain has none of its workload."""
    where = node("1x1x8x2", gpus=4)
    where = replace(where, allocatable={**where.allocatable, "nvidia.com/gpu": 4})
    crowded, empty = (
        candidate(Node(name, allocatable=where.allocatable), replace(where, node=name), Ledger.of([on(0, app, 1)]))
        for name, app in (("n1", "a"), ("n2", "b"))
    )
    request = worker("a", required=False)
    found = decide(scheduling_request(request, Profile()), [crowded, empty], Profile())
    assert isinstance(found, Placement)
    assert found.node == "n2"
    together = worker("a", required=False, mode=PACK)
    found = decide(scheduling_request(together, Profile()), [empty, crowded], Profile())
    assert isinstance(found, Placement)
    assert found.node == "n1"


COUNTS = st.lists(st.integers(0, 3), min_size=2, max_size=4)


@given(COUNTS, st.sampled_from([SPREAD, PACK]), st.booleans(), st.lists(st.integers(0, 2), min_size=4, max_size=4))
def test_the_answer_is_that_of_brute_force(
    counts: list[int], mode: NumaSpreadMode, required: bool, others: list[int]
) -> None:
    """Single NUMA nodes: the set of admissible nodes, and the best of these, by trying every one of them."""
    where = node(f"{len(counts)}x1x16x1", gpus=4)
    held = [on(numa, "a", 10 * numa + at) for numa, count in enumerate(counts) for at in range(count)]
    busy = [on(numa, "b", 10 * numa + at) for numa in range(len(counts)) for at in range(others[numa])]
    room = [numa for numa, count in enumerate(counts) if count + others[numa] < 4]
    if any(count + others[numa] > 4 for numa, count in enumerate(counts)):
        return
    if mode is SPREAD:
        permitted = [numa for numa in room if not required or counts[numa] == min(counts)]
        best = [numa for numa in permitted if counts[numa] == min(counts[other] for other in permitted)]
    else:
        permitted = [numa for numa in room if not required or counts[numa] or not any(counts)]
        best = [numa for numa in permitted if counts[numa] == max(counts[other] for other in permitted)]
    found = place(worker("a", mode=mode, required=required), where, *held, *busy)
    if not best:
        assert isinstance(found, Rejection)
        assert (found.reason is Reason.NUMA_SPREAD) is bool(room)
        return
    assert isinstance(found, Placement)
    assert (found.mask or 0).bit_length() - 1 in best


@given(COUNTS, st.integers(1, 15))
def test_laws_of_one_wish(counts: list[int], mask: int) -> None:
    """Of any set: what is best is permitted if anything is; packing permits what has pods; points are 0 to 100."""
    where = node(f"{len(counts)}x1x4x1")
    held = [on(numa, "a", 10 * numa + at, gpus=0) for numa, count in enumerate(counts) for at in range(count)]
    mask &= (1 << len(counts)) - 1
    every = range(1, 1 << len(counts))
    for mode in (SPREAD, PACK):
        seen = workload_spread(NumaSpread(selector("a"), mode=mode, required=True), where, Ledger.of(held))
        permitted = [one for one in every if seen.allows(one)]
        assert permitted, "an empty node with all of its domains always permits something"
        single = [one for one in permitted if one.bit_count() == 1]
        assert set(seen.best([one for one in every if one.bit_count() == 1])) <= set(single)
        assert 0 <= seen.points(mask) <= 100
